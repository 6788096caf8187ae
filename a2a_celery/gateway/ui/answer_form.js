/** Form for the answer to a question with a JSON Schema: one field, or a field for each property of an object. */

import { el } from "./dom.js";

const KEY = "a2a_celery/answer_schema";
const MEDIA_TYPE = "application/schema+json";
const MAX_REFERENCES = 8;
const INPUT_TYPES = { integer: "number", number: "number", string: "text" };
const FORMATS = { date: "date", email: "email" };

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

/** Return true if `part` contains the schema of the answer. */
export const isSchemaPart = (part) =>
  isObject(part) && "data" in part && (part.metadata?.[KEY] === true || part.mediaType === MEDIA_TYPE);

/** Return the schema that the question `message` contains, or null. */
export function schemaOf(message) {
  const part = (message?.parts ?? []).find(isSchemaPart);
  return isObject(part?.data) ? part.data : null;
}

/** Return the schema to which a reference such as "#/$defs/Colour" points, or null. */
function resolveReference(reference, root) {
  if (!reference.startsWith("#")) return null;
  return reference
    .slice(1)
    .split("/")
    .slice(1)
    .map((step) => decodeStep(step).replace(/~1/g, "/").replace(/~0/g, "~"))
    .reduce((node, key) => (isObject(node) && Object.hasOwn(node, key) ? node[key] : null), root);
}

function decodeStep(step) {
  try {
    return decodeURIComponent(step);
  } catch {
    return step;
  }
}

/** Return the schema with references resolved and without the alternative null, or {} if several types remain. */
function simplify(schema, root) {
  for (let remaining = MAX_REFERENCES; remaining > 0 && isObject(schema); remaining--) {
    if (typeof schema.$ref === "string") {
      schema = resolveReference(schema.$ref, root);
      continue;
    }
    if (Array.isArray(schema.type)) {
      const types = schema.type.filter((type) => type !== "null");
      return { ...schema, type: types.length === 1 ? types[0] : null };
    }
    const options = [schema.anyOf, schema.oneOf, schema.allOf].find(Array.isArray);
    if (options === undefined) return schema;
    const alternatives = options.filter((option) => option?.type !== "null");
    schema = alternatives.length === 1 ? alternatives[0] : null;
  }
  return {};
}

/** Return the fields of a form for `schema`, in the order that the agent specifies with `propertyOrder`. */
function fieldsOf(schema) {
  const rootSchema = simplify(schema, schema);
  if (!isObject(rootSchema.properties) || Object.keys(rootSchema.properties).length === 0) return [fieldOf(null, rootSchema, rootSchema, true)];
  const required = Array.isArray(rootSchema.required) ? rootSchema.required : [];
  const orderOf = ([, property]) => (typeof property?.propertyOrder === "number" ? property.propertyOrder : Infinity);
  return Object.entries(rootSchema.properties)
    .sort((a, b) => (orderOf(a) === orderOf(b) ? 0 : orderOf(a) - orderOf(b)))
    .map(([name, property]) => fieldOf(name, isObject(property) ? property : {}, simplify(property, schema), required.includes(name)));
}

function fieldOf(name, property, schema, required) {
  const text = (key) => [property[key], schema[key]].find((value) => typeof value === "string") ?? "";
  const isEnum = Array.isArray(schema.enum) && schema.enum.length > 0 && schema.enum.every((value) => typeof value !== "object" || value === null);
  const kind = isEnum ? "choice" : ["string", "integer", "number", "boolean"].includes(schema.type) ? schema.type : "json";
  return { name, kind, label: text("title") || name || "Answer", description: text("description"), required, default: property.default, schema };
}

/** Return the fields with a short label if the question has one field, whose label the text of the question contains. */
function withoutRepeatedLabel(fields, message) {
  const label = fields[0].label.replace(/…$/, "");
  const isRepeated = fields.length === 1 && message.parts.some(({ text }) => text?.includes(label));
  return isRepeated ? [{ ...fields[0], label: "Answer" }] : fields;
}

/** Return the control of a field. `control.read()` returns the entered value, or undefined if the control is empty. */
function controlOf(field, id) {
  const attributes = { id, name: field.name, required: field.required, "aria-describedby": `${id}-about` };
  if (field.kind === "boolean" && field.required) return decision(field, id);
  if (field.kind === "boolean") return select(field, attributes, [[true, "Yes"], [false, "No"]]);
  if (field.kind === "choice") return select(field, attributes, field.schema.enum.map((value) => [value, typeof value === "string" ? value : JSON.stringify(value)]));
  if (field.kind === "json") return json(field, attributes);
  return input(field, attributes);
}

/** Return radio buttons without a preselected one, so that each decision is made by the user. */
function decision(field, id) {
  const choices = [[true, "Yes"], [false, "No"]].map(([value, text], index) => {
    const radio = el("input", { id: index ? `${id}-${index}` : id, name: id, type: "radio", required: true, "aria-describedby": `${id}-about` });
    return { value, radio, line: el("div", { class: "check-line" }, radio, el("label", { for: radio.id }, text)) };
  });
  const element = el("div", { class: "decision", role: "radiogroup", "aria-labelledby": `${id}-label` }, ...choices.map(({ line }) => line));
  element.focus = () => choices[0].radio.focus();
  element.read = () => {
    const choice = choices.find(({ radio }) => radio.checked);
    if (choice === undefined) throw new FieldError("Choose Yes or No.");
    return choice.value;
  };
  return element;
}

