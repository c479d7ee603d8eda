// The tokens of an answer.  Colour and underline show how probable the model found each of them.

import { element, percent } from "../dom.js";

// The lowest probability of each level; the classes are in tokens.css.
const LEVELS = [
  { least: 0.9, name: "level-5", label: "90 % or more" },
  { least: 0.5, name: "level-4", label: "50 to 90 %" },
  { least: 0.2, name: "level-3", label: "20 to 50 %" },
  { least: 0.05, name: "level-2", label: "5 to 20 %" },
  { least: 0, name: "level-1", label: "below 5 %" },
];

export function legend() {
  return element(
    "p",
    { class: "legend", "aria-label": "Legend of the probabilities" },
    "Probability of a token:",
    ...LEVELS.map(({ name, label }) => element("span", { class: `token ${name}` }, label)),
  );
}

// Return a token as text in which spaces and line breaks can be seen.
export function visible(text) {
  return text.replace(/ /g, "␣").replace(/\n/g, "⏎").replace(/\t/g, "⇥") || "(no text)";
}

// Return a text without the whitespace in front that the server leaves out of answers.
const withoutStart = (text) => text.replace(/^[ \t\r\n]+/, "");

// Return the text of tokens; an answer in a chat has no whitespace in front.
export function textOf(tokens, trims) {
  const text = tokens.map((token) => token.text).join("");
  return trims ? withoutStart(text) : text;
}

// Append the spans of tokens from `first` on.
export function appendTokens(place, tokens, first, trims) {
  let begun = !trims || textOf(tokens.slice(0, first), true) !== "";
  for (let at = first; at < tokens.length; at++) {
    const token = tokens[at];
    const text = begun ? token.text : withoutStart(token.text);
    begun ||= text !== "";
    const share = Math.exp(token.logprob);
    const level = LEVELS.find(({ least }) => share >= least);
    const span = element("span", {
      class: `token ${level.name}${token.ends ? " end" : ""}`,
      role: "button",
      tabIndex: place.childElementCount === 0 ? 0 : -1,
      "aria-haspopup": "dialog",
      "aria-label": `${token.ends ? "end of the answer" : visible(text)}, ${percent(share)}`,
      "data-index": at,
    }, token.ends && text === "" ? "end" : text);
    place.append(span);
  }
}

// Move the focus between tokens with the arrow keys; only one token of an answer is in the order of Tab.
export function moveFocus(span, key) {
  const spans = [...span.parentElement.children];
  const at = spans.indexOf(span);
  const wanted = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: spans.length - 1 }[key];
  const next = spans[wanted];
  if (!next) return;
  span.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}
