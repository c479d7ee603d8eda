// Open the panel of a token by pointer, touch and keyboard.

import { moveFocus } from "./tokens.js";

const HOVER = 120; // ms before the panel opens

// `nodeOf(id)` returns the message of an article.
export function listenToTokens(log, panel, nodeOf) {
  let hover = null;
  const tokenAt = (target) => {
    const span = target?.closest?.(".token[data-index]");
    const node = span && nodeOf(span.closest("article").dataset.id);
    return node ? [span, node, Number(span.dataset.index)] : null;
  };

  log.addEventListener("pointerover", (event) => {
    clearTimeout(hover);
    const at = event.pointerType === "touch" ? null : tokenAt(event.target);
    if (at) hover = setTimeout(() => panel.show(...at), HOVER);
    else if (panel.open) panel.hideSoon();
  });
  log.addEventListener("pointerleave", () => {
    clearTimeout(hover);
    panel.hideSoon();
  });
  log.addEventListener("focusin", (event) => {
    const at = tokenAt(event.target);
    if (at && event.target.matches(":focus-visible")) panel.show(...at);
  });
  log.addEventListener("focusout", (event) => {
    if (!tokenAt(event.relatedTarget) && !panel.box.contains(event.relatedTarget)) panel.hideSoon();
  });
  log.addEventListener("click", (event) => {
    const at = tokenAt(event.target);
    if (at) panel.show(...at, { pinned: true });
  });
  log.addEventListener("keydown", (event) => {
    const at = tokenAt(event.target);
    if (!at) return;
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      panel.show(...at, { pinned: true, focus: true });
    } else if (["ArrowLeft", "ArrowRight", "Home", "End"].includes(event.key)) {
      event.preventDefault();
      moveFocus(at[0], event.key);
    }
  });
  log.addEventListener("scroll", () => { if (!panel.pinned) panel.close(false); }, { passive: true });
}
