// Conversations in the browser's storage: a list, and a value for each conversation.

import { listen, read, remove, write } from "../store.js";
import { checked } from "./files.js";
import { merge, modelsOf, titleOf } from "./tree.js";

const LIST = "conversations";
const WITH_ALTERNATIVES = 40; // answers; the alternatives of older ones would fill the storage

const forgotten = new Set(); // an answer that still arrives does not bring a conversation back

const NAME = "conversation ";
const nameOf = (id) => `${NAME}${id}`;

// Return the conversations, the newest first: {id, title, model, models, kind, updated}.
export function listed() {
  const found = read(LIST);
  return (Array.isArray(found) ? found : []).sort((a, b) => b.updated - a.updated);
}

// Return the entry of a conversation in the list.
export function entryOf(conversation) {
  const { id, model, kind, updated } = conversation;
  return { id, title: titleOf(conversation), model, models: modelsOf(conversation), kind, updated };
}

// Return a stored conversation, or null.
export function load(id) {
  try {
    return checked(read(nameOf(id)));
  } catch {
    return null;
  }
}

// Store the conversation, with what another window has added to it.  Return whether it was stored.
export function save(conversation) {
  if (forgotten.has(conversation.id)) return true;
  const before = load(conversation.id);
  if (before) merge(conversation, before);
  const answers = Object.values(conversation.nodes).filter((node) => node.role === "assistant");
  const older = new Set(answers.slice(0, -WITH_ALTERNATIVES).map((node) => node.id));
  const nodes = Object.entries(conversation.nodes).map(([id, node]) => [id, older.has(id) ? withoutAlternatives(node) : node]);
  const { id } = conversation;
  const others = listed().filter((each) => each.id !== id);
  const stored =
    write(nameOf(id), { ...conversation, nodes: Object.fromEntries(nodes) }) ||
    write(nameOf(id), { ...conversation, nodes: Object.fromEntries(nodes.map(([key, node]) => [key, withoutAlternatives(node)])) });
  return stored && write(LIST, [...others, entryOf(conversation)]);
}

// Hear of what other windows do until `signal` is aborted: `stored(id)` and `deleted(id)` are called for a
// conversation, and `relisted()` when the list has changed.
export function listenToOthers({ stored, deleted, relisted }, signal) {
  listen((name, exists) => {
    if (name === LIST) relisted();
    if (!name.startsWith(NAME)) return;
    const id = name.slice(NAME.length);
    if (exists) {
      forgotten.delete(id); // the other window has undone the deletion
      return stored(id);
    }
    forgotten.add(id);
    deleted(id);
  }, signal);
}

export function forget(id) {
  forgotten.add(id);
  remove(nameOf(id));
  write(LIST, listed().filter((each) => each.id !== id));
}

// Store a conversation that was deleted.
export function remember(conversation) {
  forgotten.delete(conversation.id);
  save(conversation);
}

function withoutAlternatives(node) {
  if (!node.tokens) return node;
  return { ...node, tokens: node.tokens.map(({ alternatives, ...token }) => token) };
}
