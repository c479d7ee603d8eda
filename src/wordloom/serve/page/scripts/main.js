// Start the page: list the models, and show the view of the chosen one.

import { getJson } from "./api.js";
import { openCard } from "./card.js";
import { dismissNotice, element, notify } from "./dom.js";
import { viewOf } from "./kinds.js";
import { read, write } from "./store.js";
import { setUpTheme } from "./theme.js";

const chooser = document.getElementById("model");
const cardButton = document.getElementById("card-button");
const place = document.getElementById("view");
let shown = { close() {} };
let card = null;
let latest = 0;

// Show the view of a model; `opening` is passed on to it, such as the conversation to open.
async function choose(name, opening = null) {
  const turn = ++latest;
  dismissNotice();
  place.setAttribute("aria-busy", "true");
  cardButton.disabled = true;
  try {
    const found = await getJson(`v1/models/${name.split("/").map(encodeURIComponent).join("/")}/card`);
    const show = await viewOf(found);
    if (turn !== latest) return; // another model was chosen in the meantime
    shown.close();
    card = found;
    chooser.value = name;
    cardButton.disabled = false;
    write("model", name);
    place.replaceChildren();
    shown = show(place, { card, opening, choose });
  } catch (error) {
    if (turn !== latest) return;
    if (card === null) place.replaceChildren(element("p", { class: "centred" }, "No model is loaded."));
    else chooser.value = card.id;
    cardButton.disabled = card === null;
    notify(error.message);
  } finally {
    if (turn === latest) place.setAttribute("aria-busy", "false");
  }
}

async function start() {
  setUpTheme(document.getElementById("theme-button"));
  cardButton.addEventListener("click", () => openCard(card));
  chooser.addEventListener("change", () => choose(chooser.value));
  try {
    const names = (await getJson("v1/models")).data.map((model) => model.id);
    chooser.replaceChildren(...names.map((name) => element("option", { value: name }, name)));
    const before = read("model");
    await choose(names.includes(before) ? before : names[0]);
  } catch (error) {
    place.replaceChildren(element("p", { class: "centred" }, "The models cannot be listed."));
    place.setAttribute("aria-busy", "false");
    notify(error.message);
  }
}

start();
