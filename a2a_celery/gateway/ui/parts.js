/** Parts of messages and artifacts: text as text, data pretty-printed, files as downloads or links. */

import { isSchemaPart } from "./answer_form.js";
import { copier, el, link } from "./dom.js";
import { bytes } from "./words.js";

/** Number of characters of a long text that are shown until the user requests the whole text. The last characters are
 * shown, because the text may grow. */
const SHOWN = 20_000;

/** Makes texts with a scroll bar focusable, so that keys can scroll them. */
const sizes = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    if (target.scrollHeight > target.clientHeight) target.tabIndex = 0;
    else target.removeAttribute("tabindex");
  }
});

/** Text that may grow by many small pieces. Appending a piece takes time proportional to the piece. */
class TextBlock {
  #pieces = [];
  #length = 0;
  #shown = 0;
  #whole = false;

  constructor() {
    this.node = document.createTextNode("");
    this.text = el("div", { class: "text", dir: "auto" }, this.node);
    sizes.observe(this.text);
    this.more = el("button", { type: "button", class: "quiet small", hidden: true });
    this.more.addEventListener("click", () => this.#all());
    this.element = el("div", { class: "part" }, this.more, this.text);
  }

  append(piece) {
    this.#pieces.push(piece);
    this.#length += piece.length;
    this.node.appendData(piece);
    this.#shown += piece.length;
    if (!this.#whole && this.#shown > SHOWN * 2) this.#cut();
  }

  #cut() {
    this.node.data = this.node.data.slice(-SHOWN);
    this.#shown = SHOWN;
    this.more.hidden = false;
    this.more.textContent = `Only the end is shown: show all ${this.#length.toLocaleString()} characters`;
  }

  #all() {
    this.#whole = true;
    this.node.data = this.#pieces.join("");
    this.more.hidden = true;
  }
}

const isPlainText = (part) => typeof part.text === "string" && !part.filename;

/** Parts of one message or artifact. `update(parts)` adds the new parts, and `reset()` removes all parts. */
export class Parts {
  #count = 0;
  #text = null;
  #urls = [];

  constructor() {
    this.element = el("div", { class: "parts" });
  }

  reset() {
    this.#count = 0;
    this.#text = null;
    for (const url of this.#urls) URL.revokeObjectURL(url);
    this.#urls = [];
    this.element.replaceChildren();
  }

  update(parts) {
    if (parts.length < this.#count) this.reset();
    for (; this.#count < parts.length; this.#count++) this.#add(parts[this.#count]);
  }

  #add(part) {
    if (isPlainText(part)) {
      if (this.#text === null) {
        this.#text = new TextBlock();
        this.element.append(this.#text.element);
      }
      this.#text.append(part.text);
      return;
    }
    this.#text = null;
    this.element.append(this.#shown(part));
  }

  #shown(part) {
    if ("data" in part) return data(part);
    if (typeof part.raw === "string") return this.#file(part, decoded(part.raw));
    if (typeof part.text === "string") return this.#file(part, part.text);
    if (typeof part.url === "string") return web(part);
    return el("div", { class: "part" }, el("pre", { class: "data" }, JSON.stringify(part, null, 2)));
  }

  #file(part, content) {
    const name = part.filename || "file";
    if (content === null) return el("p", { class: "part hint" }, `${name}: its content is not valid base64`);
    // not the media type of the part, because an HTML file of an agent must not open in the origin of this page
    const blob = new Blob([content], { type: "application/octet-stream" });
    const url = URL.createObjectURL(blob);
    this.#urls.push(url);
    const anchor = el("a", { href: url, download: name.replace(/[/\\]/g, "_"), class: "download" }, `Download ${name}`);
    return el("p", { class: "part file" }, anchor, " ", about(part.mediaType, bytes(blob.size)));
  }
}

function data(part) {
  if (isSchemaPart(part)) {
    const schema = el("pre", { class: "data", tabindex: "0", "aria-label": "Schema of the answer" }, JSON.stringify(part.data, null, 2));
    return el("details", { class: "part" }, el("summary", {}, "Schema of the answer"), schema);
  }
  const text = JSON.stringify(part.data, null, 2) ?? "null";
  const shown = text.length > SHOWN ? `${text.slice(0, SHOWN)}\n… ${text.length.toLocaleString()} characters in all` : text;
  const pre = el("pre", { class: "data", tabindex: "0", "aria-label": "Data" }, shown);
  return el("div", { class: "part copied" }, copier(text, "Copy the data"), pre);
}

function web(part) {
  return el("p", { class: "part file" }, link(part.url, part.filename || part.url), " ", about(part.mediaType));
}

const about = (...words) => el("span", { class: "hint" }, words.filter(Boolean).join(", "));

function decoded(base64) {
  try {
    const text = atob(base64.replace(/-/g, "+").replace(/_/g, "/"));
    return Uint8Array.from(text, (char) => char.charCodeAt(0));
  } catch {
    return null;
  }
}

/** Returns an element with the parts of a message or artifact that does not grow. */
export function partsOf(holder) {
  const parts = new Parts();
  parts.update(holder?.parts ?? []);
  return parts.element;
}
