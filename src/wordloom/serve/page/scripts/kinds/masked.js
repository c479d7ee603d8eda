// The likeliest tokens for each mask of a text.

import { element } from "../dom.js";
import { resultTable, share, showQuery } from "./query.js";

export function show(place, { card }) {
  return showQuery(place, {
    card,
    title: "Masked tokens",
    send: "Fill in",
    fields: [
      { name: "text", label: `Text with ${card.mask_token} where a token is missing`, type: "textarea", required: true },
      { name: "top_k", label: "Tokens for each mask", type: "number", min: 1, max: 100, value: 5 },
    ],
    request: ({ text, top_k }) => ({ path: "fill-mask", body: { text, top_k } }),
    results: (answer) => answer.data[0].masks.flatMap((tokens, number) => [
      element("h3", {}, `Mask ${number + 1}`),
      resultTable(["Token", "Probability"], tokens.map(({ token, probability }) => [token, share(probability)])),
    ]),
  });
}
