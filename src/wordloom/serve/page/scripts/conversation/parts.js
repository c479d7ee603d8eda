// The parts around the messages: the bar above them, the box to write in, and the settings.

import { button, element } from "../dom.js";
import { drawer, drawerButton } from "./drawers.js";
import { legend } from "./tokens.js";

// The bar with the switch of the probabilities; narrow windows have buttons for the outer columns in it.
export function tokenBar(shows, onchange) {
  const toggle = element("input", { type: "checkbox", id: "shows-tokens", checked: shows });
  const key = legend();
  key.hidden = !shows;
  toggle.addEventListener("change", () => {
    key.hidden = !toggle.checked;
    onchange(toggle.checked);
  });
  return element("div", { class: "token-bar" },
    drawerButton("Conversations", "conversations"),
    drawerButton("Settings", "settings"),
    element("span", { class: "toggle" }, toggle, element("label", { for: "shows-tokens" }, "Probabilities")),
    key);
}

// The box to write in, with a button to send or to stop.
export function composer(format, { submit, stop, typed }) {
  const draft = element("textarea", { id: "draft", rows: 2, placeholder: format.placeholder, oninput: typed });
  const send = element("button", { type: "submit", id: "send" }, format.send);
  const stopButton = button("Stop", stop, { id: "stop", hidden: true, title: "Stop (Esc)" });
  const form = element("form", { id: "composer" },
    element("label", { for: "draft", class: "visually-hidden" }, format.labels.user), draft, send, stopButton);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  draft.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    submit();
  });

  // While an answer is written, the button stops it; the focus never falls out of the box.
  function showRunning(runs) {
    const loses = [send, stopButton, document.body].includes(document.activeElement);
    send.hidden = runs;
    stopButton.hidden = !runs;
    if (loses) draft.focus();
  }

  return { form, draft, showRunning };
}

// The settings: those of sampling, and the system message if `system` is a box for it.
export function settingsPanel(sampling, system) {
  const message = system === null ? [] : [element("label", { for: "system" }, "System message"), system];
  return drawer("aside", "settings", "Settings",
    element("div", { class: "sampling" }, ...message), sampling);
}
