// Conversations in the browser's storage: a list, and a value for each conversation.

import { read, remove, write } from "../store.js";
import { checked } from "./files.js";
import { titleOf } from "./tree.js";

const LIST = "conversations";
const WITH_ALTERNATIVES = 40; // answers; the alternatives of older ones would fill the storage

const forgotten = new Set(); // an answer that still arrives does not bring a conversation back

const nameOf = (id) => `conversation ${id}`;

// Return the conversations of a kind, the newest first: {id, title, model, kind, updated}.
export function listed(kind) {
  const found = read(LIST);
  return (Array.isArray(found) ? found : []).filter((each) => each.kind === kind).sort((a, b) => b.updated - a.updated);
}

// Return a stored conversation, or null.
export function load(id) {
  try {
    return checked(read(nameOf(id)));
  } catch {
    return null;
  }
}

// Return whether the conversation was stored.
export function save(conversation) {
  if (forgotten.has(conversation.id)) return true;
  const answers = Object.values(conversation.nodes).filter((node) => node.role === "assistant");
  const older = new Set(answers.slice(0, -WITH_ALTERNATIVES).map((node) => node.id));
  const nodes = Object.entries(conversation.nodes).map(([id, node]) => [id, older.has(id) ? withoutAlternatives(node) : node]);
  const { id, model, kind, updated } = conversation;
  const others = (read(LIST) ?? []).filter((each) => each.id !== id);
  const stored =
    write(nameOf(id), { ...conversation, nodes: Object.fromEntries(nodes) }) ||
    write(nameOf(id), { ...conversation, nodes: Object.fromEntries(nodes.map(([key, node]) => [key, withoutAlternatives(node)])) });
  return stored && write(LIST, [...others, { id, title: titleOf(conversation), model, kind, updated }]);
}

export function forget(id) {
  forgotten.add(id);
  remove(nameOf(id));
  write(LIST, (read(LIST) ?? []).filter((each) => each.id !== id));
}

function withoutAlternatives(node) {
  if (!node.tokens) return node;
  return { ...node, tokens: node.tokens.map(({ alternatives, ...token }) => token) };
}
