// The sampling settings.  An empty field leaves the setting to the checkpoint, whose value it shows.

import { button, element } from "../dom.js";
import { read, write } from "../store.js";

const FIELDS = [
  { name: "temperature", label: "Temperature", min: 0, max: 100, step: "any", none: "1" },
  { name: "top_k", label: "Top k", min: 0, step: 1, none: "off" },
  { name: "top_p", label: "Top p", min: 0.001, max: 1, step: "any", none: "off" },
  { name: "min_p", label: "Min p", min: 0, max: 1, step: "any", none: "off" },
  { name: "repetition_penalty", label: "Repetition penalty", min: 0.01, max: 100, step: "any", none: "1" },
  { name: "max_tokens", checkpoint: "max_new_tokens", label: "Max tokens", min: 1, step: 1, none: "up to the context" },
  { name: "seed", label: "Seed", min: 0, max: Number.MAX_SAFE_INTEGER, step: 1, none: "new each time" },
];

// Return {form, values}: the fields, and a function that returns the settings that are given.
export function samplingForm(defaults) {
  const before = read("sampling") ?? {};
  const inputs = FIELDS.map((field) => element("input", {
    id: `sampling-${field.name}`, type: "number", inputMode: "decimal", min: field.min, max: field.max ?? "",
    step: field.step, placeholder: String(defaults?.[field.checkpoint ?? field.name]?.value ?? field.none),
    value: before[field.name] ?? "",
  }));

  function values() {
    const wrong = inputs.findIndex((input) => !input.checkValidity());
    if (wrong >= 0) throw new Error(`${FIELDS[wrong].label}: ${inputs[wrong].validationMessage}`);
    const given = FIELDS.map((field, at) => [field.name, inputs[at].value]).filter(([, value]) => value !== "");
    return Object.fromEntries(given.map(([name, value]) => [name, Number(value)]));
  }

  function remember() {
    write("sampling", Object.fromEntries(FIELDS.map((field, at) => [field.name, inputs[at].value])));
  }

  const form = element(
    "form",
    { class: "sampling", onsubmit: (event) => event.preventDefault(), onchange: remember },
    ...FIELDS.flatMap((field, at) => [element("label", { for: inputs[at].id }, field.label), inputs[at]]),
    button("Use the checkpoint's settings", () => {
      for (const input of inputs) input.value = "";
      remember();
    }),
  );
  return { form, values };
}
