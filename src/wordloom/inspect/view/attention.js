// The text, coloured by the attention of the token under the pointer, and a small map of every head.
const data = read("attention");
const T = data.tokens.length;
const view = document.getElementById("view");
const state = { layer: data.layer, head: data.head, at: T - 1, fixed: false, to: false };

// Weights are bytes, 255 times their square root, compressed and in base64: [layers, heads, T, T].
async function weights() {
  const packed = Uint8Array.from(atob(data.weights), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
const bytes = await weights();
const square = Float32Array.from({ length: 256 }, (_, byte) => (byte / 255) ** 2);
const place = (layer, head) => (layer * data.heads + head) * T * T;

// The weights of the query `at` over all keys, or of all queries for the key `at`; head -1 is the mean of all heads.
function row(at) {
  const heads = state.head < 0 ? Array.from({ length: data.heads }, (_, h) => h) : [state.head];
  const sums = new Float32Array(T);
  for (const head of heads) {
    const start = place(state.layer, head);
    for (let t = 0; t < T; t++) sums[t] += square[bytes[start + (state.to ? t * T + at : at * T + t)]];
  }
  return sums.map((sum) => sum / heads.length);
}

const words = data.tokens.map((token, at) => make("button", {
  type: "button", class: "token", tabindex: at === T - 1 ? 0 : -1, "data-at": at,
}, shown(token)));
const said = make("p", { role: "status" });
const text = make("div", { class: "text", role: "group", "aria-label": "tokens" }, ...words);

function paint() {
  const found = row(state.at);
  const most = Math.max(...found) || 1;
  words.forEach((word, t) => {
    word.style.background = shade(found[t] / most);
    word.classList.toggle("at", t === state.at);
  });
  const best = [...found.keys()].sort((a, b) => found[b] - found[a]).slice(0, 5).filter((t) => found[t] > 0.0005);
  const list = best.map((t) => `${shown(data.tokens[t])} (${t}) ${percent(found[t])}`).join(", ");
  const which = state.head < 0 ? "mean of all heads" : `head ${state.head}`;
  said.textContent = `Layer ${state.layer}, ${which}: “${shown(data.tokens[state.at])}” (${state.at}) ` +
    (state.to ? `is attended to by ${list || "no token"}` : `attends to ${list || "no token"}`);
  for (const map of maps) map.button.setAttribute("aria-pressed", map.layer === state.layer && map.head === state.head);
}

function look(at) {
  words[state.at].tabIndex = -1;
  state.at = at;
  words[at].tabIndex = 0;
  paint();
}
const atOf = (event) => event.target.closest(".token")?.dataset.at;
text.addEventListener("pointerover", (event) => { if (!state.fixed && atOf(event)) look(Number(atOf(event))); });
text.addEventListener("focusin", (event) => look(Number(atOf(event))));
text.addEventListener("click", (event) => {
  if (!atOf(event)) return;
  const again = state.fixed && Number(atOf(event)) === state.at;
  look(Number(atOf(event)));
  state.fixed = !again;
  text.classList.toggle("fixed", state.fixed);
});
text.addEventListener("keydown", (event) => {
  const step = { ArrowLeft: -1, ArrowRight: 1, Home: -T, End: T }[event.key];
  if (!step) return;
  event.preventDefault();
  words[Math.min(T - 1, Math.max(0, state.at + step))].focus();
});

// A map is at most SIDE pixels wide; a pixel is the largest weight of the cells that it stands for.
const SIDE = 72;
function draw(canvas, layer, head) {
  const n = Math.min(T, SIDE);
  const start = place(layer, head);
  const most = new Uint8Array(n * n);
  for (let q = 0; q < T; q++) {
    const y = Math.floor((q * n) / T) * n;
    for (let k = 0; k < T; k++) {
      const x = y + Math.floor((k * n) / T);
      if (bytes[start + q * T + k] > most[x]) most[x] = bytes[start + q * T + k];
    }
  }
  [canvas.width, canvas.height] = [n, n];
  const context = canvas.getContext("2d");
  const image = context.createImageData(n, n);
  most.forEach((byte, i) => image.data.set([43, 87, 167, byte], 4 * i));
  context.putImageData(image, 0, 0);
}
const maps = [];
const grid = make("table", { class: "maps" }, make("caption", {}, "Each head: tokens that attend down, tokens attended to across"));
for (let layer = data.layers - 1; layer >= 0; layer--) {
  const cells = [];
  for (let head = -1; head < data.heads; head++) {
    const name = head < 0 ? "mean" : `head ${head}`;
    const button = make("button", {
      type: "button", class: "map", title: `layer ${layer}, ${name}`, "aria-label": `layer ${layer}, ${name}`,
      onclick: () => { [state.layer, state.head] = [layer, head]; paint(); },
    });
    const canvas = head < 0 ? null : make("canvas");
    button.append(canvas ?? "mean");
    maps.push({ button, layer, head, canvas });
    cells.push(make("td", {}, button));
  }
  grid.append(make("tr", {}, make("th", { scope: "row" }, `layer ${layer}`), ...cells));
}
// Maps are drawn when they come into view, so that a model with many heads opens at once.
const seen = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) {
    const map = isIntersecting && maps.find((each) => each.button === target);
    if (!map) continue;
    seen.unobserve(target);
    draw(map.canvas, map.layer, map.head);
  }
});
for (const map of maps) if (map.canvas) seen.observe(map.button);

const turn = make("button", {
  type: "button",
  onclick: () => {
    state.to = !state.to;
    turn.textContent = state.to ? "Show which tokens it attends to" : "Show who attends to it";
    paint();
  },
}, "Show who attends to it");
view.append(
  make("p", {}, "Point at a token to see which tokens it attends to; click to keep it, or move with the arrow keys. " +
    "Choose a head below. The darkest token has the largest weight."),
  make("div", { class: "controls" }, turn), said, text, make("div", { class: "wide" }, grid));
paint();
words[state.at].scrollIntoView({ block: "nearest" });
