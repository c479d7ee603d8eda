// A conversation is a tree of messages.  Each node knows which of its children is shown, so the shown messages
// are a path from the root to a leaf.

export const VERSION = 1;

export function newId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export function newConversation(model, kind) {
  const root = { id: "root", parent: null, role: "root", content: "", children: [], shown: 0 };
  const now = Date.now();
  return {
    version: VERSION, id: newId(), title: "", model, kind, system: "", systemTime: 0, created: now, updated: now, nodes: { root },
  };
}

// Change the system message.  Each change gets a later time, even if the clock was set back.
export function setSystem(conversation, text) {
  conversation.system = text;
  conversation.systemTime = Math.max(Date.now(), conversation.systemTime + 1);
}

// Add a message below `parent`, and show it.
export function addNode(conversation, parent, message) {
  const node = { id: newId(), parent: parent.id, children: [], shown: 0, ...message };
  conversation.nodes[node.id] = node;
  parent.children.push(node.id);
  parent.shown = parent.children.length - 1;
  conversation.updated = Date.now();
  return node;
}

// Return the shown messages.
export function shownPath(conversation) {
  const path = [];
  let node = conversation.nodes.root;
  while (node.children.length > 0) {
    node = conversation.nodes[node.children[node.shown]];
    path.push(node);
  }
  return path;
}

// Return the messages from the first one to `node`.
export function pathTo(conversation, node) {
  const path = [];
  for (let each = node; each.parent !== null; each = conversation.nodes[each.parent]) path.unshift(each);
  return path;
}

// Return the number of `node` among the versions of this message, from 1, and how many there are.
export function versionOf(conversation, node) {
  const { children } = conversation.nodes[node.parent];
  return { number: children.indexOf(node.id) + 1, count: children.length };
}

// Show the version before (-1) or after (1) that of `node`.
export function showVersion(conversation, node, step) {
  const parent = conversation.nodes[node.parent];
  const wanted = parent.children.indexOf(node.id) + step;
  if (wanted >= 0 && wanted < parent.children.length) parent.shown = wanted;
}

// Add the messages of `other`, another copy of this conversation, that are missing here: those of another window.
// Of an answer that both have, the one with more tokens stays; of the system messages, the newer one stays.  Return the
// ids of all new and changed messages.
export function merge(conversation, other) {
  const { nodes } = conversation;
  const changed = [];
  for (const node of Object.values(other.nodes)) {
    const known = nodes[node.id];
    if (!known) {
      nodes[node.id] = { ...node, children: [...node.children] };
      changed.push(node.id);
      continue;
    }
    known.children.push(...node.children.filter((id) => !known.children.includes(id)));
    if ((node.tokens?.length ?? 0) > (known.tokens?.length ?? 0)) {
      const { content, tokens, finish, error, speed, kept, made } = node;
      Object.assign(known, { content, tokens, finish, error, speed, kept, made });
      changed.push(node.id);
    }
  }
  if (other.systemTime > conversation.systemTime) {
    const { system, systemTime } = other;
    Object.assign(conversation, { system, systemTime });
  }
  conversation.updated = Math.max(conversation.updated, other.updated);
  return changed;
}

// Return the names of the models that have answered, the latest one first.
export function modelsOf(conversation) {
  const answers = Object.values(conversation.nodes).filter((node) => node.role === "assistant");
  return [...new Set([conversation.model, ...answers.map((node) => node.model).reverse()])].filter(Boolean);
}

export function titleOf(conversation) {
  const first = conversation.nodes[conversation.nodes.root.children[0]]?.content ?? "";
  return conversation.title || first.trim().replace(/\s+/g, " ").slice(0, 60) || "New conversation";
}
