// What a model computes when it chooses a token: the attention of a transformer, the gates of a recurrent model.

import { element, openDialog, percent } from "../dom.js";
import { visible } from "./tokens.js";

const STRONGEST = 10;
const GATES = {
  i: "input gate", f: "forget gate", g: "candidate", o: "output gate", c: "cell", h: "state", r: "reset gate",
  z: "update gate", n: "candidate",
};

// `found` is an answer of the endpoint /inspect for the tokens before `token`, which the model chose next.
export function openInspection(found, token) {
  const chosen = token.ends ? "the end" : `“${visible(token.text)}”`;
  if (found.kind === "gates") openDialog(`Gates before ${chosen}`, ...gates(found));
  else openDialog(`Attention for ${chosen}`, ...attention(found, chosen));
}

// The last layer is shown first, whose output the choice is read from, and the mean of its heads.
function attention(found, chosen) {
  const heads = found.weights[0].length;
  const last = found.layers.at(-1);
  const layer = select("attention-layer", [...found.layers.map((n) => [n, n === last ? `${n} (the last)` : String(n)]), ["mean", "mean of all"]]);
  const head = select("attention-head", [["mean", "mean of all"], ...Array.from({ length: heads }, (_, n) => [n, String(n)])]);
  layer.value = String(last);
  const said = element("p", { id: "attention-shown" });
  const text = element("p", { class: "attended", role: "img", tabIndex: 0 });
  const strongest = element("table", { class: "strongest" });

  function show() {
    const layers = layer.value === "mean" ? found.weights : [found.weights[found.layers.indexOf(Number(layer.value))]];
    const rows = layers.flatMap((each) => (head.value === "mean" ? each : [each[Number(head.value)]]));
    const weights = found.tokens.map((_, at) => rows.reduce((sum, row) => sum + row[at], 0) / rows.length);
    const most = Math.max(...weights, 1e-9);
    text.replaceChildren(...found.tokens.map((token, at) => {
      const span = element("span", { title: `${percent(weights[at])} at position ${at}` }, token);
      span.style.setProperty("--share", `${Math.round((weights[at] / most) * 100)}%`);
      return span;
    }));
    said.textContent = `What the model looked at when it chose ${chosen}: the share of each token before it, ${
      head.value === "mean" ? `the mean of ${heads === 1 ? "its only head" : `all ${heads} heads`}` : `head ${head.value}`} ${
      layer.value === "mean" ? `and all ${found.layers.length} layers` : `of layer ${layer.value}${Number(layer.value) === last ? ", the last" : ""}`}. Layers and heads count from 0.`;
    const order = weights.map((weight, at) => [weight, at]).sort((a, b) => b[0] - a[0]).slice(0, STRONGEST);
    text.setAttribute("aria-label", `The strongest token is ${visible(found.tokens[order[0][1]])} with ${percent(order[0][0])}.`);
    strongest.replaceChildren(
      element("thead", {}, element("tr", {}, ...["Token", "Position", "Weight"].map((name) => element("th", { scope: "col" }, name)))),
      element("tbody", {}, ...order.map(([weight, at]) => element("tr", {},
        element("td", {}, visible(found.tokens[at])), element("td", {}, String(at)), element("td", {}, percent(weight))))),
    );
  }

  for (const each of [layer, head]) each.addEventListener("change", show);
  show();
  return [
    said,
    element("p", { class: "row" }, element("label", { for: layer.id }, "Layer"), layer, element("label", { for: head.id }, "Head"), head),
    text,
    strongest,
  ];
}

function select(id, options) {
  return element("select", { id }, ...options.map(([value, text]) => element("option", { value }, text)));
}

function gates(found) {
  return [
    element("p", {}, "The gates and the state of each layer after the last token before this one. A cell of a strip is a component: blue is positive, red is negative."),
    ...found.gates.flatMap((layer, at) => [
      element("h3", {}, `Layer ${found.layers[at]}`),
      element("table", { class: "gates" },
        element("thead", {}, element("tr", {}, ...["Gate", "Mean", "Range", "Values"].map((name) => element("th", { scope: "col" }, name)))),
        element("tbody", {}, ...Object.entries(layer).map(([name, values]) => element("tr", {},
          element("th", { scope: "row" }, `${name} (${GATES[name] ?? name})`),
          element("td", {}, mean(values).toFixed(2)),
          element("td", {}, rangeOf(values)),
          element("td", {}, strip(values)))))),
    ]),
  ];
}

function mean(values) {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}

function rangeOf(values) {
  return `${Math.min(...values).toFixed(2)} to ${Math.max(...values).toFixed(2)}`;
}

// Draw values as cells from white to blue, or to red below 0.  Gates from 0 to 1 share a scale.
function strip(values) {
  const canvas = element("canvas", {
    class: "strip", role: "img", width: values.length, height: 1,
    "aria-label": `from ${rangeOf(values)}`,
  });
  const context = canvas.getContext("2d");
  const sizes = values.map(Math.abs);
  const bound = values.some((value) => value < 0) ? Math.max(...sizes) : Math.max(1, ...sizes);
  values.forEach((value, at) => {
    const end = value < 0 ? [190, 30, 30] : [35, 75, 160];
    const [red, green, blue] = end.map((part) => Math.round(255 - ((255 - part) * sizes[at]) / bound));
    context.fillStyle = `rgb(${red} ${green} ${blue})`;
    context.fillRect(at, 0, 1, 1);
  });
  return canvas;
}
