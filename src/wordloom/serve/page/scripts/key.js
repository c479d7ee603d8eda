// The API key, which the browser keeps until the tab is closed.

import { button, element } from "./dom.js";

const NAME = "wordloom-api-key";
let asking = null;

export function currentKey() {
  return sessionStorage.getItem(NAME);
}

// Ask for the key; requests that fail at the same time share the question.
export function askForKey(refused) {
  asking ??= ask(refused).finally(() => (asking = null));
  return asking;
}

function ask(refused) {
  sessionStorage.removeItem(NAME);
  return new Promise((resolve) => {
    const input = element("input", { type: "password", id: "api-key", autocomplete: "off", required: true });
    const form = element(
      "form",
      { method: "dialog" },
      element("h2", { id: "key-heading" }, "API key"),
      element("p", {}, refused ? "The server refused this key." : "This server asks for an API key."),
      element("label", { for: "api-key" }, "Key"),
      input,
      element("p", { class: "row" }, element("button", { type: "submit" }, "Use this key"),
        button("Cancel", () => dialog.close())),
    );
    const dialog = element("dialog", { class: "small", "aria-labelledby": "key-heading" }, form);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      sessionStorage.setItem(NAME, input.value.trim());
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
