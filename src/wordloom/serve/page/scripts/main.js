// Start the page: list the models, and show the one that the address names.

import { go, lastAddress, readAddress, rememberAddress, replaceAddress } from "./address.js";
import { getJson } from "./api.js";
import { openCard } from "./card.js";
import { load as loadConversation } from "./conversation/storage.js";
import { titleOf } from "./conversation/tree.js";
import { button, closeDialogs, dismissNotice, element, notify } from "./dom.js";
import { conversationKind, viewOf } from "./kinds.js";
import { setUpTheme } from "./theme.js";

const chooser = document.getElementById("model");
const cardButton = document.getElementById("card-button");
const place = document.getElementById("view");
const NOTHING = { close() {} };
const LOADS_AFTER = 800; // ms, before the page says that a model is being loaded
const kinds = new Map(); // of the conversations with each model whose card is known, by the model's name
let names = [];
let shown = NOTHING;
let card = null;
let carried = null; // the conversation to show with the model of the next address
let latest = 0;

// Show what the address names.
async function visit() {
  const turn = ++latest;
  const taken = carried;
  carried = null;
  closeDialogs();
  dismissNotice();
  let address = readAddress();
  if (address.model === null) {
    address = beginning();
    replaceAddress(address);
  }
  const { model, conversation = null } = address;
  try {
    if (!names.includes(model)) await list(); // the server may have other models by now
  } catch (error) {
    return showProblem(model, error.message, button("Try again", visit));
  }
  if (turn !== latest) return;
  rememberAddress();
  if (!names.includes(model)) return showAbsent(model, conversation);
  chooser.value = model;
  if (card?.id !== model) return load(model, { conversation, taken }, turn);
  shown.visit?.(conversation, taken);
  shown.focus?.();
  cardButton.disabled = false;
  place.setAttribute("aria-busy", "false");
}

// Return the address to begin with: the last one, if the server still has its model.
function beginning() {
  const { model, conversation } = lastAddress();
  if (!names.includes(model)) return { model: names[0] };
  return { model, conversation: loadConversation(conversation) ? conversation : null };
}

// Load a model, and show its view.
async function load(model, { conversation, taken }, turn) {
  place.setAttribute("aria-busy", "true");
  cardButton.disabled = true;
  const slow = setTimeout(() => { if (turn === latest) notify("The model is being loaded…"); }, LOADS_AFTER);
  try {
    const found = await cardOf(model);
    const show = await viewOf(found);
    if (turn !== latest) return; // another address was chosen in the meantime
    dismissNotice();
    const isFirst = shown === NOTHING;
    clear();
    card = found;
    cardButton.disabled = false;
    document.title = `${model} · Wordloom`;
    shown = show(place, { card, conversation, taken, models: { serves, modelFor, open } });
    if (!isFirst) shown.focus?.();
  } catch (error) {
    if (turn !== latest) return;
    dismissNotice();
    showProblem(model, `The model “${model}” cannot be shown. ${error.message}`, button("Try again", visit));
  } finally {
    clearTimeout(slow);
    if (turn === latest) place.setAttribute("aria-busy", "false");
  }
}

async function cardOf(model) {
  const found = await getJson(`v1/models/${model.split("/").map(encodeURIComponent).join("/")}/card`);
  kinds.set(model, conversationKind(found));
  return found;
}

// -- models for conversations, which the views of conversations ask for ---------------------------------------

// Return whether the server has a model, and whether the model has conversations of this kind.  The page does not
// know the kind of a model before it has read the model's card.
function serves(model, kind = null) {
  return names.includes(model) && (kind === null || !kinds.has(model) || kinds.get(model) === kind);
}

// Return the name of a model for a conversation, or null.  The conversation's own model comes first, then the one in
// view; any other model of the right kind is the last resort, since the server may have to load each of them.
async function modelFor({ model, kind }) {
  const turn = latest;
  place.setAttribute("aria-busy", "true");
  const slow = setTimeout(() => notify("The model is being loaded…"), LOADS_AFTER);
  try {
    for (const name of new Set([model, card?.id, ...kinds.keys(), ...names])) {
      if (names.includes(name) && (await kindOf(name)) === kind) return name;
    }
    return null;
  } finally {
    clearTimeout(slow);
    if (turn === latest) {
      dismissNotice();
      place.setAttribute("aria-busy", "false");
    }
  }
}

// Return the kind of the conversations with a model; null for a model without any, and one that cannot be loaded.
async function kindOf(model) {
  if (kinds.has(model)) return kinds.get(model);
  try {
    return conversationKind(await cardOf(model));
  } catch (error) {
    if (error.status !== 503) throw error;
    return null;
  }
}

// Show a conversation with another model; `isStored` says whether its address leads to it.
function open(model, conversation, isStored) {
  carried = conversation;
  go({ model, conversation: isStored ? conversation.id : null });
}

// -- problems ---------------------------------------------------------------------------------------------------

// Say that the server lacks a model; the conversation with it goes on with the one that is chosen instead.
function showAbsent(model, id) {
  const conversation = loadConversation(id);
  const kept = conversation ? ` to continue “${titleOf(conversation)}”` : "";
  showProblem(model, `The server has no model “${model}”.`, `Choose another one above${kept}.`);
  shown = { ...NOTHING, conversation };
}

// Show in place of a view why the address leads to none.
function showProblem(model, ...said) {
  clear();
  chooser.value = names.includes(model) ? model : "";
  cardButton.disabled = true;
  document.title = "Wordloom";
  place.append(element("div", { class: "centred", role: "alert" }, ...said.map((each) => element("p", {}, each))));
  place.setAttribute("aria-busy", "false");
}

function clear() {
  shown.close();
  shown = NOTHING;
  card = null;
  place.replaceChildren();
}

function start() {
  setUpTheme(document.getElementById("theme-button"));
  cardButton.addEventListener("click", () => openCard(card));
  chooser.addEventListener("change", () => {
    place.setAttribute("aria-busy", "true");
    carried = shown.conversation ?? null;
    go({ model: chooser.value });
  });
  begin();
}

async function begin() {
  dismissNotice();
  try {
    await list();
    addEventListener("hashchange", visit);
    await visit();
  } catch (error) {
    place.replaceChildren(element("p", { class: "centred" }, "The models cannot be listed. ", button("Try again", begin)));
    place.setAttribute("aria-busy", "false");
    notify(error.message);
  }
}

async function list() {
  names = (await getJson("v1/models")).data.map((model) => model.id);
  chooser.replaceChildren(...names.map((name) => element("option", { value: name }, name)));
}

start();
