// What an empty conversation shows: what the model is, and something to try.

import { button, element } from "../dom.js";

// `format` says what its kind of model does; `attempt(text)` puts a text into the box.
export function hint(card, format, attempt) {
  const size = card.parameters ? ` with ${roughly(card.parameters)} parameters` : "";
  const examples = card.example ? [card.example, ...format.examples.slice(1)] : format.examples;
  return element("section", { class: "hint-empty", "aria-label": "About this model" },
    element("h2", {}, card.id),
    element("p", {}, `A language model${card.family ? ` (${card.family})` : ""}${size}. ${format.does}`),
    ...(card.description ? [element("p", { class: "muted" }, `Its recipe says: ${card.description}`)] : []),
    element("p", {}, "Something to try:"),
    element("ul", {}, ...examples.map((text) => element("li", {}, button(text, () => attempt(text))))));
}

// Say why the conversation of an address cannot be shown.
export function missing(problem) {
  return element("section", { class: "hint-empty", role: "alert" },
    element("h2", {}, "This conversation cannot be shown"),
    element("p", {}, problem),
    element("p", { class: "muted" }, "A message that you write here begins a new conversation."));
}

function roughly(count) {
  for (const [size, name] of [[1e9, "billion"], [1e6, "million"]]) {
    if (count >= size) return `${(count / size).toPrecision(2)} ${name}`;
  }
  return count.toLocaleString("en");
}
