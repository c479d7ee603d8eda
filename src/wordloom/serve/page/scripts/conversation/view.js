// A conversation with a model: the messages, the box to write in, and the settings.

import { pushAddress, replaceAddress } from "../address.js";
import { postJson } from "../api.js";
import { announce, element, notify } from "../dom.js";
import { read, write } from "../store.js";
import { Answers } from "./answers.js";
import { closeDrawers } from "./drawers.js";
import { hint, missing } from "./hint.js";
import { ConversationList } from "./list.js";
import { fieldsOf, systemOf } from "./made.js";
import { MessageView } from "./messages.js";
import { ended, statusLine } from "./meter.js";
import { composer, settingsPanel, tokenBar } from "./parts.js";
import { samplingForm } from "./sampling.js";
import { listenToOthers, load, save } from "./storage.js";
import { listenToTokens } from "./token_events.js";
import { TokenPanel } from "./token_panel.js";
import { merge, newConversation, setSystem, showVersion, shownPath, titleOf, versionOf } from "./tree.js";

const COUNT_AFTER = 300; // ms after the last key, before the tokens of the draft are counted
const NEAR = "800px"; // answers so near the window get a span for each token
const NOT_STORED = "The browser's storage is full or disabled. This conversation is not stored, and is lost when you leave the page. Export it, or delete others.";
const DOES = { chat: "answers messages", completion: "continues texts" };

const isEmpty = (conversation) => conversation.nodes.root.children.length === 0;

// `format` says how a kind of model is asked: see kinds/chat.js.  `conversation` is the id in the address,
// `taken` the conversation that was in view with another model, and `models` has functions of main.js that find a
// model for a conversation.
export class ConversationView {
  constructor(place, { card, format, conversation, taken, models }) {
    Object.assign(this, { card, format, models });
    this.views = new Map(); // of messages, by id
    this.showsTokens = read("shows tokens") ?? true;
    this.answers = new Answers(this, { card, format });
    this.actions = this.messageActions();
    this.observer = new IntersectionObserver((entries) => this.cameNear(entries), { rootMargin: NEAR });
    this.build(place);
    this.listen();
    this.visit(conversation, taken);
  }

  build(place) {
    const { format, card, answers } = this;
    this.panel = new TokenPanel({
      insideLabel: card.family === "rnn" ? "Show the gates" : "Show the attention",
      inspect: (node, index) => answers.inspect(node, index),
      rewind: (node, index, alternative) => {
        this.panel.close(false);
        answers.rewind(node, index, alternative);
      },
    });
    this.list = new ConversationList({
      current: () => this.conversation,
      begin: () => this.begin(),
      take: (conversation) => this.take(conversation),
      modelFor: ({ model, kind }) => (!this.models.serves(model, kind) && kind === format.kind ? card.id : model),
    });
    this.log = element("div", { id: "log", role: "log", "aria-live": "off", "aria-label": format.title, tabIndex: 0 });
    this.status = statusLine();
    this.sampling = samplingForm(card.sampling);
    this.system = element("textarea", { id: "system", rows: 3, placeholder: card.system ?? "none" });
    this.composer = composer(format, {
      submit: () => this.submit(),
      stop: () => answers.stop(),
      typed: () => {
        write(`draft ${format.kind}`, this.composer.draft.value);
        this.countSoon();
      },
    });
    this.composer.draft.value = read(`draft ${format.kind}`) ?? "";
    const bar = tokenBar(this.showsTokens, (shows) => this.showTokens(shows));
    place.append(element("div", { class: "columns" },
      this.list.box,
      element("section", { class: "middle", "aria-label": format.title },
        bar, this.log, this.composer.form, this.status.line),
      settingsPanel(this.sampling.form, format.hasSystem ? this.system : null)));
  }

