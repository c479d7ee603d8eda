// The model card: what a model is, and how it was trained.

import { element, openDialog } from "./dom.js";

export function openCard(card) {
  const facts = [
    ["Kind", card.kind],
    ["Family", card.family],
    ["Parameters", card.parameters?.toLocaleString("en")],
    ["Weights", `${(card.bytes / 1e6).toLocaleString("en", { maximumFractionDigits: 1 })} MB`],
    ["Context", card.context && `${card.context.toLocaleString("en")} tokens`],
    ["Tokenizer", card.tokenizer && `${card.tokenizer.kind}, ${card.tokenizer.vocab_size.toLocaleString("en")} tokens`],
    ["Reads", card.texts && (card.texts === 1 ? "single texts" : "pairs of texts")],
    ["Chat template", card.chat ? "yes" : "no"],
    ["System message", card.system],
  ];
  openDialog(
    card.id,
    table(facts.filter(([, value]) => value)),
    ...Object.entries(card.metrics).flatMap(([kind, values]) => [
      element("h3", {}, `Last metrics: ${kind}`),
      table(Object.entries(values).map(([name, value]) => [name, shown(value)])),
    ]),
    ...(card.recipe
      ? [element("h3", {}, "Recipe"),
         element("p", { class: "muted" }, "The recipe as it was given; results that it quotes are of its author's run, not of this one."),
         element("pre", { tabIndex: 0, role: "region", "aria-label": "Recipe" }, card.recipe)]
      : []),
  );
}

function table(rows) {
  return element(
    "table",
    { class: "facts" },
    element("tbody", {}, ...rows.map(([name, value]) =>
      element("tr", {}, element("th", { scope: "row" }, name), element("td", {}, String(value))))),
  );
}

function shown(value) {
  if (typeof value === "number" && !Number.isInteger(value)) return String(Number(value.toPrecision(5)));
  if (typeof value === "number") return value.toLocaleString("en");
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}
