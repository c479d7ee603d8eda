// Word vectors: analogies, and the neighbours of a word.

import { resultTable, showQuery } from "./query.js";

const words = (text) => text.split(/[\s,]+/).filter(Boolean);
const results = (answer) => [resultTable(["Word", "Score"], answer.data.map(({ word, score }) => [word, score.toFixed(3)]))];

export function show(place, { card }) {
  const shown = [
    showQuery(place, {
      card,
      title: "Neighbours",
      send: "Find neighbours",
      fields: [
        { name: "word", label: "Word", type: "text", required: true },
        { name: "near", label: "Neighbours", type: "number", min: 1, max: 100, value: 10 },
      ],
      request: ({ word, near }) => ({ path: "neighbours", body: { word: word.trim(), top_k: near } }),
      results,
    }),
    showQuery(place, {
      card,
      title: "Analogy",
      send: "Find words",
      fields: [
        { name: "positive", label: "Words to add, such as: king woman", type: "text", required: true },
        { name: "negative", label: "Words to subtract, such as: man", type: "text" },
        { name: "top_k", label: "Words to show", type: "number", min: 1, max: 100, value: 10 },
      ],
      request: ({ positive, negative, top_k }) => ({
        path: "analogy", body: { positive: words(positive), negative: words(negative), top_k },
      }),
      results,
    }),
  ];
  return { close: () => shown.forEach((each) => each.close()) };
}
