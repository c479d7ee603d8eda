// A translation model: the best translations of each line, and how their tokens align with the source.

import { element, percent } from "../dom.js";
import { linesOf, resultTable, showQuery } from "./query.js";

export function show(place, { card }) {
  return showQuery(place, {
    card,
    title: "Translation",
    send: "Translate",
    fields: [
      { name: "texts", label: "Texts, one a line", type: "textarea", required: true },
      { name: "n_best", label: "Translations of each text", type: "number", min: 1, max: 5, value: 1 },
      { name: "alignment", label: "Show the alignment", type: "checkbox", checked: true },
    ],
    request: ({ texts, n_best, alignment }) => ({ path: "translate", body: { texts: linesOf(texts), n_best, alignment } }),
    results: (answer, { texts }) => answer.data.flatMap(({ translations, alignment }, number) => [
      element("h3", {}, linesOf(texts)[number]),
      resultTable(["Translation", "Score"], translations.map(({ text, score }) => [text, score.toFixed(2)])),
      ...(alignment ? [aligned(alignment)] : []),
    ]),
  });
}

function aligned({ source, target, weights }) {
  const cell = (weight) => {
    const made = element("td", {}, percent(weight));
    made.style.setProperty("--share", `${Math.round(weight * 100)}%`);
    return made;
  };
  return element("div", { class: "scrolls", tabIndex: 0, role: "region", "aria-label": "Alignment" },
    element("table", { class: "alignment" },
      element("thead", {}, element("tr", {}, element("td", {}), ...source.map((token) => element("th", { scope: "col" }, token)))),
      element("tbody", {}, ...target.map((token, at) =>
        element("tr", {}, element("th", { scope: "row" }, token), ...weights[at].map(cell))))));
}
