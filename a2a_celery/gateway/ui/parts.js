/** Parts of messages and artifacts: text as text, data pretty-printed, files as downloads or links. */

import { isSchemaPart } from "./answer_form.js";
import { copyButton, el, link } from "./dom.js";
import { formatBytes } from "./texts.js";

/** Number of characters of a long text that are shown until the user requests the whole text. The last characters are
 * shown, because the text may grow. */
const VISIBLE_LENGTH = 20_000;

/** Makes texts with a scroll bar focusable, so that keys can scroll them. */
const resizeObserver = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    if (target.scrollHeight > target.clientHeight) target.tabIndex = 0;
    else target.removeAttribute("tabindex");
  }
});

/** Text that may grow by many small pieces. Appending a piece takes time proportional to the piece. */
class TextBlock {
  #pieces = [];
  #length = 0;
  #visibleLength = 0;
  #isComplete = false;

  constructor() {
    this.node = document.createTextNode("");
    this.text = el("div", { class: "text", dir: "auto" }, this.node);
    resizeObserver.observe(this.text);
    this.moreButton = el("button", { type: "button", class: "quiet small", hidden: true });
    this.moreButton.addEventListener("click", () => this.#showAll());
    this.element = el("div", { class: "part" }, this.moreButton, this.text);
  }

  append(piece) {
    this.#pieces.push(piece);
    this.#length += piece.length;
    this.node.appendData(piece);
    this.#visibleLength += piece.length;
    if (!this.#isComplete && this.#visibleLength > VISIBLE_LENGTH * 2) this.#truncate();
  }

  #truncate() {
    this.node.data = this.node.data.slice(-VISIBLE_LENGTH);
    this.#visibleLength = VISIBLE_LENGTH;
    this.moreButton.hidden = false;
    this.moreButton.textContent = `Only the end is shown: show all ${this.#length.toLocaleString()} characters`;
  }

  #showAll() {
    this.#isComplete = true;
    this.node.data = this.#pieces.join("");
    this.moreButton.hidden = true;
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
    this.element.append(this.#partElement(part));
  }

  #partElement(part) {
    if ("data" in part) return dataPart(part);
    if (typeof part.raw === "string") return this.#file(part, decodeBase64(part.raw));
    if (typeof part.text === "string") return this.#file(part, part.text);
    if (typeof part.url === "string") return linkPart(part);
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
    return el("p", { class: "part file" }, anchor, " ", hint(part.mediaType, formatBytes(blob.size)));
  }
}

function dataPart(part) {
  if (isSchemaPart(part)) {
    const schema = el("pre", { class: "data", tabindex: "0", "aria-label": "Schema of the answer" }, JSON.stringify(part.data, null, 2));
    return el("details", { class: "part" }, el("summary", {}, "Schema of the answer"), schema);
  }
  const text = JSON.stringify(part.data, null, 2) ?? "null";
  const visibleText = text.length > VISIBLE_LENGTH ? `${text.slice(0, VISIBLE_LENGTH)}\n… ${text.length.toLocaleString()} characters in all` : text;
  const pre = el("pre", { class: "data", tabindex: "0", "aria-label": "Data" }, visibleText);
  return el("div", { class: "part copyable" }, copyButton(text, "Copy the data"), pre);
}

function linkPart(part) {
  // the name is the agent's, so the host shows where the link leads
  const host = part.filename && URL.canParse(part.url) ? new URL(part.url).host : "";
  return el("p", { class: "part file" }, link(part.url, part.filename || part.url), " ", hint(host, part.mediaType));
}

const hint = (...words) => el("span", { class: "hint" }, words.filter(Boolean).join(", "));

function decodeBase64(base64) {
  try {
    const text = atob(base64.replace(/-/g, "+").replace(/_/g, "/"));
    return Uint8Array.from(text, (char) => char.charCodeAt(0));
  } catch {
    return null;
  }
}

/** Return an element with the parts of a message or artifact that does not grow. */
export function partsElement(content) {
  const parts = new Parts();
  parts.update(content?.parts ?? []);
  return parts.element;
}
