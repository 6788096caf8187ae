/** Form for the answer to a question with a JSON Schema: one field, or a field for each property of an object. */

import { el } from "./dom.js";

const KEY = "a2a_celery/answer_schema";
const MEDIA_TYPE = "application/schema+json";
const MAX_REFERENCES = 8;
const INPUT_TYPES = { integer: "number", number: "number", string: "text" };
const FORMATS = { date: "date", email: "email" };

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

/** Returns true if `part` contains the schema of the answer. */
export const isSchemaPart = (part) =>
  isObject(part) && "data" in part && (part.metadata?.[KEY] === true || part.mediaType === MEDIA_TYPE);

/** Returns the schema that the question `message` contains, or null. */
export function schemaOf(message) {
  const part = (message?.parts ?? []).find(isSchemaPart);
  return isObject(part?.data) ? part.data : null;
}

/** Returns the schema to which a reference such as "#/$defs/Colour" points, or null. */
function referenced(reference, root) {
  if (!reference.startsWith("#")) return null;
  return reference
    .slice(1)
    .split("/")
    .slice(1)
    .map((step) => decoded(step).replace(/~1/g, "/").replace(/~0/g, "~"))
    .reduce((found, key) => (isObject(found) && Object.hasOwn(found, key) ? found[key] : null), root);
}

function decoded(step) {
  try {
    return decodeURIComponent(step);
  } catch {
    return step;
  }
}

/** Returns the schema with references resolved and without the alternative null, or {} if several types remain. */
function simplified(schema, root) {
  for (let left = MAX_REFERENCES; left > 0 && isObject(schema); left--) {
    if (typeof schema.$ref === "string") {
      schema = referenced(schema.$ref, root);
      continue;
    }
    if (Array.isArray(schema.type)) {
      const named = schema.type.filter((type) => type !== "null");
      return { ...schema, type: named.length === 1 ? named[0] : null };
    }
    const options = [schema.anyOf, schema.oneOf, schema.allOf].find(Array.isArray);
    if (options === undefined) return schema;
    const others = options.filter((option) => option?.type !== "null");
    schema = others.length === 1 ? others[0] : null;
  }
  return {};
}

/** Returns the fields of a form for `schema`, in the order that the agent specifies with `propertyOrder`. */
function fieldsOf(schema) {
  const outer = simplified(schema, schema);
  if (!isObject(outer.properties) || Object.keys(outer.properties).length === 0) return [fieldOf(null, outer, outer, true)];
  const required = Array.isArray(outer.required) ? outer.required : [];
  const place = ([, property]) => (typeof property?.propertyOrder === "number" ? property.propertyOrder : Infinity);
  return Object.entries(outer.properties)
    .sort((one, other) => (place(one) === place(other) ? 0 : place(one) - place(other)))
    .map(([name, property]) => fieldOf(name, isObject(property) ? property : {}, simplified(property, schema), required.includes(name)));
}

function fieldOf(name, given, inner, required) {
  const text = (key) => [given[key], inner[key]].find((value) => typeof value === "string") ?? "";
  const scalars = Array.isArray(inner.enum) && inner.enum.length > 0 && inner.enum.every((one) => typeof one !== "object" || one === null);
  const kind = scalars ? "choice" : ["string", "integer", "number", "boolean"].includes(inner.type) ? inner.type : "json";
  return { name, kind, label: text("title") || name || "Answer", description: text("description"), required, default: given.default, schema: inner };
}

/** Returns the control of a field. `control.read()` returns the entered value, or undefined if the control is empty. */
function controlOf(field, id) {
  const about = { id, name: field.name, required: field.required, "aria-describedby": `${id}-about` };
  if (field.kind === "boolean" && (field.required || typeof field.default === "boolean")) return checkbox(field, id);
  if (field.kind === "boolean") return select(field, about, [[true, "Yes"], [false, "No"]]);
  if (field.kind === "choice") return select(field, about, field.schema.enum.map((value) => [value, typeof value === "string" ? value : JSON.stringify(value)]));
  if (field.kind === "json") return json(field, about);
  return input(field, about);
}

function checkbox(field, id) {
  const element = el("input", { id, name: field.name, type: "checkbox", "aria-describedby": `${id}-about`, checked: field.default === true });
  element.read = () => element.checked;
  return element;
}

function select(field, about, choices) {
  const chosen = choices.findIndex(([value]) => value === field.default);
  const empty = chosen < 0 ? el("option", { value: "" }, "Choose …") : null;
  const options = choices.map(([, label], number) => el("option", { value: String(number), selected: number === chosen }, label));
  const element = el("select", about, empty, ...options);
  element.read = () => (element.value === "" ? undefined : choices[Number(element.value)][0]);
  return element;
}

