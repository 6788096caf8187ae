/** Tables that reuse the elements of their rows. A narrow window shows the rows as cards. */

import { el, reconcile } from "./dom.js";

export class Table {
  /** `columns` is a list of `[title, createCell(), className]`; the last two are optional. `update(cells, item)` fills the
   * cells of a row. */
  constructor(caption, columns, keyOf, update) {
    this.columns = columns;
    this.keyOf = keyOf;
    this.update = update;
    this.body = el("tbody", {});
    this.element = el(
      "table",
      { hidden: true },
      el("caption", { class: "sr-only" }, caption),
      el("thead", {}, el("tr", {}, ...columns.map(([title, , className]) => el("th", { scope: "col", class: className }, title || el("span", { class: "sr-only" }, "Action"))))),
      this.body,
    );
  }

  draw(items) {
    this.element.hidden = items.length === 0;
    reconcile(this.body, items, this.keyOf, () => this.#row(), (row, item) => this.#fill(row.contents, item));
  }

  /** Fill the cells of a row, and mark those without a value, which a narrow window does not show. */
  #fill(cells, item) {
    this.update(cells, item);
    for (const cell of cells) cell.parentElement.classList.toggle("no-value", ["", "–"].includes(cell.textContent) || cell.hidden);
  }

  #row() {
    const cells = this.columns.map(([, create]) => create?.() ?? el("span", {}));
    const row = el("tr", {}, ...cells.map((cell, i) => el("td", { "data-label": this.columns[i][0] || null, class: this.columns[i][2] }, cell)));
    row.contents = cells;
    return row;
  }
}

/** Return a link whose address and text are set by `setLink`. */
export const createLink = (attributes = {}) => el("a", { dir: "auto", ...attributes });

export function setLink(link, href, text) {
  if (link.getAttribute("href") !== href) link.setAttribute("href", href);
  if (link.textContent !== text) link.textContent = text;
}
