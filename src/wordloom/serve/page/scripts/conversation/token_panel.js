// The panel of a token: its alternatives, with their probabilities before and after the sampling settings.

import { button, element, percent } from "../dom.js";
import { visible } from "./tokens.js";

const SHOW_AFTER = 120; // ms that the pointer rests on a token
const HIDE_AFTER = 250; // ms, to move the pointer from the token into the panel

export class TokenPanel {
  // `rewind(node, index, alternative)` and `inspect(node, index)` are called on a click; `insideLabel` names
  // what the model's inside has to show.
  constructor({ rewind, inspect, insideLabel }) {
    this.insideLabel = insideLabel;
    this.rewind = rewind;
    this.inspect = inspect;
    this.span = null;
    this.pinned = false;
    this.isReturning = false; // while a closing panel gives the focus back to its token
    this.timer = null; // shows or hides the panel soon
    this.box = element("div", {
      id: "token-panel", role: "dialog", "aria-label": "Token", hidden: true,
      onpointerenter: () => clearTimeout(this.timer),
      onpointerleave: () => this.hideSoon(),
      onkeydown: (event) => this.onKey(event),
    });
    document.body.append(this.box);
  }

  get open() {
    return !this.box.hidden;
  }

  // Show the panel beside a token.  A pinned panel stays when the pointer leaves it.
  show(span, node, index, { pinned = false, focus = false } = {}) {
    clearTimeout(this.timer);
    if (this.pinned && !pinned) return;
    const token = node.tokens[index];
    if (!token) return;
    this.span?.classList.remove("current");
    this.span = span;
    this.pinned = pinned;
    span.classList.add("current");
    this.box.replaceChildren(...this.content(node, index, token));
    this.box.hidden = false;
    this.place();
    if (focus) this.box.querySelector("button:not(:disabled)").focus(); // the chosen alternative is disabled
  }

  content(node, index, token) {
    const alternatives = token.alternatives ?? [];
    const chosen = alternatives.some((each) => each.id === token.id);
    const rows = alternatives.map((each) => element(
      "tr",
      { class: each.id === token.id ? "chosen" : "" },
      element("td", {}, button(each.ends ? "end of the answer" : visible(each.token), () => this.rewind(node, index, each), {
        "aria-pressed": each.id === token.id, disabled: each.id === token.id,
      })),
      element("td", {}, percent(Math.exp(each.logprob))),
      element("td", {}, bar(each.kept), percent(each.kept)),
    ));
    return [
      element("p", { class: "panel-head" },
        element("strong", {}, token.ends ? "end of the answer" : visible(token.text)),
        ` ${percent(Math.exp(token.logprob))}`,
        element("span", { class: "muted" }, ` id ${token.id}`)),
      rows.length === 0
        ? element("p", { class: "muted" }, "The alternatives of older answers are not stored.")
        : element("table", {},
            element("thead", {}, element("tr", {},
              ...["Alternative", "Model", "After settings"].map((name) => element("th", { scope: "col" }, name)))),
            element("tbody", {}, ...rows)),
      rows.length > 0 && !chosen ? element("p", { class: "muted" }, "The token itself is less probable than these.") : null,
      element("p", { class: "row" },
        button(this.insideLabel, () => this.inspect(node, index)),
        button("Close", () => this.close(true))),
      rows.length === 0 ? null : element("p", { class: "muted hint" }, "Choose an alternative to continue from there."),
    ].filter(Boolean);
  }

  place() {
    const at = this.span.getBoundingClientRect();
    const box = this.box.getBoundingClientRect();
    const left = Math.min(Math.max(8, at.left), innerWidth - box.width - 8);
    const below = at.bottom + 6;
    const top = below + box.height < innerHeight - 8 ? below : Math.max(8, at.top - box.height - 6);
    this.box.style.left = `${Math.max(8, left)}px`;
    this.box.style.top = `${top}px`;
  }

  showSoon(span, node, index) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.show(span, node, index), SHOW_AFTER);
  }

  hideSoon() {
    clearTimeout(this.timer);
    if (!this.pinned) this.timer = setTimeout(() => this.close(false), HIDE_AFTER);
  }

  onKey(event) {
    const buttons = [...this.box.querySelectorAll("button:not(:disabled)")];
    const at = buttons.indexOf(document.activeElement);
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    buttons[(at + step + buttons.length) % buttons.length].focus();
  }

  // Close the panel; the focus goes back to its token if it was in the panel or `focus` is true.
  close(focus) {
    clearTimeout(this.timer);
    const inside = this.box.contains(document.activeElement);
    this.box.hidden = true;
    this.pinned = false;
    this.span?.classList.remove("current");
    if ((focus || inside) && this.span?.isConnected) this.focusToken();
    this.span = null;
  }

  focusToken() {
    this.isReturning = true;
    this.span.focus(); // fires the events of the focus before it returns
    this.isReturning = false;
  }

  remove() {
    clearTimeout(this.timer);
    this.box.remove();
  }
}

function bar(share) {
  const filled = element("span", { class: "bar-filled" });
  filled.style.width = `${share * 100}%`;
  return element("span", { class: "bar", "aria-hidden": "true" }, filled);
}
