// One message of a conversation as an article.

import { button, element } from "../dom.js";
import { madePanel } from "./made.js";
import { appendTokens } from "./tokens.js";
import { versionOf } from "./tree.js";

const ENDINGS = {
  length: "Reached the largest number of tokens.",
  full: "Reached the end of the context.",
  stopped: "Stopped.",
  error: "The answer failed.",
};

const DETAILS = "Details: how this answer was made";

// `actions` has the functions of the buttons, `labels` the names of the roles, `trims` whether an answer
// begins without whitespace.
export class MessageView {
  constructor(conversation, node, { actions, labels, trims, observer, showsTokens }) {
    Object.assign(this, { conversation, node, actions, trims, showsTokens });
    this.body = element("div", { class: "text" });
    this.note = element("p", { class: "note", hidden: true });
    this.tools = element("p", { class: "tools" });
    this.article = element(
      "article",
      { class: `message ${node.role}`, "aria-label": labels[node.role], "data-id": node.id },
      element("h2", {}, labels[node.role]),
      this.body,
      this.note,
      this.tools,
    );
    this.made = null; // the panel of the details, while it is open
    this.spansUpTo = 0; // tokens that have a span
    this.live = false;
    this.hasSpans = false;
    this.body.textContent = node.content;
    this.showEnding();
    this.refresh();
    if (node.role === "assistant") observer.observe(this.article);
  }

  // Show tokens instead of plain text, or the other way round.
  showTokens(shows) {
    this.showsTokens = shows;
    const wanted = shows && this.node.role === "assistant" && this.node.tokens.length > 0;
    if (wanted === this.hasSpans) return;
    this.hasSpans = wanted;
    this.spansUpTo = 0;
    this.body.classList.toggle("tokens", wanted);
    this.body.replaceChildren();
    this.update();
  }

  // Show what has arrived since the last call.
  update() {
    const { tokens, content } = this.node;
    if (this.showsTokens && this.live && !this.hasSpans) return this.showTokens(true);
    if (!this.hasSpans) {
      this.body.textContent = content;
      return;
    }
    appendTokens(this.body, tokens, this.spansUpTo, this.trims);
    this.spansUpTo = tokens.length;
  }

  // Show a message that was changed by another window.
  redraw() {
    this.showTokens(this.showsTokens);
    this.update();
    this.setLive(this.live);
  }

  // Mark an answer that is being written, or one that has ended.
  setLive(live) {
    this.live = live;
    this.article.classList.toggle("live", live);
    this.showEnding();
    this.version = null;
    this.refresh();
  }

  showEnding() {
    const { finish, error } = this.node;
    const ending = this.live ? "" : error || ENDINGS[finish] || "";
    this.note.hidden = !ending;
    this.note.classList.toggle("error", finish === "error");
    this.note.textContent = ending;
  }

  // Show the buttons, and which of the versions this is.
  refresh() {
    const { number, count } = versionOf(this.conversation, this.node);
    const version = `${number}/${count}/${this.live}`;
    if (version === this.version) return;
    this.version = version;
    const { actions, node } = this;
    const tool = (label, title, action, disabled = false) =>
      button(label, () => action(node), { title, "aria-label": title, disabled });
    const versions = count === 1 ? [] : [
      tool("‹", "Previous version", actions.previous, number === 1),
      element("span", { class: "version" }, `${number}/${count}`),
      tool("›", "Next version", actions.next, number === count),
    ];
    const buttons = node.role === "user"
      ? [tool("Edit", "Edit this message", actions.edit)]
      : this.live ? [] : [
          tool("Retry", "Retry: write another answer", actions.retry),
          ...(node.tokens.length > 0 && !["stop", "full"].includes(node.finish) ? [tool("Continue", "Continue this answer", actions.proceed)] : []),
          this.madeButton(),
        ];
    this.showMade(false);
    const speed = !this.live && node.speed ? element("span", { class: "speed" }, `${node.speed.toFixed(0)} tokens/s`) : null;
    this.tools.replaceChildren(...[...versions, ...buttons, tool("Copy", "Copy the text", actions.copy), speed].filter(Boolean));
  }

  // The button that shows how the answer was made.
  madeButton() {
    return button("Details", (event) => {
      const shows = this.made === null;
      event.target.setAttribute("aria-expanded", String(shows));
      this.showMade(shows);
      this.made?.scrollIntoView({ block: "nearest" });
    }, { title: DETAILS, "aria-label": DETAILS, "aria-expanded": "false" });
  }

  showMade(shows) {
    const { node, actions } = this;
    this.made?.remove();
    this.made = shows
      ? element("div", { class: "made", role: "group", "aria-label": "How this answer was made" },
          ...madePanel(node, { repeat: () => actions.repeat(node), copy: () => actions.copySettings(node) }))
      : null;
    if (shows) this.article.append(this.made);
  }

  // Replace the text with a box; `done` gets the new text, or null.
  edit(done) {
    const { node } = this;
    const box = element("textarea", { value: node.content, rows: Math.min(12, node.content.split("\n").length + 1), "aria-label": "Edit this message" });
    const finish = (text) => {
      form.replaceWith(this.body);
      this.tools.hidden = false;
      done(text);
    };
    const form = element(
      "form",
      { class: "edit", onsubmit: (event) => { event.preventDefault(); if (box.value.trim()) finish(box.value); } },
      box,
      element("p", { class: "row" }, element("button", { type: "submit" }, "Send"), button("Cancel", () => finish(null))),
    );
    form.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.stopPropagation();
        finish(null);
      } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing && event.target === box) {
        event.preventDefault();
        form.requestSubmit();
      }
    });
    this.tools.hidden = true;
    this.body.replaceWith(form);
    box.focus();
  }

  // Focus the first of the buttons with these labels that is enabled; a disabled one cannot have the focus.
  focusTool(...labels) {
    const enabled = [...this.tools.querySelectorAll("button:not(:disabled)")];
    const found = labels.map((label) => enabled.find((each) => each.textContent === label));
    found.find(Boolean)?.focus();
  }
}
