// A model for multiple choice: the probability of each choice.

import { linesOf, resultTable, share, showQuery } from "./query.js";

export function show(place, { card }) {
  return showQuery(place, {
    card,
    title: "Multiple choice",
    send: "Choose",
    fields: [
      { name: "prompt", label: "Prompt", type: "textarea", required: true },
      { name: "choices", label: "Choices, one a line", type: "textarea", required: true },
    ],
    request: ({ prompt, choices }) => ({ path: "classify", body: { prompt, choices: linesOf(choices) } }),
    results: (answer, { choices }) => [
      resultTable(["Choice", "Probability"], linesOf(choices).map((choice, at) => [choice, share(answer.data[0].probabilities[at])])),
    ],
  });
}
