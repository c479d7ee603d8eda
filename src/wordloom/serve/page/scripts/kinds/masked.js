// The likeliest tokens for each mask of a text.

import { element } from "../dom.js";
import { resultTable, share, showQuery } from "./query.js";

export function show(place, { card }) {
  const textOf = card.tokenizer?.kind === "bpe" ? textOfBytes : (token) => token.replaceAll("▁", " ");
  return showQuery(place, {
    card,
    title: "Masked tokens",
    send: "Fill in",
    fields: [
      { name: "text", label: `Text with ${card.mask_token} where a token is missing`, type: "textarea", required: true },
      { name: "top_k", label: "Tokens for each mask", type: "number", min: 1, max: 100, value: 5 },
    ],
    request: ({ text, top_k }) => ({ path: "fill-mask", body: { text, top_k } }),
    results: (answer, { text }) => answer.data[0].masks.flatMap((tokens, number) => [
      element("h3", {}, `Mask ${number + 1}`),
      resultTable(["Token", "Probability", "Text with this token"], tokens.map(({ token, probability }) =>
        [textOf(token), share(probability), filled(text, card.mask_token, number, textOf(token))])),
    ]),
  });
}

// Return the text with a token in place of one of its masks; the others stay.
function filled(text, mask, number, token) {
  const pieces = text.split(mask);
  const before = pieces.slice(0, number + 1).join(mask);
  const after = pieces.slice(number + 1).join(mask);
  const joins = token.startsWith("##"); // WordPiece: it continues the word in front
  const fits = joins ? before.trimEnd() : before;
  const word = joins ? token.slice(2) : /(^|\s)$/.test(before) ? token.trimStart() : token;
  return element("span", { class: "passage" }, fits, element("mark", {}, word), after);
}

// Byte-level BPE writes each byte as a character: printable ones as they are, the others from U+0100 on.
const BYTES = new Map();
for (let byte = 0, other = 256; byte < 256; byte++) {
  const prints = (byte > 32 && byte < 127) || (byte > 160 && byte !== 173);
  BYTES.set(String.fromCodePoint(prints ? byte : other++), byte);
}

// Return the text of a token of byte-level BPE, or its name if it has none.
function textOfBytes(token) {
  const bytes = Array.from(token, (character) => BYTES.get(character));
  if (bytes.includes(undefined)) return token;
  return new TextDecoder().decode(new Uint8Array(bytes));
}
