// Ask the model: new answers, answers that continue others, and what the model computes at a token.

import { postJson, postStream } from "../api.js";
import { announce, dismissNotice, notify } from "../dom.js";
import { openInspection } from "./inspection.js";
import { fieldsOf, madeOf, reported, systemOf } from "./made.js";
import { Speed } from "./meter.js";
import { textOf } from "./tokens.js";
import { addNode, pathTo } from "./tree.js";

const INCOMPLETE = /\ufffd*$/; // the text of a character whose last bytes are missing
const ALTERNATIVES = 8; // of each token
const LEAVING = 500; // ms, within which `pagehide` follows a connection that broke because the browser leaves the page

export class Answers {
  // `view` is the ConversationView that shows the answers.
  constructor(view, { card, format }) {
    Object.assign(this, { view, card, format });
    this.running = null; // the answer that is being written
  }

  stop() {
    this.running?.controller.abort();
  }

  // Add a message below `parent`, and answer it.
  ask(parent, text) {
    this.stop();
    const message = addNode(this.view.conversation, parent, { role: "user", content: text });
    this.view.showPath();
    return this.answer(message);
  }

  // Write an answer below `parent` that begins with the tokens `kept`.
  answer(parent, kept = []) {
    const sampling = this.view.readSettings();
    if (sampling !== null) return this.write(parent, kept, { sampling, system: this.view.conversation.system });
  }

  // Write an answer again, with its settings.
  repeat(node) {
    if (!this.isOfThisModel(node)) return;
    const { made, kept } = node;
    return this.write(this.parentOf(node), node.tokens.slice(0, kept), { sampling: fieldsOf(made), system: made.system, repeats: node });
  }

  // `repeats` is the answer that is written again.
  async write(parent, kept, { sampling, system, repeats = null }) {
    this.stop();
    dismissNotice();
    const { view, format, card } = this;
    const { conversation } = view;
    const path = pathTo(conversation, parent);
    const drawn = sampling.seed === undefined || repeats?.made.settings.seed?.from === "fresh";
    const request = { ...sampling, seed: sampling.seed ?? newSeed() };
    const node = this.add(parent, kept, "stopped");
    node.made = madeOf(request, card.sampling, { system, drawn });
    const run = {
      conversation, node, article: view.articleOf(node), controller: new AbortController(), speed: new Speed(),
      frame: null, promptCount: null, total: null, fillsContext: false, drawn, repeats,
    };
    await this.begin(run, format.prompt(path, { system }));
    const body = {
      model: card.id, ...format.request(path, { system }), ...request, alternatives: ALTERNATIVES,
      stream: true, stream_options: { include_usage: true }, return_settings: true,
    };
    if (kept.length > 0) body.continue_ids = kept.map((token) => token.id);
    try {
      this.fit(body, run, kept.length);
      for await (const chunk of postStream(format.path, body, run.controller.signal)) this.receive(run, chunk);
    } catch (error) {
      const isStopped = error.name === "AbortError" || (error.status === 0 && (await isPageLeft()));
      if (!isStopped) {
        node.finish = "error";
        node.error = error.message;
      }
    }
    this.end(run);
  }

  add(parent, tokens, finish) {
    const content = textOf(tokens, this.format.trims);
    const node = addNode(this.view.conversation, parent, {
      role: "assistant", content, model: this.card.id, finish, error: "", speed: 0, tokens: [...tokens],
      kept: tokens.length, made: null,
    });
    this.view.conversation.model = this.card.id;
    this.view.showPath();
    return node;
  }

  // -- an answer that is being written -----------------------------------------------------------------

  async begin(run, prompt) {
    const { view } = this;
    this.running = run;
    run.article.setLive(true);
    view.showRunning(true);
    view.status.say("Reading the prompt…");
    view.toEnd();
    view.store();
    try {
      run.promptCount = (await postJson("tokenize", { model: this.card.id, ...prompt })).count;
    } catch {
      // the answer reports the error
    }
  }

  // Ask for no more tokens than the context has room for; throws an Error if it has none.
  fit(body, run, begun) {
    const { context } = this.card;
    run.controller.signal.throwIfAborted();
    if (!context || run.promptCount === null) return;
    const used = run.promptCount + begun;
    if (used >= context) {
      throw new Error(`The conversation has ${used} tokens, and the context holds ${context}. Begin a new one, or edit an earlier message.`);
    }
    const room = Math.max(1, context - used - this.format.uncounted);
    run.fillsContext = body.max_tokens >= room;
    if (run.fillsContext) body.max_tokens = room;
  }

  receive(run, chunk) {
    const { node, speed } = run;
    if (chunk.usage) run.total = chunk.usage.total_tokens;
    if (chunk.settings) node.made = reported(node.made, chunk.settings[0], run.drawn);
    const choice = chunk.choices[0];
    if (!choice) return;
    if (choice.finish_reason) node.finish = choice.finish_reason;
    const tokens = choice.tokens ?? [];
    if (tokens.length === 0) return;
    node.tokens.push(...tokens);
    speed.add(tokens.length);
    run.frame ??= requestAnimationFrame(() => this.draw(run));
  }

