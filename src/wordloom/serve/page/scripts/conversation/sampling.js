// The sampling settings.  An empty field leaves the setting to the checkpoint, whose value it shows.

import { button, element } from "../dom.js";
import { read, write } from "../store.js";

const FIELDS = [
  { name: "temperature", label: "Temperature", min: 0, max: 100, step: "any", none: "1" },
  { name: "top_k", label: "Top k", min: 0, step: 1, none: "off" },
  { name: "top_p", label: "Top p", min: 0.001, max: 1, step: "any", none: "off" },
  { name: "min_p", label: "Min p", min: 0, max: 1, step: "any", none: "off" },
  { name: "repetition_penalty", label: "Repetition penalty", min: 0.01, max: 100, step: "any", none: "1" },
  { name: "presence_penalty", label: "Presence penalty", min: -2, max: 2, step: "any", none: "0" },
  { name: "frequency_penalty", label: "Frequency penalty", min: -2, max: 2, step: "any", none: "0" },
  { name: "max_tokens", checkpoint: "max_new_tokens", label: "Max tokens", min: 1, step: 1, none: "up to the context" },
  { name: "stop", label: "Stop strings, one a line (\\n: a line break)", strings: true, none: "none" },
  { name: "seed", label: "Seed", min: 0, max: Number.MAX_SAFE_INTEGER, step: 1, none: "new each time" },
];

// Return {form, values, fill}: the fields, a function that returns the settings that are given, and one that
// fills in the fields of a request.
export function samplingForm(defaults) {
  const before = read("sampling") ?? {};
  const inputs = FIELDS.map((field) => inputOf(field, defaults, before[field.name] ?? ""));

  function values() {
    const wrong = inputs.findIndex((input) => !input.checkValidity());
    if (wrong >= 0) throw new Error(`${FIELDS[wrong].label}: ${inputs[wrong].validationMessage}`);
    const given = FIELDS.map(({ name, strings }, at) => [name, inputs[at].value, strings]).filter(([, value]) => value !== "");
    return Object.fromEntries(given.map(([name, value, strings]) => [name, strings ? stringsOf(value) : Number(value)]));
  }

  function fill(settings) {
    FIELDS.forEach(({ name, strings }, at) => {
      const value = settings[name] ?? "";
      inputs[at].value = strings && value ? linesOf(value) : value;
    });
    remember();
  }

  function remember() {
    write("sampling", Object.fromEntries(FIELDS.map((field, at) => [field.name, inputs[at].value])));
  }

  const form = element(
    "form",
    { class: "sampling", onsubmit: (event) => event.preventDefault(), onchange: remember },
    ...FIELDS.flatMap((field, at) => [element("label", { for: inputs[at].id }, field.label), inputs[at]]),
    button("Use the checkpoint's settings", () => fill({})),
  );
  return { form, values, fill };
}

function inputOf(field, defaults, value) {
  const known = defaults?.[field.checkpoint ?? field.name]?.value ?? field.none;
  const properties = { id: `sampling-${field.name}`, value };
  if (field.strings) {
    const placeholder = Array.isArray(known) ? linesOf(known) || field.none : known;
    return element("textarea", { ...properties, rows: 2, placeholder });
  }
  return element("input", {
    ...properties, type: "number", inputMode: "decimal", min: field.min, max: field.max ?? "", step: field.step,
    placeholder: String(known),
  });
}

// One string a line; a backslash marks line breaks, tabs and itself.
const ESCAPES = { n: "\n", t: "\t", "\\": "\\" };

function stringsOf(lines) {
  return lines.split(/\r?\n/).filter(Boolean).map((line) => line.replace(/\\([nt\\])/g, (_, letter) => ESCAPES[letter]));
}

function linesOf(strings) {
  return strings.map((each) => each.replaceAll("\\", "\\\\").replaceAll("\n", "\\n").replaceAll("\t", "\\t")).join("\n");
}
