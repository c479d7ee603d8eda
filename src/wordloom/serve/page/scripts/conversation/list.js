// The list of all stored conversations, with buttons to begin, export and import one.

import { addressOf } from "../address.js";
import { button, element, notify } from "../dom.js";
import { closeDrawers, drawer } from "./drawers.js";
import { exported, imported } from "./files.js";
import { entryOf, forget, listed, load, remember } from "./storage.js";
import { titleOf } from "./tree.js";

const KINDS = { chat: "Chat", completion: "Completion" };

// `begin()` and `take(conversation)` are called for a new conversation, and for one that was imported or comes
// back; `modelFor(entry)` returns the model to open one with.
export class ConversationList {
  constructor({ current, begin, take, modelFor }) {
    Object.assign(this, { current, begin, take, modelFor });
    this.items = element("ul", {});
    const input = element("input", { type: "file", accept: "application/json,.json", hidden: true, id: "import-file", "aria-label": "File of a conversation" });
    input.addEventListener("change", async () => {
      const [file] = input.files;
      input.value = "";
      if (!file) return;
      try {
        await take(imported(await file.text()));
      } catch (error) {
        notify(`${file.name}: ${error.message}`);
      }
    });
    this.box = drawer("nav", "conversations", "Conversations",
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
    const stored = listed();
    const entries = stored.some((each) => each.id === current.id) ? stored : [entryOf(current), ...stored];
    this.items.replaceChildren(...entries.map((entry) => {
      const { id, title, kind } = entry;
      const about = `${KINDS[kind] ?? "Text"} · ${(entry.models ?? [entry.model]).join(", ")}`;
      const isCurrent = id === current.id;
      return element("li", {},
        element("a", {
          // the link of a conversation without messages is the page as it is
          href: stored.includes(entry) ? addressOf({ model: this.modelFor(entry), conversation: id }) : location.hash,
          class: "entry", title: `${title} (${about})`, "aria-current": isCurrent ? "page" : null,
          onclick: (event) => { if (isCurrent && !event.ctrlKey && !event.metaKey) closeDrawers(); },
        }, element("span", { class: "title" }, title), " ", element("span", { class: "about" }, about)),
        button("×", () => this.delete(id), { title: `Delete “${title}”`, "aria-label": `Delete “${title}”` }));
    }));
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
      this.take(kept).catch((error) => notify(error.message));
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
