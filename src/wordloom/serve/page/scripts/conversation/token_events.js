// Open the panel of a token by pointer, touch and keyboard.

import { moveFocus } from "./tokens.js";

// `nodeOf(id)` returns the message of an article.
export function listenToTokens(log, panel, nodeOf) {
  let pointed = null; // the token below the pointer
  const tokenAt = (target) => {
    const span = target?.closest?.(".token[data-index]");
    const node = span && nodeOf(span.closest("article").dataset.id);
    return node ? [span, node, Number(span.dataset.index)] : null;
  };

  // The browser fires pointerover, but not pointermove, when an element comes to lie below a pointer at rest.
  log.addEventListener("pointermove", (event) => {
    const at = event.pointerType === "touch" ? null : tokenAt(event.target);
    const span = at ? at[0] : null;
    if (span === pointed) return;
    pointed = span;
    if (at) panel.showSoon(...at);
    else panel.hideSoon();
  });
  log.addEventListener("pointerleave", () => {
    pointed = null;
    panel.hideSoon();
  });
  log.addEventListener("focusin", (event) => {
    const at = tokenAt(event.target);
    if (at && event.target.matches(":focus-visible") && !panel.isReturning) panel.show(...at);
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
