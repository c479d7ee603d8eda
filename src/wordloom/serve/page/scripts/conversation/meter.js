// The line below the box: the state, the speed, and how full the context is.

import { element } from "../dom.js";

export function statusLine() {
  const text = element("span", { id: "status" }, "Ready");
  const counts = element("span", { id: "context-text" });
  const meter = element("meter", { id: "context-meter", min: 0, max: 1, value: 0, low: 0.75, high: 0.9, optimum: 0, "aria-label": "Context in use" });
  const line = element("p", { class: "status-line" }, text, element("span", { class: "space" }), counts, meter);
  meter.hidden = true;

  return {
    line,
    say: (message) => (text.textContent = message),
    add: (message) => text.append(`. ${message}`),
    // Show that `used` tokens of `context` are in use.
    fill(used, context) {
      meter.hidden = !context;
      if (!context) return;
      meter.max = context;
      meter.low = 0.75 * context;
      meter.high = 0.9 * context;
      meter.value = Math.min(used, context);
      counts.textContent = `${used.toLocaleString("en")} of ${context.toLocaleString("en")} tokens`;
    },
  };
}

const OUTCOMES = { stopped: "Stopped", error: "Failed" };

// Return the line about an answer that has ended, and which of its versions it is.
export function ended(node, { number, count }) {
  const outcome = OUTCOMES[node.finish] ?? "Done";
  const version = count > 1 ? ` (version ${number} of ${count})` : "";
  return node.tokens.length > 0 ? `${outcome}: ${measured(node.tokens.length, node.speed)}${version}` : outcome + version;
}

function measured(count, perSecond) {
  const tokens = `${count.toLocaleString("en")} ${count === 1 ? "token" : "tokens"}`;
  return perSecond ? `${tokens}, ${perSecond.toFixed(perSecond < 10 ? 1 : 0)} tokens/s` : tokens;
}

// Counts the tokens of an answer that arrives.
export class Speed {
  constructor() {
    this.count = 0;
    this.began = null;
    this.last = null;
  }

  add(n) {
    this.last = performance.now();
    if (this.began === null) this.began = this.last; // the first token waits for the prompt
    this.count += n;
  }

  // Tokens per second after the first one; 0 while there is too little to measure.
  get perSecond() {
    const seconds = (this.last - this.began) / 1000;
    return seconds > 0 ? (this.count - 1) / seconds : 0;
  }

  get text() {
    return measured(this.count, this.perSecond);
  }
}
