// A causal language model without a chat template: it continues texts, and each prompt stands alone.

import { ConversationView } from "../conversation/view.js";

const FORMAT = {
  kind: "completion",
  title: "Completions",
  path: "v1/completions",
  placeholder: "Write the beginning of a text. Enter continues it, Shift+Enter begins a line.",
  send: "Continue",
  labels: { user: "Prompt", assistant: "Continuation" },
  hasSystem: false,
  trims: false,
  accepts: (text) => text !== "",
  request: (path) => ({ prompt: path.at(-1).content }),
  prompt: (path) => ({ text: path.at(-1).content }),
  uncounted: 1, // a prompt may get a token in front that marks its beginning
  does: "It continues the text that you begin. It does not answer questions, and each prompt stands alone.",
  examples: ["The function returns", "Once upon a time", "It was a"],
  next: (path, conversation, draft) => ({ text: draft }),
};

export function show(place, options) {
  return new ConversationView(place, { ...options, format: FORMAT });
}
