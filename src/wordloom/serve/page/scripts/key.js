// The API key, which the browser keeps until the tab is closed, or until a reload if it blocks the storage.

import { button, element } from "./dom.js";

const NAME = "wordloom-api-key";
const CHARACTERS = /^[ -~]+$/; // those of ASCII that a header can hold
const WRONG = "A key consists of ASCII letters, digits and punctuation.";
let asking = null;
let unstored = null; // the key, if the browser blocks the storage

// Return the key, or null; a header cannot hold other characters.
export function currentKey() {
  const key = storedKey();
  return key !== null && CHARACTERS.test(key) ? key : null;
}

function storedKey() {
  try {
    return unstored ?? sessionStorage.getItem(NAME);
  } catch {
    return null;
  }
}

function storeKey(key) {
  unstored = null;
  try {
    sessionStorage.setItem(NAME, key);
  } catch {
    unstored = key;
  }
}

function forgetKey() {
  unstored = null;
  try {
    sessionStorage.removeItem(NAME);
  } catch {
    // a browser that blocks the storage holds no key
  }
}

// Ask for the key; requests that fail at the same time share the question.
export function askForKey(refused) {
  asking ??= ask(refused).finally(() => (asking = null));
  return asking;
}

function ask(refused) {
  forgetKey();
  return new Promise((resolve) => {
    const problem = element("p", { id: "key-problem", class: "problem", role: "alert" });
    const input = element("input", {
      type: "password", id: "api-key", autocomplete: "off", required: true, "aria-describedby": problem.id,
    });
    const form = element(
      "form",
      { method: "dialog" },
      element("h2", { id: "key-heading" }, "API key"),
      element("p", {}, refused ? "The server refused this key." : "This server asks for an API key."),
      element("label", { for: "api-key" }, "Key"),
      input,
      problem,
      element("p", { class: "row" }, element("button", { type: "submit" }, "Use this key"),
        button("Cancel", () => dialog.close())),
    );
    const dialog = element("dialog", { class: "small", "aria-labelledby": "key-heading" }, form);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const key = input.value.trim();
      if (!CHARACTERS.test(key)) {
        problem.textContent = WRONG;
        input.select();
        return;
      }
      storeKey(key);
      dialog.close("given");
    });
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "given");
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}
