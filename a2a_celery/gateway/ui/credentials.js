/**
 * Credentials of the page's requests: a bearer token or an API key, in memory or in the sessionStorage of this tab.
 * They are never in a cookie, so pages of other sites cannot make the browser send them.
 */

import { el } from "./dom.js";

const STORAGE_KEY = "a2a-credentials";

export class Credentials {
  #header = null;
  #value = "";

  constructor() {
    try {
      const entry = JSON.parse(sessionStorage.getItem(STORAGE_KEY) ?? "null");
      if (entry) [this.#header, this.#value] = entry;
    } catch {
      // sessionStorage is blocked, or its content is not from this page
    }
  }

  get isSet() {
    return this.#header !== null;
  }

  /** Return the headers that authenticate a request. */
  headers() {
    return this.#header === null ? {} : { [this.#header]: this.#value };
  }

  update(header, value, persist) {
    this.#header = value ? header : null;
    this.#value = value;
    try {
      if (value && persist) sessionStorage.setItem(STORAGE_KEY, JSON.stringify([header, value]));
      else sessionStorage.removeItem(STORAGE_KEY);
    } catch {
      // sessionStorage is blocked, so the credentials stay in memory only
    }
  }
}

/** Return the kinds of credentials that the form offers, as `{ header, prefix, label }`: a bearer token, and the API
 * keys that `card` declares. */
function credentialKinds(card) {
  const kinds = [{ header: "Authorization", prefix: "Bearer ", label: "Bearer token" }];
  for (const scheme of Object.values(card?.securitySchemes ?? {})) {
    const key = scheme?.apiKeySecurityScheme;
    if (key?.location === "header" && /^[A-Za-z0-9-]+$/.test(key.name ?? "")) {
      kinds.push({ header: key.name, prefix: "", label: `API key (${key.name})` });
    }
  }
  return kinds;
}

/** Fill `sheet` with the form. `onChange()` is called after the credentials have changed. */
export function showForm(sheet, credentials, card, onChange) {
  const kinds = credentialKinds(card);
  const kind = el("select", { id: "credential-kind" }, ...kinds.map(({ label }, i) => el("option", { value: i }, label)));
  const value = el("input", { type: "password", id: "credential-value", autocomplete: "off", spellcheck: "false" });
  const persistCheckbox = el("input", { type: "checkbox", id: "credential-keep" });
  const form = el(
    "form",
    { class: "fields" },
    el("label", { for: "credential-kind" }, "Kind"),
    kind,
    el("label", { for: "credential-value" }, "Token or key"),
    value,
    el("label", { class: "check" }, persistCheckbox, " Keep until this tab is closed"),
    el("div", { class: "row" }, el("button", { type: "submit", class: "primary" }, "Sign in"), signOutButton()),
    el("p", { class: "hint" }, "The page sends it in a header of each request, only to this address."),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const { header, prefix } = kinds[Number(kind.value)];
    const secret = value.value.trim();
    credentials.update(header, secret && prefix + secret.replace(/^bearer\s+/i, ""), persistCheckbox.checked);
    onChange();
  });
  sheet.replaceChildren(form);
  value.focus();

  function signOutButton() {
    if (!credentials.isSet) return null;
    const button = el("button", { type: "button" }, "Sign out");
    button.addEventListener("click", () => {
      credentials.update(null, "", false);
      onChange();
    });
    return button;
  }
}
