// Classifiers, and models for regression and token classification: a prediction for each text, or for a pair.

import { element } from "../dom.js";
import { linesOf, resultTable, share, showQuery } from "./query.js";

const MAY_READ_PAIRS = ["a classifier", "a model for regression"];
const TEXTS = { name: "texts", label: "Texts, one a line", type: "textarea", required: true };
const ONE_OR_TWO = [TEXTS, { name: "pair", label: "Second text, only for a model trained on pairs", type: "text" }];
const PAIR = [
  { name: "texts", label: "First text", type: "textarea", required: true },
  { name: "pair", label: "Second text", type: "textarea", required: true },
];

// The card says how many texts the model was trained to read at once, if that is known.
function fieldsOf({ texts, kind }) {
  if (texts === 2) return PAIR;
  return (texts ?? null) === null && MAY_READ_PAIRS.includes(kind) ? ONE_OR_TWO : [TEXTS];
}

export function show(place, { card }) {
  const pairs = card.texts === 2;
  const rowsOf = (texts) => (pairs ? [texts.trim()] : linesOf(texts));
  return showQuery(place, {
    card,
    title: "Predictions",
    send: "Predict",
    fields: fieldsOf(card),
    request: ({ texts, pair }) => ({
      path: "classify",
      body: pair ? { pairs: rowsOf(texts).map((text) => [text, pair.trim()]) } : { texts: rowsOf(texts) },
    }),
    results: (answer, { texts, pair }) => answer.data.flatMap((found, number) => [
      element("h3", {}, pair ? `${rowsOf(texts)[number]} / ${pair.trim()}` : rowsOf(texts)[number]),
      predicted(found),
      ...(found.truncated ? [element("p", { class: "muted" }, "The model has read the beginning alone.")] : []),
    ]),
  });
}

function predicted(found) {
  if (found.words) {
    return resultTable(["Word", "Label", "Probability"], found.words.map(({ word, label, probability }) =>
      [word, label ?? "not read", probability === null ? "" : share(probability)]));
  }
  if (found.labels) {
    return resultTable(["Label", "Probability"], found.labels.map(({ label, probability }) => [label, share(probability)]));
  }
  return element("p", { class: "score" }, `Score ${found.score.toPrecision(4)}`);
}
