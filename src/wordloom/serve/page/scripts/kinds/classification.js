// Classifiers, and models for regression and token classification: a prediction for each line.

import { element } from "../dom.js";
import { linesOf, resultTable, share, showQuery } from "./query.js";

export function show(place, { card }) {
  return showQuery(place, {
    card,
    title: "Predictions",
    send: "Predict",
    fields: [
      { name: "texts", label: "Texts, one a line", type: "textarea", required: true },
      { name: "pair", label: "Second text, for a model that reads pairs", type: "text" },
    ],
    request: ({ texts, pair }) => ({
      path: "classify",
      body: pair ? { pairs: linesOf(texts).map((text) => [text, pair]) } : { texts: linesOf(texts) },
    }),
    results: (answer, { texts }) => answer.data.flatMap((found, number) => [
      element("h3", {}, linesOf(texts)[number]),
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