  // Show the tokens that have arrived since the last frame.
  draw(run) {
    const { view } = this;
    cancelAnimationFrame(run.frame);
    run.frame = null;
    const follows = view.isAtEnd;
    run.node.content = textOf(run.node.tokens, this.format.trims);
    run.article.update();
    if (follows) view.toEnd();
    if (this.running !== run || !view.isShown(run.node)) return; // it ends, as another version is in view
    view.status.say(run.speed.text);
    if (run.promptCount !== null) view.status.fill(run.promptCount + run.node.tokens.length, this.card.context);
  }

  end(run) {
    const { view } = this;
    const { node, speed } = run;
    const isFull = run.fillsContext || (run.total !== null && run.total >= this.card.context);
    if (node.finish === "length" && isFull) node.finish = "full";
    node.speed = Math.round(speed.perSecond * 10) / 10;
    this.draw(run);
    run.article.setLive(false);
    run.article.showTokens(view.showsTokens);
    view.store(run.conversation);
    if (this.running !== run) return; // another answer has begun
    this.running = null;
    view.showRunning(false);
    announce(node.finish === "error" ? node.error : `${this.format.labels.assistant}: ${node.content}`);
    view.describe(view.isShown(node) ? run.total : null); // of the version in view, which may be another one
    if (run.repeats && view.isShown(node) && node.finish !== "error") view.status.add(compared(node, run.repeats));
  }

  // -- continuing from tokens --------------------------------------------------------------------------

  // The ids of an answer belong to the tokenizer of its model.
  isOfThisModel(node) {
    if (node.model === this.card.id) return true;
    notify(`This answer is by the model “${node.model}”; choose that model first.`);
    return false;
  }

  // Continue an answer: the new version begins with its tokens.
  proceed(node) {
    if (!this.isOfThisModel(node)) return;
    const kept = node.tokens.filter((token) => !token.ends);
    // the server has sent U+FFFD for an incomplete last character, and sends the character once it is complete
    if (node.finish === "length" && kept.length > 0) {
      const last = kept.pop();
      kept.push({ ...last, text: last.text.replace(INCOMPLETE, "") });
    }
    this.answer(this.parentOf(node), kept);
  }

  // Continue an answer from one of the alternatives of a token.
  async rewind(node, index, alternative) {
    if (!this.isOfThisModel(node)) return;
    const kept = node.tokens.slice(0, index);
    const { id, logprob, ends } = alternative;
    const token = { id, text: "", logprob, ends, alternatives: node.tokens[index].alternatives };
    if (ends) {
      this.stop();
      this.add(this.parentOf(node), [...kept, token], "stop");
      this.view.store();
      this.view.describe();
      return;
    }
    const { conversation } = this.view;
    const parent = this.parentOf(node);
    try {
      token.text = await this.addedText(parent, kept, token);
      if (this.shows(conversation)) await this.answer(parent, [...kept, token]);
    } catch (error) {
      if (this.shows(conversation)) notify(error.message);
    }
  }

  // Return the text that a token adds to an answer after the tokens `before`.  The server sends a character with the
  // token that completes it, so an incomplete one has no text yet.
  async addedText(parent, before, token) {
    const { conversation } = this.view;
    const ask = (path, fields) => postJson(path, { model: this.card.id, ...fields });
    // behind the prompt, since decoding drops the space of some tokens at the beginning of a text
    const prompt = await ask("tokenize", this.format.prompt(pathTo(conversation, parent), conversation));
    const ids = [...prompt.ids, ...before.map((each) => each.id)];
    const decode = async (some) => (await ask("detokenize", { ids: some })).text.replace(INCOMPLETE, "");
    const [complete, whole] = await Promise.all([decode(ids), decode([...ids, token.id])]);
    const start = complete + textOf(before).match(INCOMPLETE)[0]; // U+FFFD that the server has sent already
    return whole.startsWith(start) ? whole.slice(start.length) : "";
  }

  async inspect(node, index) {
    if (!this.isOfThisModel(node)) return;
    const { conversation } = this.view;
    const prompt = this.format.prompt(pathTo(conversation, this.parentOf(node)), systemOf(node, conversation));
    const before = node.tokens.slice(0, index).map((token) => token.id);
    try {
      const found = await postJson("inspect", { model: this.card.id, ...prompt, continue_ids: before });
      if (this.shows(conversation)) openInspection(found, node.tokens[index]);
    } catch (error) {
      if (this.shows(conversation)) notify(error.message);
    }
  }

  // Return whether the view still shows a conversation; another one may have been opened during a request.
  shows(conversation) {
    return !this.view.closed && this.view.conversation === conversation;
  }

  // The message that an answer answers.
  parentOf(node) {
    return this.view.conversation.nodes[node.parent];
  }
}

// Return a random seed of 32 bits.
function newSeed() {
  return crypto.getRandomValues(new Uint32Array(1))[0];
}

// Return whether the browser leaves the page.  A reload breaks the connections just before `pagehide`.
function isPageLeft() {
  return new Promise((resolve) => {
    addEventListener("pagehide", () => resolve(true), { once: true });
    setTimeout(() => resolve(false), LEAVING);
  });
}

// Say whether an answer has the tokens of the one that it repeats; either may have been stopped.
function compared(node, before) {
  const length = Math.min(node.tokens.length, before.tokens.length);
  const same = node.tokens.slice(0, length).every((token, at) => token.id === before.tokens[at].id);
  return same ? "The same tokens again." : "Other tokens than before: the model, its settings or the server have changed.";
}
