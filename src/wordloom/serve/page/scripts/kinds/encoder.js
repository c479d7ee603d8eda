// An encoder: masked tokens, where the model has a head for them, and the similarity of texts.

import { show as showMasked } from "./masked.js";
import { linesOf, resultTable, showQuery } from "./query.js";

export function show(place, { card }) {
  const shown = card.mask_token ? [showMasked(place, { card })] : [];
  shown.push(showQuery(place, {
    card,
    title: "Similarity",
    send: "Compare",
    fields: [
      { name: "one", label: "Text", type: "textarea", required: true },
      { name: "others", label: "Texts to compare it with, one a line", type: "textarea", required: true },
    ],
    request: ({ one, others }) => ({
      path: "v1/embeddings", body: { input: [one, ...linesOf(others)], normalize: true },
    }),
    results: (answer, { others }) => {
      const [first, ...rest] = answer.data.map((each) => each.embedding);
      const ranked = linesOf(others).map((text, at) => [text, cosine(first, rest[at])]).sort((a, b) => b[1] - a[1]);
      return [resultTable(["Text", "Cosine"], ranked.map(([text, value]) => [text, value.toFixed(3)]))];
    },
  }));
  return { close: () => shown.forEach((each) => each.close()) };
}

// Return the cosine of two vectors of length 1.
function cosine(a, b) {
  return a.reduce((sum, value, at) => sum + value * b[at], 0);
}
