// The view of each kind of model: a module is loaded when a model of its kind is chosen.

import { element } from "./dom.js";

const MODULES = {
  "a causal language model": (card) => import(card.chat ? "./kinds/chat.js" : "./kinds/completion.js"),
  "a translation model": () => import("./kinds/translation.js"),
  "an encoder": () => import("./kinds/encoder.js"),
  "a classifier": () => import("./kinds/classification.js"),
  "a recurrent classifier": () => import("./kinds/classification.js"),
  "a bag-of-words classifier": () => import("./kinds/classification.js"),
  "a fastText classifier": () => import("./kinds/classification.js"),
  "a model for regression": () => import("./kinds/classification.js"),
  "a model for token classification": () => import("./kinds/classification.js"),
  "a model for multiple choice": () => import("./kinds/choices.js"),
  "a model for question answering": () => import("./kinds/answering.js"),
  "word vectors": () => import("./kinds/words.js"),
};

// Return the kind of the conversations with a model, or null if it has none.
export function conversationKind(card) {
  if (card.kind !== "a causal language model") return null;
  return card.chat ? "chat" : "completion";
}

// Return the function that shows a model; it returns an object with `close`.
export async function viewOf(card) {
  const load = MODULES[card.kind];
  if (load) return (await load(card)).show;
  return (place) => {
    place.append(element("p", { class: "centred" }, `This page has no view for ${card.kind}.`));
    return { close() {} };
  };
}
