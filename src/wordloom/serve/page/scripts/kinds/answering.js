// A model for question answering: the spans of a text that answer a question.

import { element } from "../dom.js";
import { resultTable, share, showQuery } from "./query.js";

export function show(place, { card }) {
  return showQuery(place, {
    card,
    title: "Question answering",
    send: "Answer",
    fields: [
      { name: "question", label: "Question", type: "text", required: true },
      { name: "context", label: "Text with the answer", type: "textarea", rows: 8, required: true },
      { name: "top_k", label: "Answers", type: "number", min: 1, max: 20, value: 3 },
    ],
    request: ({ question, context, top_k }) => ({ path: "answer", body: { question, context, top_k } }),
    results: ({ answers }, { context }) => [
      resultTable(["Answer", "Probability"], answers.map(({ answer, probability }) => [answer || "no answer", share(probability)])),
      marked(context, answers[0]),
    ],
  });
}

// Return the text with the best answer marked; offsets count characters, and strings UTF-16 units.
function marked(context, best) {
  if (!best?.answer) return element("p", { class: "passage" }, context);
  const characters = Array.from(context);
  const part = (from, to) => characters.slice(from, to).join("");
  return element("p", { class: "passage" },
    part(0, best.start), element("mark", {}, part(best.start, best.end)), part(best.end));
}
