// A conversation with a model: the messages, the box to write in, and the settings.

import { postJson, postStream } from "../api.js";
import { announce, button, dismissNotice, element, notify } from "../dom.js";
import { read, write } from "../store.js";
import { openInspection } from "./inspection.js";
import { ConversationList } from "./list.js";
import { MessageView } from "./messages.js";
import { Speed, statusLine } from "./meter.js";
import { samplingForm } from "./sampling.js";
import { load, save } from "./storage.js";
import { TokenPanel } from "./token_panel.js";
import { legend, moveFocus, textOf } from "./tokens.js";
import { addNode, newConversation, pathTo, showVersion, shownPath } from "./tree.js";

const ALTERNATIVES = 8;
const HOVER = 120; // ms before the panel of a token opens
const COUNT_AFTER = 300; // ms after the last key, before the tokens of the draft are counted
const NEAR = "800px"; // answers so near the window get a span for each token

// `format` says how a kind of model is asked: see kinds/chat.js.
export class ConversationView {
  constructor(place, { card, format, opening, choose }) {
    Object.assign(this, { card, format, choose });
    this.running = null;
    this.views = new Map();
    this.showsTokens = read("shows tokens") ?? true;
    this.observer = new IntersectionObserver((entries) => this.cameNear(entries), { rootMargin: NEAR });
    this.build(place);
    const last = read(`last ${format.kind}`);
    this.use(opening ?? load(last) ?? newConversation(card.id, format.kind));
  }

  // -- the parts of the page -------------------------------------------------------------------------

