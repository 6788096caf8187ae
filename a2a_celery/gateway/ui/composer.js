/** Input box for a message: text, or data as JSON. */

import { el } from "./dom.js";

let composerCount = 0;

export class Composer {
  /** `send(parts)` is awaited. If it fails, the text stays in the box. */
  constructor(label, buttonText, send) {
    const id = `message-${++composerCount}`;
    this.buttonText = buttonText;
    this.send = send;
    this.text = el("textarea", { id, rows: "3", dir: "auto", "aria-describedby": `${id}-hint` });
    this.kind = el("select", { "aria-label": "Send as" }, el("option", { value: "text" }, "Text"), el("option", { value: "data" }, "JSON"));
    this.button = el("button", { type: "submit", class: "primary" }, buttonText);
    this.hint = el("span", { class: "hint", id: `${id}-hint`, role: "status" });
    this.element = el(
      "form",
      { class: "composer" },
      el("label", { for: id }, label),
      this.text,
      el("div", { class: "row" }, this.button, this.kind, this.hint),
    );
    this.element.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submit();
    });
    this.text.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.element.requestSubmit();
    });
    this.text.addEventListener("input", () => (this.hint.textContent = "Ctrl+Enter sends"));
  }

  /** Put `text` into the box, so that the user can edit and send it. */
  fill(text) {
    this.kind.value = "text";
    this.text.value = text;
    this.text.focus();
  }

  clear() {
    this.text.value = "";
    this.hint.textContent = "";
  }

  async #submit() {
    if (this.button.ariaBusy) return;
    const parts = this.#parts();
    if (parts === null) return;
    this.button.ariaBusy = "true"; // a disabled button would lose the focus
    this.hint.textContent = "Sending …";
    try {
      await this.send(parts);
      this.clear();
    } catch (error) {
      this.hint.textContent = error.hint ?? "Not sent.";
    } finally {
      this.button.ariaBusy = null;
    }
  }

  #parts() {
    const text = this.text.value;
    if (!text.trim()) {
      this.hint.textContent = "Enter a message first.";
      this.text.focus();
      return null;
    }
    if (this.kind.value === "text") return [{ text }];
    try {
      return [{ data: JSON.parse(text), mediaType: "application/json" }];
    } catch (error) {
      this.hint.textContent = `Not JSON: ${error.message}`;
      this.text.focus();
      return null;
    }
  }
}
