// Word vectors: the neighbours of a word, analogies, and a map of words.

import { element, percent } from "../dom.js";
import { drawnMap } from "./map.js";
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
        { name: "near", label: "Number of neighbours", type: "number", min: 1, max: 100, value: 10 },
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
        { name: "top_k", label: "Number of words", type: "number", min: 1, max: 100, value: 10 },
      ],
      request: ({ positive, negative, top_k }) => ({
        path: "analogy", body: { positive: words(positive), negative: words(negative), top_k },
      }),
      results,
    }),
    showQuery(place, {
      card,
      title: "Map",
      send: "Draw the map",
      fields: [
        { name: "words", label: "Words, such as: king queen paris france", type: "text", required: true },
        { name: "around", label: "Neighbours of each word", type: "number", min: 0, max: 20, value: 8 },
        { name: "tsne", label: "Keep neighbours together (t-SNE)", type: "checkbox" },
      ],
      request: ({ words: asked, around, tsne }) => ({
        path: "map", body: { words: words(asked), neighbours: around, method: tsne ? "tsne" : "pca" },
      }),
      results: mapped,
    }),
  ];
  return { close: () => shown.forEach((each) => each.close()) };
}

// Return the width of the page's results, at most `most`.
function roomFor(most) {
  return Math.min(most, document.querySelector(".query-view").clientWidth - 30);
}

function mapped({ data, method, explained }) {
  const asked = data.filter((each) => each.asked).map((each) => each.word);
  const said = method === "pca"
    ? `The two axes show ${percent(explained[0] + explained[1])} of how the words differ. `
    : "Only neighbourhoods have a meaning, not distances across the map. ";
  return [
    element("p", { class: "muted" }, said, "A point without a name has it as its tooltip."),
    drawnMap(data, `A map of ${asked.join(", ")} and ${data.length - asked.length} words near them.`, roomFor(720)),
    element("details", {}, element("summary", {}, "As a table"),
      resultTable(["Word", "Near to", "x", "y"], data.map(({ word, group, x, y }) => [word, asked[group], x.toFixed(2), y.toFixed(2)]))),
  ];
}