  listen() {
    listenToTokens(this.log, this.panel, (id) => this.conversation.nodes[id]);
    this.system.addEventListener("change", () => {
      setSystem(this.conversation, this.system.value);
      this.store();
      this.count();
    });
    this.system.addEventListener("blur", () => this.showSystem()); // another window may have changed it in the meantime
    this.listeners = new AbortController();
    const { signal } = this.listeners;
    document.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
      if (closeDrawers()) return;
      if (this.answers.running) this.answers.stop();
      else if (this.panel.open) this.panel.close(false);
    }, { signal });
    document.addEventListener("pointerdown", (event) => {
      const inside = this.panel.box.contains(event.target) || event.target.closest?.(".token[data-index]");
      if (this.panel.open && !inside) this.panel.close(false);
    }, { signal });
    addEventListener("pagehide", () => {
      this.answers.stop();
      this.store();
    }, { signal });
    listenToOthers({
      stored: (id) => this.takeFromStorage(id),
      deleted: (id) => {
        if (id === this.conversation.id) notify("Another window has deleted this conversation. Export it to keep it.");
      },
      relisted: () => this.list.show(),
    }, signal);
  }

  close() {
    this.closed = true; // an answer that is being written still ends, and is stored
    closeDrawers();
    this.answers.stop();
    this.listeners.abort();
    this.observer.disconnect();
    this.panel.remove();
    clearTimeout(this.counting);
  }

  // -- conversations -----------------------------------------------------------------------------------

  // Show the conversation of the address; without one, continue the `taken` conversation or begin a new one.
  visit(id, taken = null) {
    const { card, format } = this;
    if (id === null) {
      if (taken?.kind !== format.kind || isEmpty(taken)) return this.use(newConversation(card.id, format.kind));
      this.use(taken);
      return this.store();
    }
    if (id === this.conversation?.id) return;
    const found = load(id);
    if (found?.kind === format.kind) return this.use(found);
    this.use(newConversation(card.id, format.kind), found
      ? `It was written with “${found.model}”, which ${DOES[found.kind]}. “${card.id}” ${DOES[format.kind]}.`
      : "This browser has no conversation with this address. It was deleted, or it belongs to another browser.");
  }

  // Put the focus into the box if the link that had it is gone.  A touch screen would show its keyboard.
  focus() {
    if (document.activeElement === document.body && !matchMedia("(pointer: coarse)").matches) this.composer.draft.focus();
  }

  begin() {
    this.use(newConversation(this.card.id, this.format.kind));
    pushAddress({ model: this.card.id });
    this.composer.draft.focus();
  }

  // Open a conversation that was imported or deleted before, with its own model if the server has it.
  async take(conversation) {
    const { card, models } = this;
    const model = await models.modelFor(conversation);
    if (this.closed) return;
    if (model === null) {
      return notify(`This conversation needs a model that ${DOES[conversation.kind]}, and the server has none.`);
    }
    // the server's model of this name is of another kind: the links to the conversation name the other model
    if (models.serves(conversation.model)) conversation.model = model;
    const isStored = save(conversation);
    if (model !== card.id) return models.open(model, conversation, isStored);
    this.use(conversation);
    pushAddress({ model, conversation: isStored ? conversation.id : null });
    if (!isStored) notify(NOT_STORED);
    this.composer.draft.focus();
  }

  // Show a conversation; an empty one shows what the model is, or the `problem` with the address.
  use(conversation, problem = "") {
    this.answers.stop();
    this.conversation = conversation;
    this.problem = problem;
    this.system.value = conversation.system;
    this.views.clear();
    this.observer.disconnect();
    this.log.replaceChildren();
    this.panel.close(false);
    closeDrawers();
    this.showPath();
    this.list.show();
    this.showTitle();
    this.toEnd();
    this.describe();
  }

  showTitle() {
    const title = `${titleOf(this.conversation)} · ${this.card.id} · Wordloom`;
    if (document.title !== title) document.title = title;
  }

  // Show what another window has added to this conversation.
  takeFromStorage(id) {
    const stored = id === this.conversation.id ? load(id) : null;
    if (!stored) return;
    const { system } = this.conversation;
    const changed = merge(this.conversation, stored);
    this.showSystem();
    if (changed.length === 0 && this.conversation.system === system) return;
    this.showPath();
    for (const each of changed) this.views.get(each)?.redraw();
    if (!this.answers.running) this.describe();
  }

  // Show the system message; a box that has the focus may hold an unfinished one.
  showSystem() {
    if (document.activeElement !== this.system) this.system.value = this.conversation.system;
  }

  store(conversation = this.conversation) {
    if (isEmpty(conversation)) return;
    const stored = save(conversation);
    if (this.closed) return;
    if (!stored) {
      notify(NOT_STORED);
    } else if (conversation === this.conversation) {
      replaceAddress({ model: this.card.id, conversation: conversation.id });
    }
    this.list.show();
    this.showTitle();
  }

  // -- messages ----------------------------------------------------------------------------------------

  // Bring the articles in line with the shown messages; those that stay are not touched.
  showPath() {
    const path = shownPath(this.conversation);
    if (path.length === 0) {
      const shown = this.problem ? missing(this.problem) : hint(this.card, this.format, (text) => this.attempt(text));
      return this.log.replaceChildren(shown);
    }
    if (this.log.firstElementChild?.matches("section")) this.log.firstElementChild.remove();
    path.forEach((node, at) => {
      const { article } = this.articleOf(node);
      this.views.get(node.id).refresh();
      if (this.log.children[at] !== article) this.log.insertBefore(article, this.log.children[at] ?? null);
    });
    while (this.log.childElementCount > path.length) this.log.lastElementChild.remove();
  }

  // Return the view of a message.
  articleOf(node) {
    if (!this.views.has(node.id)) {
      const { actions, observer, showsTokens } = this;
      const { labels, trims } = this.format;
      this.views.set(node.id, new MessageView(this.conversation, node, { actions, labels, trims, observer, showsTokens }));
    }
    return this.views.get(node.id);
  }

  messageActions() {
    const show = (node, step) => {
      this.answers.stop();
      showVersion(this.conversation, node, step);
      this.showPath();
      const shown = shownPath(this.conversation).find((each) => each.parent === node.parent);
      this.articleOf(shown).focusTool(...(step < 0 ? ["‹", "›"] : ["›", "‹"]));
      this.store();
      this.describe();
    };
    const report = (text) => {
      this.status.say(text);
      announce(text);
    };
    return {
      previous: (node) => show(node, -1),
      next: (node) => show(node, 1),
      edit: (node) => this.articleOf(node).edit((text) => {
        if (text === null || this.readSettings() === null) this.articleOf(node).focusTool("Edit");
        else this.answers.ask(this.conversation.nodes[node.parent], text);
      }),
      retry: (node) => this.answers.answer(this.conversation.nodes[node.parent]),
      proceed: (node) => this.answers.proceed(node),
      repeat: (node) => this.answers.repeat(node),
      copySettings: (node) => {
        this.sampling.fill(fieldsOf(node.made));
        report("Copied into the settings");
      },
      copy: async (node) => {
        try {
          await navigator.clipboard.writeText(node.content);
          report("Copied");
        } catch {
          notify("The browser does not allow copying here.");
        }
      },
    };
  }

  showTokens(shows) {
    this.showsTokens = shows;
    write("shows tokens", shows);
    this.panel.close(false);
    for (const view of this.views.values()) this.observer.observe(view.article);
  }

  // Show tokens or text in the messages near the window.
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

  // -- the box to write in -----------------------------------------------------------------------------

  // Put a text into the box, to be sent or changed.
  attempt(text) {
    this.composer.draft.value = text;
    this.composer.draft.dispatchEvent(new Event("input"));
    this.composer.draft.focus();
  }

  submit() {
    const text = this.composer.draft.value;
    if (this.answers.running || !this.format.accepts(text) || this.readSettings() === null) return;
    clearTimeout(this.counting);
    this.composer.draft.value = "";
    write(`draft ${this.format.kind}`, "");
    this.answers.ask(shownPath(this.conversation).at(-1) ?? this.conversation.nodes.root, text);
  }

  // Return the sampling settings, or null if one is out of range.
  readSettings() {
    try {
      return this.sampling.values();
    } catch (error) {
      notify(error.message);
      return null;
    }
  }

  showRunning(runs) {
    this.composer.showRunning(runs);
  }

  countSoon() {
    clearTimeout(this.counting);
    this.counting = setTimeout(() => this.count(), COUNT_AFTER);
  }

  // Say in the line below the box what the versions in view are: the outcome and the speed of the last answer,
  // and the tokens of its context, which are counted if `total` is null.
  describe(total = null) {
    if (this.closed) return;
    const last = shownPath(this.conversation).at(-1);
    this.status.say(last?.role === "assistant" ? ended(last, versionOf(this.conversation, last)) : "");
    if (total === null) this.count();
    else this.status.fill(total, this.card.context);
  }

  isShown(node) {
    return shownPath(this.conversation).includes(node);
  }

  // Count the tokens in view: those of the last answer and of what it read, or of the next request if there is a
  // draft.
  async count() {
    const { format, conversation, card } = this;
    const draft = this.composer.draft.value;
    const path = shownPath(conversation);
    const last = path.at(-1);
    const turn = (this.turn = (this.turn ?? 0) + 1);
    if (!draft && !last) return this.status.fill(0, card.context);
    const isAnswer = !draft && last.role === "assistant";
    const asked = draft ? format.next(path, conversation, draft) : isAnswer ? format.prompt(path.slice(0, -1), systemOf(last, conversation)) : format.prompt(path, conversation);
    const counted = async (fields) => (await postJson("tokenize", { model: card.id, ...fields })).count;
    try {
      let count = await counted(asked);
      // another model divides its answer into other tokens
      if (isAnswer) count += last.model === card.id ? last.tokens.length : await counted({ text: last.content });
      if (turn === this.turn && !this.answers.running) this.status.fill(count, card.context);
    } catch {
      // the meter keeps its last value; a request that matters reports the error
    }
  }
}
