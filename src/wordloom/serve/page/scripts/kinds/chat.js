// A causal language model with a chat template: it answers messages.

import { ConversationView } from "../conversation/view.js";

function messages(path, conversation) {
  const system = conversation.system ? [{ role: "system", content: conversation.system }] : [];
  return [...system, ...path.map(({ role, content }) => ({ role, content }))];
}

const FORMAT = {
  kind: "chat",
  title: "Conversation",
  path: "v1/chat/completions",
  placeholder: "Write a message. Enter sends it, Shift+Enter begins a line.",
  send: "Send",
  labels: { user: "You", assistant: "Model" },
  hasSystem: true,
  trims: true, // an answer begins without whitespace
  accepts: (text) => text.trim() !== "",
  // the fields of a request that answers the last message of a path
  request: (path, conversation) => ({ messages: messages(path, conversation) }),
  // the fields of /inspect for that prompt
  prompt: (path, conversation) => ({ messages: messages(path, conversation) }),
  uncounted: 0, // tokens of a prompt that /tokenize may leave out
  does: "It answers messages.",
  examples: ["What is the opposite of small?", "Rewrite the sentence in the past tense: I go to school.", "Name three animals."],
  // the fields of /tokenize for the next request, with the draft as its last message
  next: (path, conversation, draft) => {
    const asked = path.at(-1)?.role === "user" ? path.slice(0, -1) : path;
    return { messages: [...messages(asked, conversation), { role: "user", content: draft }] };
  },
};

export function show(place, options) {
  return new ConversationView(place, { ...options, format: FORMAT });
}
