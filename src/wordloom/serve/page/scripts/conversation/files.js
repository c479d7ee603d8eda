// Conversations as JSON, with all branches: for export, import and the browser's storage.

import { checkedMade } from "./made.js";
import { newId, VERSION } from "./tree.js";

const ROLES = ["user", "assistant"];
const FINISHES = ["stop", "length", "full", "stopped", "error"];

// Return the text of an exported conversation.
export function exported(conversation) {
  return JSON.stringify({ wordloom: "conversation", ...conversation }, null, 1);
}

// Return the conversation in a text; it gets a new id.  Throws an Error that says what is wrong.
export function imported(text) {
  let found;
  try {
    found = JSON.parse(text);
  } catch {
    throw new Error("The file is not JSON.");
  }
  return { ...checked(found), id: newId() };
}

// Return a copy with the fields of a conversation alone, each of its type.  Throws an Error for anything else.
export function checked(found) {
  require(isObject(found) && isObject(found.nodes), "The file holds no conversation.");
  require(found.version === VERSION, `The conversation has version ${found.version}; this page reads ${VERSION}.`);
  const nodes = {};
  for (const [id, node] of Object.entries(found.nodes)) {
    require(isObject(node) && node.id === id && Array.isArray(node.children), "A message is damaged.");
    nodes[id] = id === "root" ? rootOf(node) : messageOf(node);
  }
  require(nodes.root, "The conversation has no root.");
  requireTree(nodes);
  return {
    version: VERSION,
    id: text(found.id),
    title: text(found.title),
    model: text(found.model),
    kind: found.kind === "completion" ? "completion" : "chat",
    system: text(found.system),
    systemTime: number(found.systemTime), // older files lack it
    created: number(found.created),
    updated: number(found.updated),
    nodes,
  };
}

function rootOf(node) {
  return { id: "root", parent: null, role: "root", content: "", children: node.children.map(text), shown: number(node.shown) };
}

function messageOf(node) {
  require(ROLES.includes(node.role), "A message has an unknown role.");
  const message = {
    id: text(node.id), parent: text(node.parent), role: node.role, content: text(node.content),
    children: node.children.map(text), shown: number(node.shown),
  };
  if (node.role === "user") return message;
  return {
    ...message,
    model: text(node.model),
    finish: FINISHES.includes(node.finish) ? node.finish : "stopped",
    error: text(node.error),
    speed: number(node.speed),
    kept: number(node.kept),
    made: checkedMade(node.made),
    tokens: Array.isArray(node.tokens) ? node.tokens.map(tokenOf) : [],
  };
}

function tokenOf(token) {
  require(isObject(token) && Number.isInteger(token.id), "A token is damaged.");
  const alternatives = Array.isArray(token.alternatives) ? token.alternatives : [];
  return {
    id: token.id, text: text(token.text), logprob: logprob(token.logprob), ends: token.ends === true,
    alternatives: alternatives.filter(isObject).map((each) => ({
      id: number(each.id), token: text(each.token), logprob: logprob(each.logprob), kept: share(each.kept),
      ends: each.ends === true,
    })),
  };
}

// Every message must be reached from the root exactly once.
function requireTree(nodes) {
  const seen = new Set();
  const waiting = [nodes.root];
  while (waiting.length > 0) {
    const node = waiting.pop();
    require(!seen.has(node.id), "The messages form no tree.");
    seen.add(node.id);
    if (node.children.length > 0) node.shown = Math.min(Math.max(0, Math.trunc(node.shown)), node.children.length - 1);
    for (const id of node.children) {
      require(Object.hasOwn(nodes, id) && nodes[id].parent === node.id, "The messages form no tree.");
      waiting.push(nodes[id]);
    }
  }
  require(seen.size === Object.keys(nodes).length, "The messages form no tree.");
}

function require(condition, message) {
  if (!condition) throw new Error(message);
}

function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function text(value) {
  return typeof value === "string" ? value : "";
}

function number(value) {
  return Number.isFinite(value) ? value : 0;
}

// No probability exceeds 1; rounding may have made one slightly larger.
function logprob(value) {
  return Math.min(number(value), 0);
}

function share(value) {
  return Math.min(Math.max(number(value), 0), 1);
}
