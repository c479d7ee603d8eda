// The part of the page's address after "#": the model in view, and the conversation with it.  Back, Forward,
// bookmarks and links to a new tab work, and a proxy sees the same path for all of them.

import { read, write } from "./store.js";

const LAST = "last address";

// Return {model, conversation}; a part that the address lacks is null.
export function readAddress() {
  return parsed(location.hash);
}

// Return the address that this browser has shown last.
export function lastAddress() {
  return parsed(read(LAST) ?? "");
}

export function rememberAddress() {
  write(LAST, location.hash);
}

function parsed(hash) {
  const fields = new URLSearchParams(hash.replace(/^#/, ""));
  return { model: fields.get("model"), conversation: fields.get("conversation") };
}

// Return the address of a model, or of a conversation with it, for a link.
export function addressOf({ model, conversation = null }) {
  return `#${new URLSearchParams(conversation ? { model, conversation } : { model })}`;
}

// Go to another address; the page then shows what it names.
export function go(address) {
  location.hash = addressOf(address);
}

// Name what the page shows already, as a new step for Back.
export function pushAddress(address) {
  if (addressOf(address) === location.hash) return;
  history.pushState(null, "", addressOf(address));
  rememberAddress();
}

// Name what the page shows already, in place of the last address.
export function replaceAddress(address) {
  if (addressOf(address) === location.hash) return;
  history.replaceState(null, "", addressOf(address));
  rememberAddress();
}