function select(field, attributes, choices) {
  const selectedIndex = choices.findIndex(([value]) => value === field.default);
  const empty = selectedIndex < 0 ? el("option", { value: "" }, "Choose …") : null;
  const options = choices.map(([, label], index) => el("option", { value: String(index), selected: index === selectedIndex }, label));
  const element = el("select", attributes, empty, ...options);
  element.read = () => (element.value === "" ? undefined : choices[Number(element.value)][0]);
  return element;
}

function json(field, attributes) {
  const text = field.default === undefined || field.default === null ? "" : JSON.stringify(field.default, null, 2);
  const element = el("textarea", { ...attributes, rows: "3", spellcheck: "false", placeholder: "JSON" });
  element.value = text;
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

function input(field, attributes) {
  const { schema, kind } = field;
  const isNumber = kind !== "string";
  const limits = isNumber
    ? { min: schema.minimum, max: schema.maximum, step: kind === "integer" ? "1" : "any" }
    : { minlength: schema.minLength, maxlength: schema.maxLength };
  const type = FORMATS[schema.format] ?? INPUT_TYPES[kind];
  const element = el("input", { ...attributes, ...limits, type, dir: isNumber ? null : "auto", autocomplete: "off" });
  if (["string", "number"].includes(typeof field.default)) element.value = String(field.default);
  element.read = () => (element.value === "" ? undefined : isNumber ? Number(element.value) : element.value);
  return element;
}

class FieldError extends Error {}

let formCount = 0;

export class AnswerForm {
  #schemaText = "";
  #rows = [];

  /** `send(parts)` is awaited. If it fails, the entered values stay in the form. */
  constructor(send) {
    this.send = send;
    this.id = `answer-${++formCount}`;
    this.fields = el("div", { class: "answer-fields" });
    this.button = el("button", { type: "submit", class: "primary" }, "Answer");
    this.hint = el("span", { class: "hint", role: "status" });
    this.element = el("form", { class: "answer-form", hidden: true }, this.fields, el("div", { class: "row" }, this.button, this.hint));
    this.element.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submit();
    });
  }

  /** Show the fields for the schema in the question `message`, or no fields if there is no schema. If the schema has
   * not changed, the entered values stay. */
  show(message) {
    const schema = schemaOf(message);
    const schemaText = schema === null ? "" : JSON.stringify(schema);
    this.element.hidden = schema === null;
    if (schemaText === this.#schemaText) return;
    this.#schemaText = schemaText;
    this.hint.textContent = "";
    this.#rows = schema === null ? [] : withoutRepeatedLabel(fieldsOf(schema), message).map((field, index) => this.#row(field, `${this.id}-${index}`));
    this.fields.replaceChildren(...this.#rows.map((row) => row.element));
  }

  #row(field, id) {
    const control = controlOf(field, id);
    const error = el("span", { class: "field-error" });
    const isDecision = control.getAttribute("role") === "radiogroup";
    const label = el(isDecision ? "div" : "label", { id: `${id}-label`, class: "answer-label", for: isDecision ? null : id, dir: "auto" }, field.label, field.required ? null : el("span", { class: "hint" }, " (optional)"));
    const note = el("div", { id: `${id}-about`, class: "hint" }, field.description ? el("span", { dir: "auto" }, field.description) : null, error);
    const element = el("div", { class: "answer-field" }, label, control, note);
    control.addEventListener("input", () => this.#setError({ control, error }, ""));
    return { field, control, error, element };
  }

  #setError({ control, error }, text) {
    error.textContent = text;
    if (text) control.setAttribute("aria-invalid", "true");
    else control.removeAttribute("aria-invalid");
  }

  /** Return the answer. If a field is invalid, focus the first invalid field and return undefined. */
  #value() {
    const values = [];
    let invalidControl = null;
    for (const row of this.#rows) {
      this.#setError(row, "");
      try {
        const value = row.control.read();
        if (value !== undefined) values.push([row.field.name, value]);
      } catch (error) {
        if (!(error instanceof FieldError)) throw error;
        this.#setError(row, error.message);
        invalidControl ??= row.control;
      }
    }
    invalidControl?.focus();
    if (invalidControl !== null) return undefined;
    return this.#rows.length === 1 && this.#rows[0].field.name === null ? values[0]?.[1] : Object.fromEntries(values);
  }

  async #submit() {
    if (this.button.ariaBusy) return;
    const data = this.#value();
    if (data === undefined) return;
    this.button.ariaBusy = "true";
    this.hint.textContent = "Sending …";
    try {
      await this.send([{ data, mediaType: "application/json" }]);
      this.hint.textContent = "";
    } catch (error) {
      this.#showViolations(error);
    } finally {
      this.button.ariaBusy = null;
    }
  }

  /** Show each violation in the server's error beside its field, and violations without a field below the form. */
  #showViolations(error) {
    const messages = [];
    let firstControl = null;
    for (const { field, description } of error.violations ?? []) {
      const path = String(field ?? "").replace(/^message\.parts\[\d+\]\.data\.?/, "");
      const row = this.#rows.find(({ field: { name } }) => name !== null && (path === name || path.startsWith(`${name}.`) || path.startsWith(`${name}[`)));
      if (row) this.#setError(row, description ?? "");
      else messages.push(description ?? "");
      firstControl ??= row?.control ?? null;
    }
    this.hint.textContent = messages.join(" ") || "Not accepted.";
    firstControl?.focus();
  }
}
