// A conversation with a model: the messages, the box to write in, and the settings.

import { postJson } from "../api.js";
import { element, notify } from "../dom.js";
import { read, write } from "../store.js";
import { Answers } from "./answers.js";
import { ConversationList } from "./list.js";
import { MessageView } from "./messages.js";
import { statusLine } from "./meter.js";
import { closeDrawers, composer, settingsPanel, tokenBar } from "./parts.js";
import { samplingForm } from "./sampling.js";
import { listenToOthers, load, save } from "./storage.js";
import { listenToTokens } from "./token_events.js";
import { TokenPanel } from "./token_panel.js";
import { merge, newConversation, showVersion, shownPath } from "./tree.js";

const COUNT_AFTER = 300; // ms after the last key, before the tokens of the draft are counted
const NEAR = "800px"; // answers so near the window get a span for each token

// `format` says how a kind of model is asked: see kinds/chat.js.
export class ConversationView {
  constructor(place, { card, format, opening, choose }) {
    Object.assign(this, { card, format, choose });
    this.views = new Map(); // of messages, by id
    this.showsTokens = read("shows tokens") ?? true;
    this.answers = new Answers(this, { card, format });
    this.actions = this.messageActions();
    this.observer = new IntersectionObserver((entries) => this.cameNear(entries), { rootMargin: NEAR });
    this.build(place);
    this.listen();
    this.use(opening ?? load(read(`last ${format.kind}`)) ?? newConversation(card.id, format.kind));
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
    this.list = new ConversationList(format.kind, {
      current: () => this.conversation,
      open: (id) => this.open(load(id)),
      begin: () => this.open(newConversation(card.id, format.kind)),
      take: (conversation) => {
        save(conversation);
        this.open(conversation);
      },
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
      this.conversation.system = this.system.value;
      this.store();
      this.count();
    });
    this.listeners = new AbortController();
    const { signal } = this.listeners;
    document.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
      if (this.answers.running) this.answers.stop();
      else if (this.panel.open) this.panel.close(false);
      else closeDrawers();
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
    this.answers.stop();
    this.listeners.abort();
    this.observer.disconnect();
    this.panel.remove();
    clearTimeout(this.counting);
  }

  // -- conversations -----------------------------------------------------------------------------------

  // Open a conversation; one with another model is opened with that model if the server has it.
  open(conversation) {
    if (!conversation) return notify("This conversation is no longer stored.");
    const known = [...document.getElementById("model").options].some((each) => each.value === conversation.model);
    const fits = conversation.kind === this.format.kind;
    if (known && (!fits || conversation.model !== this.card.id)) return this.choose(conversation.model, conversation);
    if (!fits) return notify(`The server has no model “${conversation.model}”, which this conversation needs.`);
    this.answers.stop();
    this.use(conversation);
    this.composer.draft.focus();
  }

  use(conversation) {
    this.conversation = conversation;
    conversation.model = this.card.id;
    this.system.value = conversation.system;
    this.views.clear();
    this.observer.disconnect();
    this.log.replaceChildren();
    this.panel.close(false);
    closeDrawers();
    write(`last ${this.format.kind}`, conversation.id);
    this.showPath();
    this.list.show();
    this.toEnd();
    this.status.say("");
    this.status.fill(0, this.card.context);
    this.count();
  }

  // Show what another window has added to this conversation.
  takeFromStorage(id) {
    const stored = id === this.conversation.id ? load(id) : null;
    const changed = stored ? merge(this.conversation, stored) : [];
    if (changed.length === 0) return;
    this.showPath();
    for (const each of changed) this.views.get(each)?.redraw();
  }

  store(conversation = this.conversation) {
    if (conversation.nodes.root.children.length === 0) return;
    if (!save(conversation)) {
      notify("The browser's storage is full or disabled, so this conversation is not stored. Export it, or delete others.");
    }
    this.list.show();
  }

  // -- messages ----------------------------------------------------------------------------------------

  // Bring the articles in line with the shown messages; those that stay are not touched.
  showPath() {
    const path = shownPath(this.conversation);
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
      this.articleOf(shown).focusTool(step < 0 ? "‹" : "›");
      this.store();
      this.count();
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

  // Count the tokens of the conversation with the draft.
  async count() {
    const asked = this.format.count(shownPath(this.conversation), this.conversation, this.composer.draft.value);
    const turn = (this.turn = (this.turn ?? 0) + 1);
    if (!asked) return;
    try {
      const { count } = await postJson("tokenize", { model: this.card.id, ...asked });
      if (turn === this.turn && !this.answers.running) this.status.fill(count, this.card.context);
    } catch {
      // the meter keeps its last value; a request that matters reports the error
    }
  }
}
