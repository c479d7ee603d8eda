// Shared by all pages: the data of the page, and small elements.
const read = (name) => JSON.parse(document.getElementById(name).textContent);

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value === true) element.setAttribute(key, "");
    else if (value !== false && value !== undefined) element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}

// White space is shown by a sign, so that a token of it can be seen.
const shown = (token) => token.replaceAll(" ", "␣").replaceAll("\n", "↵").replaceAll("\t", "⇥") || "∅";

const percent = (share) => `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %`;

// The blue of a share from 0 to 1, which text in the page's colour can be read on.
const shade = (share) => `color-mix(in srgb, var(--accent) ${Math.round(55 * share)}%, transparent)`;
