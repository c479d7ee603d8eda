// The outer columns.  A narrow window shows them as drawers above the messages: the rest of the page cannot be
// used until the drawer is closed, by its button, Esc, or a press outside.

import { button, element } from "../dom.js";

const WIDE = matchMedia("(min-width: 62.01rem)"); // as in layout.css

// Return a column with a heading; `tag` is the element of its landmark.
export function drawer(tag, id, label, ...content) {
  return element("div", { id, class: "drawer" },
    element(tag, { "aria-label": label },
      element("div", { class: "drawer-head" },
        element("h2", {}, label),
        button("Close", closeDrawers, { class: "drawer-close", "aria-label": `Close: ${label}` })),
      ...content));
}

// Return the button that opens a drawer.
export function drawerButton(label, id) {
  return button(label, () => open(id), { class: "drawer-button", "aria-haspopup": "dialog", "aria-controls": id, "aria-expanded": "false" });
}

function open(id) {
  const box = document.getElementById(id);
  box.classList.add("open");
  box.setAttribute("role", "dialog");
  box.setAttribute("aria-modal", "true");
  box.setAttribute("aria-label", box.querySelector("h2").textContent);
  for (const each of outside(box)) each.inert = true;
  box.before(element("div", { class: "drawer-backdrop", onclick: closeDrawers }));
  openerOf(id).setAttribute("aria-expanded", "true");
  box.querySelector(".drawer-close").focus();
  WIDE.addEventListener("change", closeDrawers, { once: true });
}

// Close the open drawer; the focus goes back to its button.  Return whether one was open.
export function closeDrawers() {
  const box = document.querySelector(".drawer.open");
  if (!box) return false;
  box.classList.remove("open");
  for (const name of ["role", "aria-modal", "aria-label"]) box.removeAttribute(name);
  for (const each of outside(box)) each.inert = false;
  document.querySelector(".drawer-backdrop").remove();
  const opener = openerOf(box.id);
  opener.setAttribute("aria-expanded", "false");
  opener.focus();
  return true;
}

// Everything that the drawer covers.  A notice stays in use, since it may be about the drawer.
function outside(box) {
  const columns = [...box.parentElement.children].filter((each) => each !== box && !each.matches(".drawer-backdrop"));
  return [document.querySelector("header"), ...columns];
}

const openerOf = (id) => document.querySelector(`.drawer-button[aria-controls="${id}"]`);
