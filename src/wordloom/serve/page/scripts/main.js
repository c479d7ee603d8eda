// Start the page: list the models, and show the view of the chosen one.

import { getJson } from "./api.js";
import { openCard } from "./card.js";
import { button, dismissNotice, element, notify } from "./dom.js";
import { viewOf } from "./kinds.js";
import { read, write } from "./store.js";
import { setUpTheme } from "./theme.js";

const chooser = document.getElementById("model");
const cardButton = document.getElementById("card-button");
const place = document.getElementById("view");
let shown = { close() {} };
let card = null;
let latest = 0;
const LOADS_AFTER = 800; // ms, before the page says that a model is being loaded

// Show the view of a model; `opening` is passed on to it, such as the conversation to open.
async function choose(name, opening = null) {
  const turn = ++latest;
  dismissNotice();
  place.setAttribute("aria-busy", "true");
  cardButton.disabled = true;
  const slow = setTimeout(() => notify("The model is being loaded…"), LOADS_AFTER);
  try {
    const found = await getJson(`v1/models/${name.split("/").map(encodeURIComponent).join("/")}/card`);
    const show = await viewOf(found);
    if (turn !== latest) return; // another model was chosen in the meantime
    clearTimeout(slow);
    dismissNotice();
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
    clearTimeout(slow);
    if (turn === latest) place.setAttribute("aria-busy", "false");
  }
}

function start() {
  setUpTheme(document.getElementById("theme-button"));
  cardButton.addEventListener("click", () => openCard(card));
  chooser.addEventListener("change", () => choose(chooser.value));
  list();
}

async function list() {
  dismissNotice();
  try {
    const names = (await getJson("v1/models")).data.map((model) => model.id);
    chooser.replaceChildren(...names.map((name) => element("option", { value: name }, name)));
    const before = read("model");
    await choose(names.includes(before) ? before : names[0]);
  } catch (error) {
    place.replaceChildren(element("p", { class: "centred" }, "The models cannot be listed. ", button("Try again", list)));
    place.setAttribute("aria-busy", "false");
    notify(error.message);
  }
}

start();
