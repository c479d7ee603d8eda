// A grid of layers and tokens.  The cell under the pointer, or with the focus, is described below it.
const data = read("lens");
const view = document.getElementById("view");
const detail = make("div", { id: "detail", role: "status" });

function describe(layer, at) {
  const rows = data.likeliest[layer][at].map(([token, share]) =>
    make("tr", {}, make("th", { scope: "row" }, shown(token)), make("td", {}, percent(share))));
  const [target, rank] = [shown(data.targets[at]), data.ranks[layer][at]];
  const bits = data.nats[layer][at] / Math.LN2;
  detail.replaceChildren(
    make("p", {}, `${data.layers[layer]}, after “${shown(data.tokens[at])}”: the target “${target}” ` +
      `has rank ${rank.toLocaleString("en")} and costs ${bits.toFixed(2)} bits`),
    make("table", {}, make("tbody", {}, ...rows)));
}

// The arrow keys move between cells; only one cell is reached with Tab.
function move(event) {
  const [layer, at] = [Number(this.dataset.layer), Number(this.dataset.at)];
  const step = { ArrowUp: [1, 0], ArrowDown: [-1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
  const next = step && view.querySelector(`[data-layer="${layer + step[0]}"][data-at="${at + step[1]}"]`);
  if (!next) return;
  event.preventDefault();
  this.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}

function cell(layer, at) {
  const [token, share] = data.likeliest[layer][at][0];
  const right = token === data.targets[at] && !(data.is_open && at === data.tokens.length - 1);
  const look = (event) => describe(layer, at);
  return make("td", {
    style: `background:${shade(share)};${right ? "font-weight:700" : ""}`, "data-layer": layer, "data-at": at,
    tabindex: layer === data.layers.length - 1 && at === 0 ? 0 : -1, onpointerenter: look, onfocus: look, onkeydown: move,
  }, shown(token));
}

const head = make("tr", {}, make("th"), ...data.tokens.map((token) => make("th", { scope: "col" }, shown(token))));
const body = data.layers.map((name, layer) =>
  make("tr", {}, make("th", { scope: "row" }, name), ...data.tokens.map((_, at) => cell(layer, at)))).reverse();
const foot = make("tr", {}, make("th", { scope: "row" }, "target"),
  ...data.targets.map((token) => make("td", {}, shown(token))));
view.append(
  make("p", {}, "Each cell is the most probable next token after a layer; a darker cell is more certain, and a bold " +
    "one is right. Point at a cell, or move with the arrow keys, to see its alternatives."),
  make("div", { class: "wide" }, make("table", {}, make("thead", {}, head), make("tbody", {}, ...body), make("tfoot", {}, foot))),
  detail);
describe(data.layers.length - 1, data.tokens.length - 1);
view.querySelector(".wide").scrollLeft = Number.MAX_SAFE_INTEGER; // to the token that is described
