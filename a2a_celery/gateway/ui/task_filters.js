/** Filters of the list of all tasks. The fragment of the page's URL contains them, so that a list can be shared. */

import { el } from "./dom.js";
import { ALL_STATES, stateName } from "./texts.js";

const TIMES = ["after", "before"];
const NAMES = ["agent", "state", "owner", "tenant", "schedule", ...TIMES];

/** Return the filters in the fragment of the page's URL. An empty owner or tenant selects tasks without one. */
export function filtersIn(query) {
  const names = NAMES.filter((name) => query.get(name) || (query.has(name) && ["owner", "tenant"].includes(name)));
  return Object.fromEntries(names.map((name) => [name, query.get(name)]));
}

export class TaskFilters {
  /** `onChange(filters)` is called when the user has changed the filters. */
  constructor(onChange) {
    const input = (name, label, attributes) => [name, label, el("input", { type: "text", spellcheck: "false", autocomplete: "off", dir: "auto", ...attributes })];
    const choice = (name, label, placeholder) => [name, label, el("select", {}, el("option", { value: "" }, placeholder))];
    const time = (name, label) => [name, label, el("input", { type: "datetime-local", step: "1" })];
    const fields = [
      choice("agent", "Agent", "Every agent"),
      choice("state", "State", "Every state"),
      input("owner", "Owner", { placeholder: "Every owner" }),
      input("tenant", "Tenant", { placeholder: "Every tenant" }),
      input("schedule", "Schedule", { placeholder: "Name" }),
      time("after", "From"),
      time("before", "Until"),
    ];
    this.controls = Object.fromEntries(fields.map(([name, , control]) => [name, control]));
    this.controls.state.append(...ALL_STATES.map((state) => el("option", { value: state }, stateName(state))));
    this.element = el("form", { class: "card filter-form", "aria-label": "Filters" });
    for (const [name, label, control] of fields) {
      control.id = `filter-${name}`;
      this.element.append(el("div", {}, el("label", { for: control.id }, label), control));
    }
    const reset = el("button", { type: "button" }, "Reset");
    reset.addEventListener("click", () => onChange({}));
    this.element.append(el("div", { class: "row" }, el("button", { type: "submit", class: "primary" }, "Show"), reset));
    this.element.addEventListener("submit", (event) => {
      event.preventDefault();
      onChange(this.#values());
    });
  }

  #values() {
    const entries = Object.entries(this.controls).map(([name, control]) => [name, control.value.trim()]);
    return Object.fromEntries(entries.filter(([, value]) => value).map(([name, value]) => [name, TIMES.includes(name) ? new Date(value).toISOString() : value]));
  }

  /** Show `filters` in the form. `agents` are the names that can be chosen. */
  show(filters, agents) {
    const { agent } = this.controls;
    const names = new Set([...agents, filters.agent].filter(Boolean));
    agent.replaceChildren(agent.firstChild, ...[...names].map((name) => el("option", { value: name }, name)));
    for (const [name, control] of Object.entries(this.controls)) {
      const value = filters[name] ?? "";
      control.value = TIMES.includes(name) ? localTime(value) : value;
    }
  }
}

/** Return a time in ISO 8601 as the value of a datetime-local input, or "" for an invalid time. */
function localTime(text) {
  const date = new Date(text);
  if (Number.isNaN(date.getTime())) return "";
  return new Date(date.getTime() - date.getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
}
