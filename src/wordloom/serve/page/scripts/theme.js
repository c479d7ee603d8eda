// Light, dark, or the setting of the system.

import { read, write } from "./store.js";

const THEMES = ["auto", "light", "dark"];

export function setUpTheme(toggle) {
  let theme = THEMES.includes(read("theme")) ? read("theme") : "auto";
  const show = () => {
    document.documentElement.dataset.theme = theme;
    toggle.textContent = `Theme: ${theme}`;
  };
  toggle.addEventListener("click", () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    write("theme", theme);
    show();
  });
  show();
}
