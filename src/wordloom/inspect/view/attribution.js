// The text, each token coloured by its attribution: orange adds to the score, blue takes from it.
const data = read("attribution");
const view = document.getElementById("view");
const most = Math.max(0, ...data.values.map(Math.abs)) || 1;
const colour = (value) =>
  `color-mix(in srgb, ${value > 0 ? "#d55e00" : "#0072b2"} ${Math.round((60 * Math.abs(value)) / most)}%, transparent)`;
const signed = (value) => `${value < 0 ? "−" : "+"}${Math.abs(value).toPrecision(3)}`;

const words = data.tokens.map((token, at) => make("span", {
  class: "token", style: `background:${colour(data.values[at])}`, title: signed(data.values[at]),
}, shown(token)));
const rows = data.tokens.map((token, at) => make("tr", {},
  make("th", { scope: "row" }, shown(token)), make("td", {}, signed(data.values[at])))); 
view.append(
  make("p", {}, "Orange tokens add to the score, blue ones take from it."),
  make("div", { class: "text" }, ...words),
  make("table", {}, make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "token"), make("th", { scope: "col" }, "adds"))),
    make("tbody", {}, ...rows)));