function json(field, about) {
  const shown = field.default === undefined || field.default === null ? "" : JSON.stringify(field.default, null, 2);
  const element = el("textarea", { ...about, rows: "3", spellcheck: "false", placeholder: "JSON" });
  element.value = shown;
  element.read = () => {
    if (!element.value.trim()) return undefined;
    try {
      return JSON.parse(element.value);
    } catch (error) {
      throw new FieldError(`Not JSON: ${error.message}`);
    }
  };
  return element;
}

function input(field, about) {
  const { schema, kind } = field;
  const number = kind !== "string";
  const limits = number
    ? { min: schema.minimum, max: schema.maximum, step: kind === "integer" ? "1" : "any" }
    : { minlength: schema.minLength, maxlength: schema.maxLength };
  const type = FORMATS[schema.format] ?? INPUT_TYPES[kind];
  const element = el("input", { ...about, ...limits, type, dir: number ? null : "auto", autocomplete: "off" });
  if (["string", "number"].includes(typeof field.default)) element.value = String(field.default);
  element.read = () => (element.value === "" ? undefined : number ? Number(element.value) : element.value);
  return element;
}

class FieldError extends Error {}

let forms = 0;

export class AnswerForm {
  #shown = "";
  #rows = [];

  /** `send(parts)` is awaited. If it fails, the entered values stay in the form. */
  constructor(send) {
    this.send = send;
    this.id = `answer-${++forms}`;
    this.fields = el("div", { class: "answer-fields" });
    this.button = el("button", { type: "submit", class: "primary" }, "Answer");
    this.hint = el("span", { class: "hint", role: "status" });
    this.element = el("form", { class: "answer-form", hidden: true }, this.fields, el("div", { class: "row" }, this.button, this.hint));
    this.element.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submit();
    });
  }

  /** Shows the fields of `schema`, or no fields for null. If the schema has not changed, the entered values stay. */
  show(schema) {
    const shown = schema === null ? "" : JSON.stringify(schema);
    this.element.hidden = schema === null;
    if (shown === this.#shown) return;
    this.#shown = shown;
    this.hint.textContent = "";
    this.#rows = schema === null ? [] : fieldsOf(schema).map((field, number) => this.#row(field, `${this.id}-${number}`));
    this.fields.replaceChildren(...this.#rows.map((row) => row.element));
  }

  #row(field, id) {
    const control = controlOf(field, id);
    const error = el("span", { class: "field-error" });
    const label = el("label", { for: id, dir: "auto" }, field.label, field.required ? null : el("span", { class: "hint" }, " (optional)"));
    const about = el("div", { id: `${id}-about`, class: "hint" }, field.description ? el("span", { dir: "auto" }, field.description) : null, error);
    const check = control.type === "checkbox";
    const element = check
      ? el("div", { class: "answer-field" }, el("div", { class: "check-line" }, control, label), about)
      : el("div", { class: "answer-field" }, label, control, about);
    control.addEventListener("input", () => this.#mark({ control, error }, ""));
    return { field, control, error, element };
  }

  #mark({ control, error }, text) {
    error.textContent = text;
    if (text) control.setAttribute("aria-invalid", "true");
    else control.removeAttribute("aria-invalid");
  }

  /** Returns the answer. If a field is invalid, focuses the first invalid field and returns undefined. */
  #value() {
    const values = [];
    let wrong = null;
    for (const row of this.#rows) {
      this.#mark(row, "");
      try {
        const value = row.control.read();
        if (value !== undefined) values.push([row.field.name, value]);
      } catch (error) {
        if (!(error instanceof FieldError)) throw error;
        this.#mark(row, error.message);
        wrong ??= row.control;
      }
    }
    wrong?.focus();
    if (wrong !== null) return undefined;
    return this.#rows.length === 1 && this.#rows[0].field.name === null ? values[0]?.[1] : Object.fromEntries(values);
  }

  async #submit() {
    if (this.button.disabled) return;
    const data = this.#value();
    if (data === undefined) return;
    this.button.disabled = true;
    this.hint.textContent = "Sending …";
    try {
      await this.send([{ data, mediaType: "application/json" }]);
      this.hint.textContent = "";
    } catch (error) {
      this.#refused(error);
    } finally {
      this.button.disabled = false;
    }
  }

  /** Shows each violation in the server's error beside its field, and violations without a field below the form. */
  #refused(error) {
    const others = [];
    let first = null;
    for (const { field, description } of error.violations ?? []) {
      const path = String(field ?? "").replace(/^message\.parts\[\d+\]\.data\.?/, "");
      const row = this.#rows.find(({ field: { name } }) => name !== null && (path === name || path.startsWith(`${name}.`) || path.startsWith(`${name}[`)));
      if (row) this.#mark(row, description ?? "");
      else others.push(description ?? "");
      first ??= row?.control ?? null;
    }
    this.hint.textContent = others.join(" ") || "Not accepted.";
    first?.focus();
  }
}
