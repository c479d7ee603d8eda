// The list of stored conversations, with buttons to begin, export and import one.

import { button, element, notify } from "../dom.js";
import { exported, imported } from "./files.js";
import { forget, listed, load, remember } from "./storage.js";
import { titleOf } from "./tree.js";

// `open(id)`, `begin()` and `take(conversation)` are called for a stored, a new and an imported conversation.
export class ConversationList {
  constructor(kind, { current, open, begin, take }) {
    Object.assign(this, { kind, current, open, begin });
    this.items = element("ul", {});
    const input = element("input", { type: "file", accept: "application/json,.json", hidden: true, id: "import-file", "aria-label": "File of a conversation" });
    input.addEventListener("change", async () => {
      const [file] = input.files;
      input.value = "";
      if (!file) return;
      try {
        take(imported(await file.text()));
      } catch (error) {
        notify(`${file.name}: ${error.message}`);
      }
    });
    this.box = element(
      "nav",
      { id: "conversations", "aria-label": "Conversations" },
      element("p", { class: "row" },
        button("New", begin, { title: "Begin a new conversation" }),
        button("Export", () => this.export(), { title: "Save this conversation to a file" }),
        button("Import", () => input.click(), { title: "Open a conversation from a file" }),
        input),
      this.items,
    );
  }

  show() {
    const current = this.current();
    const stored = listed(this.kind);
    const entries = stored.some((each) => each.id === current.id)
      ? stored
      : [{ id: current.id, title: titleOf(current), updated: current.updated }, ...stored];
    this.items.replaceChildren(...entries.map(({ id, title }) => element(
      "li",
      {},
      button(title, () => this.open(id), { class: "title", title, "aria-current": id === current.id ? "true" : null }),
      button("×", () => this.delete(id), { title: `Delete “${title}”`, "aria-label": `Delete “${title}”` }),
    )));
  }

  delete(id) {
    const current = this.current();
    const kept = id === current.id ? current : load(id);
    forget(id);
    if (id === current.id) this.begin();
    else this.show();
    if (!kept || kept.nodes.root.children.length === 0) return;
    notify(`“${titleOf(kept)}” is deleted.`, { label: "Undo", run: () => {
      remember(kept);
      this.open(id);
    } });
  }

  export() {
    const conversation = this.current();
    const name = titleOf(conversation).replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").slice(0, 40) || "conversation";
    const url = URL.createObjectURL(new Blob([exported(conversation)], { type: "application/json" }));
    element("a", { href: url, download: `${name}.json` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
  }
}
