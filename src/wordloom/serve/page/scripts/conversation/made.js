// How an answer was made: the settings that, with the messages before it, repeat it exactly.

import { button, element } from "../dom.js";

// The settings by the server's names.  Those without a name in a request are the checkpoint's.
const SETTINGS = [
  { name: "seed", label: "Seed", field: "seed" },
  { name: "temperature", label: "Temperature", field: "temperature" },
  { name: "top_k", label: "Top k", field: "top_k", off: 0 },
  { name: "top_p", label: "Top p", field: "top_p" },
  { name: "min_p", label: "Min p", field: "min_p" },
  { name: "repetition_penalty", label: "Repetition penalty", field: "repetition_penalty", off: 1 },
  { name: "presence_penalty", label: "Presence penalty", field: "presence_penalty", off: 0 },
  { name: "frequency_penalty", label: "Frequency penalty", field: "frequency_penalty", off: 0 },
  { name: "no_repeat_ngram", label: "No repeated n-gram of", field: null, off: 0 },
  { name: "max_new_tokens", label: "Max tokens", field: "max_tokens" },
  { name: "stop", label: "Stop strings", field: "stop" },
];
const SOURCES = { given: "your setting", default: "default", fresh: "drawn for this answer" };

// Return what is known before the answer begins: the settings of a request, and the checkpoint's others.
export function madeOf(request, defaults, { system, drawn }) {
  const settings = {};
  for (const { name, field } of SETTINGS) {
    const given = field === null ? undefined : request[field];
    if (given !== undefined) settings[name] = { value: given, from: "given" };
    else if (defaults?.[name]) settings[name] = defaults[name];
  }
  return withSource({ system, settings }, drawn);
}

// Return `made` with the settings that the server reports at the end of an answer.
export function reported(made, settings, drawn) {
  const known = SETTINGS.filter(({ name }) => settings[name]).map(({ name }) => [name, settings[name]]);
  return withSource({ ...made, settings: { ...made.settings, ...Object.fromEntries(known) } }, drawn);
}

// The page draws the seeds, so that also an answer that was stopped can be repeated.
function withSource(made, drawn) {
  if (drawn && made.settings.seed) made.settings.seed = { ...made.settings.seed, from: "fresh" };
  return made;
}

// Return the system message that an answer had; that of its conversation may have changed since.
export function systemOf(node, conversation) {
  return { system: node.made?.system ?? conversation.system };
}

// Return the fields of a request with the same settings.
export function fieldsOf(made) {
  const fields = {};
  for (const { name, field } of SETTINGS) {
    const value = made.settings[name]?.value ?? null;
    if (field !== null && value !== null && !(Array.isArray(value) && value.length === 0)) fields[field] = value;
  }
  return fields;
}

// Return a copy of what a file or the storage has, each value of its type; null for anything else.
export function checkedMade(found) {
  if (typeof found !== "object" || found === null || typeof found.settings !== "object" || found.settings === null) return null;
  const settings = {};
  for (const { name } of SETTINGS) {
    const { value, from } = found.settings[name] ?? {};
    const isRight = name === "stop"
      ? Array.isArray(value) && value.every((each) => typeof each === "string")
      : value === null || Number.isFinite(value);
    if (isRight) settings[name] = { value, from: typeof from === "string" ? from : "" };
  }
  return { system: typeof found.system === "string" ? found.system : "", settings };
}

// Show how an answer was made; `repeat` and `copy` are called on a click.
export function madePanel(node, { repeat, copy }) {
  const { made, kept } = node;
  if (!made) return [element("p", {}, "No settings are stored with this answer.")];
  const rows = [
    ["Model", node.model, ""],
    ...(made.system ? [["System message", made.system, ""]] : []),
    ...(kept ? [["Begins with", `the first ${kept === 1 ? "token" : `${kept} tokens`} of this answer`, "from another version"]] : []),
    ...SETTINGS.filter((setting) => isShown(made, setting)).map((setting) => {
      const { value, from } = made.settings[setting.name];
      return [setting.label, shown(value, setting), SOURCES[from] ?? from];
    }),
  ];
  return [
    element("table", { class: "facts" },
      element("tbody", {}, ...rows.map(([name, value, source]) => element("tr", {},
        element("th", { scope: "row" }, name), element("td", {}, value), element("td", { class: "muted" }, source))))),
    element("p", { class: "row" },
      button("Repeat exactly", repeat, { title: "Write this answer again with these settings, as another version" }),
      button("Use these settings", copy, { title: "Copy them into the settings of the next answers" })),
  ];
}

// A setting that the page does not have is shown if it has an effect.
function isShown({ settings }, { name, field, off }) {
  return settings[name] && (field !== null || settings[name].value !== off);
}

function shown(value, { name, off }) {
  if (name === "stop") return value.length === 0 ? "none" : value.map((each) => JSON.stringify(each)).join(" ");
  if (name === "max_new_tokens" && value === null) return "up to the end of the context";
  return value === null || value === off ? "off" : String(value);
}