  build(place) {
    const { format, card } = this;
    this.panel = new TokenPanel({
      insideLabel: card.family === "rnn" ? "Show the gates" : "Show the attention",
      rewind: (node, index, alternative) => this.rewind(node, index, alternative),
      inspect: (node, index) => this.inspect(node, index),
    });
    this.list = new ConversationList(format.kind, {
      current: () => this.conversation,
      open: (id) => this.open(load(id)),
      begin: () => this.open(newConversation(card.id, format.kind)),
      take: (conversation) => { this.open(conversation); this.store(); },
    });
    this.log = element("div", { id: "log", role: "log", "aria-live": "off", "aria-label": format.title, tabIndex: 0 });
    this.status = statusLine();
    this.sampling = samplingForm(card.sampling);
    this.draft = element("textarea", { id: "draft", rows: 2, placeholder: format.placeholder, oninput: () => this.countSoon() });
    this.send = element("button", { type: "submit", id: "send" }, format.send);
    this.stopButton = button("Stop", () => this.stop(), { id: "stop", hidden: true, title: "Stop (Esc)" });
    const composer = element("form", { id: "composer" },
      element("label", { for: "draft", class: "visually-hidden" }, format.labels.user),
      this.draft, this.send, this.stopButton);
    composer.addEventListener("submit", (event) => { event.preventDefault(); this.submit(); });
    this.draft.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.submit();
    });
    place.append(element("div", { id: "conversation", class: "columns" },
      this.list.box,
      element("section", { class: "middle", "aria-label": format.title }, this.tokenBar(), this.log, composer, this.status.line),
      this.settings()));
    this.listen();
  }

  tokenBar() {
    const toggle = element("input", { type: "checkbox", id: "shows-tokens", checked: this.showsTokens });
    const key = legend();
    key.hidden = !this.showsTokens;
    toggle.addEventListener("change", () => {
      this.showsTokens = toggle.checked;
      key.hidden = !toggle.checked;
      write("shows tokens", toggle.checked);
      this.panel.close(false);
      for (const view of this.views.values()) view.showTokens(toggle.checked);
    });
    const drawer = (label, id) => button(label, (event) => {
      const opens = event.target.getAttribute("aria-expanded") === "false";
      this.closeDrawers();
      document.getElementById(id).classList.toggle("open", opens);
      event.target.setAttribute("aria-expanded", String(opens));
    }, { class: "drawer-button", "aria-controls": id, "aria-expanded": "false" });
    return element("div", { class: "token-bar" },
      drawer("Conversations", "conversations"),
      drawer("Settings", "settings"),
      element("span", { class: "toggle" }, toggle, element("label", { for: "shows-tokens" }, "Probabilities")),
      key);
  }

  closeDrawers() {
    for (const each of document.querySelectorAll(".drawer-button")) {
      each.setAttribute("aria-expanded", "false");
      document.getElementById(each.getAttribute("aria-controls"))?.classList.remove("open");
    }
  }

  settings() {
    this.system = element("textarea", { id: "system", rows: 3, placeholder: this.card.system ?? "none" });
    this.system.addEventListener("change", () => {
      this.conversation.system = this.system.value;
      this.store();
      this.count();
    });
    const system = this.format.hasSystem
      ? [element("label", { for: "system" }, "System message"), this.system]
      : [];
    return element("aside", { id: "settings", "aria-label": "Settings" },
      element("h2", {}, "Settings"), element("div", { class: "sampling" }, ...system), this.sampling.form);
  }

  listen() {
    const tokenAt = (target) => {
      const span = target.closest?.(".token[data-index]");
      const node = span && this.conversation.nodes[span.closest("article").dataset.id];
      return node ? { span, node, index: Number(span.dataset.index) } : null;
    };
    const pin = (at, focus) => this.panel.show(at.span, at.node, at.index, { pinned: true, focus });
    this.log.addEventListener("pointerover", (event) => {
      clearTimeout(this.hover);
      const at = event.pointerType === "touch" ? null : tokenAt(event.target);
      if (at) this.hover = setTimeout(() => this.panel.show(at.span, at.node, at.index), HOVER);
      else if (this.panel.open) this.panel.hideSoon();
    });
    this.log.addEventListener("pointerleave", () => {
      clearTimeout(this.hover);
      this.panel.hideSoon();
    });
    this.log.addEventListener("focusin", (event) => {
      const at = tokenAt(event.target);
      if (at && event.target.matches(":focus-visible")) this.panel.show(at.span, at.node, at.index);
    });
    this.log.addEventListener("focusout", (event) => {
      if (!tokenAt(event.relatedTarget ?? this.log) && !this.panel.box.contains(event.relatedTarget)) this.panel.hideSoon();
    });
    this.log.addEventListener("click", (event) => {
      const at = tokenAt(event.target);
      if (at) pin(at, false);
    });
    this.log.addEventListener("keydown", (event) => {
      const at = tokenAt(event.target);
      if (!at) return;
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        pin(at, true);
      } else if (["ArrowLeft", "ArrowRight", "Home", "End"].includes(event.key)) {
        event.preventDefault();
        moveFocus(at.span, event.key);
      }
    });
    this.log.addEventListener("scroll", () => { if (!this.panel.pinned) this.panel.close(false); }, { passive: true });
    this.onKey = (event) => {
      if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
      if (this.running) this.stop();
      else if (this.panel.open) this.panel.close(false);
      else this.closeDrawers();
    };
    this.onPress = (event) => {
      if (this.panel.open && !this.panel.box.contains(event.target) && !tokenAt(event.target)) this.panel.close(false);
    };
    this.onLeave = () => this.store();
    document.addEventListener("keydown", this.onKey);
    document.addEventListener("pointerdown", this.onPress);
    addEventListener("pagehide", this.onLeave);
  }

  close() {
    this.stop();
    this.panel.remove();
    this.observer.disconnect();
    clearTimeout(this.counting);
    document.removeEventListener("keydown", this.onKey);
    document.removeEventListener("pointerdown", this.onPress);
    removeEventListener("pagehide", this.onLeave);
  }

  // -- the conversation ------------------------------------------------------------------------------

  // Open a conversation; one with another model is opened with that model if the server has it.
  open(conversation) {
    if (!conversation) return notify("This conversation is no longer stored.");
    const known = [...document.getElementById("model").options].some((each) => each.value === conversation.model);
    const other = conversation.kind !== this.format.kind || (known && conversation.model !== this.card.id);
    if (other && !known) return notify(`The server has no model “${conversation.model}”; choose one for this conversation.`);
    if (other) return this.choose(conversation.model, conversation);
    this.stop();
    this.use(conversation);
    this.draft.focus();
  }

  use(conversation) {
    this.conversation = conversation;
    conversation.model = this.card.id;
    this.system.value = conversation.system;
    this.views.clear();
    this.observer.disconnect();
    this.log.replaceChildren();
    this.panel.close(false);
    this.closeDrawers();
    write(`last ${this.format.kind}`, conversation.id);
    this.showPath();
    this.list.show();
    this.toEnd();
    this.status.fill(0, this.card.context);
    this.count();
  }

  store() {
    if (this.conversation.nodes.root.children.length === 0) return;
    if (!save(this.conversation)) notify("The browser's storage is full or disabled: this conversation is not stored. Export it, or delete others.");
    this.list.show();
  }

  // Bring the articles in line with the shown messages; those that stay are not touched.
  showPath() {
    const { format, conversation, observer, showsTokens } = this;
    const path = shownPath(conversation);
    path.forEach((node, at) => {
      let view = this.views.get(node.id);
      if (!view) {
        view = new MessageView(conversation, node, { actions: this.actions, labels: format.labels, trims: format.trims, observer, showsTokens });
        this.views.set(node.id, view);
      }
      view.refresh();
      if (this.log.children[at] !== view.article) this.log.insertBefore(view.article, this.log.children[at] ?? null);
    });
    while (this.log.childElementCount > path.length) this.log.lastElementChild.remove();
  }

  cameNear(entries) {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      this.observer.unobserve(entry.target);
      this.views.get(entry.target.dataset.id)?.showTokens(this.showsTokens);
    }
  }

  toEnd() {
    this.log.scrollTop = this.log.scrollHeight;
  }

  get isAtEnd() {
    return this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < 80;
  }

  get actions() {
    const version = (node, step) => {
      this.stop();
      showVersion(this.conversation, node, step);
      this.showPath();
      const shown = shownPath(this.conversation).find((each) => each.parent === node.parent);
      this.views.get(shown.id).focusTool(step < 0 ? "‹" : "›");
      this.store();
      this.count();
    };
    return {
      previous: (node) => version(node, -1),
      next: (node) => version(node, 1),
      edit: (node) => this.views.get(node.id).edit((text) => {
        if (text === null) return this.views.get(node.id).focusTool("Edit");
        this.ask(this.conversation.nodes[node.parent], text);
      }),
      retry: (node) => this.answer(this.conversation.nodes[node.parent]),
      proceed: (node) => this.proceed(node),
      copy: async (node) => {
        try {
          await navigator.clipboard.writeText(node.content);
          this.status.say("Copied");
        } catch {
          notify("The browser does not allow copying here.");
        }
      },
    };
  }

  // -- asking the model ------------------------------------------------------------------------------

  submit() {
    const text = this.draft.value;
    if (this.running || !this.format.accepts(text)) return;
    if (!this.readSettings()) return;
    const path = shownPath(this.conversation);
    clearTimeout(this.counting);
    this.draft.value = "";
    this.ask(path.at(-1) ?? this.conversation.nodes.root, text);
  }

  readSettings() {
    try {
      return this.sampling.values();
    } catch (error) {
      notify(error.message);
      return null;
    }
  }

  ask(parent, text) {
    this.stop();
    const message = addNode(this.conversation, parent, { role: "user", content: text });
    this.showPath();
    return this.answer(message);
  }

  // The ids of an answer belong to the tokenizer of its model.
  isOfThisModel(node) {
    if (node.model === this.card.id) return true;
    notify(`This answer is by the model “${node.model}”; choose that model first.`);
    return false;
  }

  // Continue an answer: the new version begins with its tokens.
  proceed(node) {
    if (!this.isOfThisModel(node)) return;
    const tokens = node.tokens.filter((token) => !token.ends);
    return this.answer(this.conversation.nodes[node.parent], tokens);
  }

  // Continue an answer from one of the alternatives of a token.
  async rewind(node, index, alternative) {
    this.panel.close(false);
    if (!this.isOfThisModel(node)) return;
    const kept = node.tokens.slice(0, index);
    const { alternatives } = node.tokens[index];
    const token = { id: alternative.id, text: "", logprob: alternative.logprob, ends: alternative.ends, alternatives };
    const parent = this.conversation.nodes[node.parent];
    if (alternative.ends) {
      this.stop();
      this.addAnswer(parent, [...kept, token], "stop");
      this.store();
    } else {
      try {
        token.text = await this.addedText(kept, token);
      } catch (error) {
        return notify(error.message);
      }
      await this.answer(parent, [...kept, token]);
    }
  }

  // Return the text that a token adds after others.
  async addedText(before, token) {
    const ids = before.map((each) => each.id);
    const decode = async (some) => (some.length ? (await postJson("detokenize", { model: this.card.id, ids: some })).text : "");
    const [start, whole] = await Promise.all([decode(ids), decode([...ids, token.id])]);
    return whole.startsWith(start) ? whole.slice(start.length) : "";
  }

  async inspect(node, index) {
    if (!this.isOfThisModel(node)) return;
    try {
      const before = node.tokens.slice(0, index).map((token) => token.id);
      const prompt = this.format.prompt(pathTo(this.conversation, this.conversation.nodes[node.parent]), this.conversation);
      openInspection(await postJson("inspect", { model: this.card.id, ...prompt, continue_ids: before }), node.tokens[index]);
    } catch (error) {
      notify(error.message);
    }
  }

  addAnswer(parent, tokens, finish) {
    const content = textOf(tokens, this.format.trims);
    const node = addNode(this.conversation, parent, {
      role: "assistant", content, model: this.card.id, finish, error: "", speed: 0, tokens: [...tokens],
    });
    this.showPath();
    return node;
  }

  // Write an answer below `parent` that begins with the tokens `kept`.
  async answer(parent, kept = []) {
    this.stop();
    dismissNotice();
    const sampling = this.readSettings();
    if (sampling === null) return;
    const { conversation, format } = this;
    const path = pathTo(conversation, parent);
    const node = this.addAnswer(parent, kept, "stopped");
    const run = { node, controller: new AbortController(), view: this.views.get(node.id), speed: new Speed(), prompt: null, used: null };
    this.setRunning(run);
    this.countPrompt(run, format.prompt(path, conversation));
    this.toEnd();
    this.store();
    const body = {
      model: this.card.id, ...format.request(path, conversation), ...sampling, alternatives: ALTERNATIVES,
      stream: true, stream_options: { include_usage: true },
      ...(kept.length ? { continue_ids: kept.map((token) => token.id) } : {}),
    };
    try {
      for await (const chunk of postStream(format.path, body, run.controller.signal)) this.receive(run, chunk);
    } catch (error) {
      if (error.name !== "AbortError") {
        node.finish = "error";
        node.error = error.message;
      }
    }
    this.ended(run, conversation);
  }

  receive(run, chunk) {
    const { node, speed } = run;
    if (chunk.usage) run.used = chunk.usage.total_tokens;
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
    const { node, view, speed } = run;
    cancelAnimationFrame(run.frame);
    run.frame = null;
    const follows = this.isAtEnd;
    node.content = textOf(node.tokens, this.format.trims);
    view.update();
    if (follows) this.toEnd();
    if (this.running !== run) return;
    this.status.say(speed.text);
    if (run.prompt !== null) this.status.fill(run.prompt + node.tokens.length, this.card.context);
  }

  ended(run, conversation) {
    const { node, view, speed } = run;
    node.speed = Math.round(speed.perSecond * 10) / 10;
    if (this.running === run) this.setRunning(null);
    if (conversation !== this.conversation) {
      save(conversation);
      return;
    }
    view.setLive(false);
    this.draw(run);
    view.showTokens(this.showsTokens);
    this.store();
    if (this.running) return; // another answer has begun
    const outcome = node.finish === "error" ? node.error : node.finish === "stopped" ? "Stopped" : "Done";
    this.status.say(speed.count ? `${outcome}: ${speed.text}` : outcome);
    announce(node.finish === "error" ? node.error : `${this.format.labels.assistant}: ${node.content}`);
    if (run.used !== null) this.status.fill(run.used, this.card.context);
    else this.count();
  }

  setRunning(run) {
    this.running = run;
    const stopped = document.activeElement === this.stopButton;
    this.send.hidden = run !== null;
    this.stopButton.hidden = run === null;
    if (stopped || document.activeElement === document.body) this.draft.focus();
    if (run === null) return;
    run.view.setLive(true);
    this.status.say("Reading the prompt…");
  }

  stop() {
    this.running?.controller.abort();
  }

  // -- the context meter -----------------------------------------------------------------------------

  countSoon() {
    clearTimeout(this.counting);
    this.counting = setTimeout(() => this.count(), COUNT_AFTER);
  }

  async countPrompt(run, prompt) {
    try {
      run.prompt = (await postJson("tokenize", { model: this.card.id, ...prompt })).count;
    } catch {
      // the answer reports the error
    }
  }

  // Count the tokens of the conversation with the draft.
  async count() {
    const asked = this.format.count(shownPath(this.conversation), this.conversation, this.draft.value);
    const turn = (this.turn = (this.turn ?? 0) + 1);
    if (!asked) return;
    try {
      const { count } = await postJson("tokenize", { model: this.card.id, ...asked });
      if (turn !== this.turn || this.running) return;
      this.status.fill(count, this.card.context);
    } catch {
      // the meter keeps its last value; a request that matters reports the error
    }
  }
}
