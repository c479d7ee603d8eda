// A form that asks the server, and the results below it: the view of models that generate no text.

import { postJson } from "../api.js";
import { announce, dismissNotice, element, notify, percent } from "../dom.js";

// `fields` are {name, label, type, ...properties}; `request(values)` returns {path, body}, and
// `results(answer, values)` the elements to show.
export function showQuery(place, { card, title, send, fields, request, results }) {
  const inputs = fields.map(({ name, label, type, ...properties }) =>
    element(type === "textarea" ? "textarea" : "input", {
      id: `query-${name}`, ...(type === "textarea" ? { rows: 3 } : { type }), ...properties,
    }));
  const output = element("div", { class: "results" });
  let controller = null;

  async function ask(event) {
    event.preventDefault();
    controller?.abort();
    const latest = (controller = new AbortController());
    dismissNotice();
    const values = Object.fromEntries(fields.map(({ name, type }, at) => [name, valueOf(inputs[at], type)]));
    output.setAttribute("aria-busy", "true");
    try {
      const { path, body } = request(values);
      const answer = await postJson(path, { model: card.id, ...body }, latest.signal);
      if (controller !== latest) return;
      output.replaceChildren(...results(answer, values));
      announce("The results are below the form.");
    } catch (error) {
      if (error.name !== "AbortError") notify(error.message);
    } finally {
      if (controller === latest) output.setAttribute("aria-busy", "false");
    }
  }

  const form = element("form", { class: "query", onsubmit: ask },
    ...fields.flatMap(({ label, type }, at) => {
      const name = element("label", { for: inputs[at].id }, label);
      return type === "checkbox" ? [element("p", { class: "row" }, inputs[at], name)] : [name, inputs[at]];
    }),
    element("p", { class: "row" }, element("button", { type: "submit" }, send)));
  form.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  place.append(element("section", { class: "query-view", "aria-label": title }, element("h2", {}, title), form, output));
  return { close: () => controller?.abort() };
}

function valueOf(input, type) {
  if (type === "checkbox") return input.checked;
  return type === "number" ? Number(input.value) : input.value;
}

// Return a table; a cell is a text, a number or an element.
export function resultTable(heads, rows) {
  return element("table", { class: "result" },
    element("thead", {}, element("tr", {}, ...heads.map((head) => element("th", { scope: "col" }, head)))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map((cell) =>
      element("td", {}, cell instanceof Node ? cell : String(cell ?? "")))))));
}

// Return a bar with the probability as a number beside it.
export function share(probability) {
  const filled = element("span", { class: "bar-filled" });
  filled.style.width = `${probability * 100}%`;
  return element("span", { class: "share" },
    element("span", { class: "bar", "aria-hidden": "true" }, filled), percent(probability));
}

export const linesOf = (text) => text.split("\n").map((line) => line.trim()).filter(Boolean);
