// Build elements.  Children that are strings become text nodes, so text is never read as HTML.

export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") made.className = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name.startsWith("aria-") || name.startsWith("data-") || name === "role" || name === "for") {
      made.setAttribute(name, String(value));
    } else made[name] = value;
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export function button(label, onclick, properties = {}) {
  return element("button", { type: "button", onclick, ...properties }, label);
}

// Show a modal dialog with a heading and a close button.  Esc and a press outside close it too.
export function openDialog(heading, ...children) {
  const back = document.activeElement;
  const title = element("h2", { id: "dialog-heading" }, heading);
  const dialog = element(
    "dialog",
    { "aria-labelledby": "dialog-heading" },
    element("div", { class: "dialog-head" }, title, button("Close", () => dialog.close())),
    ...children,
  );
  dialog.addEventListener("close", () => {
    dialog.remove();
    if (back?.isConnected) back.focus();
  });
  // a press on the backdrop has the dialog as its target
  dialog.addEventListener("pointerdown", (event) => {
    if (event.target === dialog && isOutside(event, dialog.getBoundingClientRect())) dialog.close();
  });
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

function isOutside({ clientX, clientY }, { left, right, top, bottom }) {
  return clientX < left || clientX > right || clientY < top || clientY > bottom;
}

export function closeDialogs() {
  for (const dialog of document.querySelectorAll("dialog[open]")) dialog.close();
}

// Show an error or another message above everything else, perhaps with the button of an `action`.
export function notify(message, action = null) {
  const notice = document.getElementById("notice");
  const act = action && button(action.label, () => {
    notice.hidden = true;
    action.run();
  });
  notice.replaceChildren(message, " ", ...(act ? [act, " "] : []), button("Dismiss", () => (notice.hidden = true)));
  notice.hidden = false;
}

export function dismissNotice() {
  document.getElementById("notice").hidden = true;
}

// Have a screen reader say a finished text.
export function announce(text) {
  document.getElementById("announcer").textContent = text;
}

export function percent(share) {
  if (share === 0) return "0 %";
  if (share < 0.001) return "<0.1 %";
  return `${(share * 100).toFixed(share < 0.1 ? 1 : 0)} %`;
}
