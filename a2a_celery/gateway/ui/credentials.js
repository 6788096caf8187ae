/**
 * Credentials of the page's requests: a bearer token or an API key, in memory or in the sessionStorage of this tab.
 * They are never in a cookie, so pages of other sites cannot make the browser send them.
 */

import { el } from "./dom.js";

const KEPT = "a2a-credentials";

export class Credentials {
  #header = null;
  #value = "";

  constructor() {
    try {
      const kept = JSON.parse(sessionStorage.getItem(KEPT) ?? "null");
      if (kept) [this.#header, this.#value] = kept;
    } catch {
      // sessionStorage is blocked, or its content is not from this page
    }
  }

  get given() {
    return this.#header !== null;
  }

  /** Returns the headers that authenticate a request. */
  headers() {
    return this.#header === null ? {} : { [this.#header]: this.#value };
  }

  use(header, value, keep) {
    this.#header = value ? header : null;
    this.#value = value;
    try {
      if (value && keep) sessionStorage.setItem(KEPT, JSON.stringify([header, value]));
      else sessionStorage.removeItem(KEPT);
    } catch {
      // sessionStorage is blocked, so the credentials stay in memory only
    }
  }
}

/** Returns the kinds of credentials that the form offers, as `{ header, prefix, label }`: a bearer token, and the API
 * keys that `card` declares. */
function ways(card) {
  const found = [{ header: "Authorization", prefix: "Bearer ", label: "Bearer token" }];
  for (const scheme of Object.values(card?.securitySchemes ?? {})) {
    const key = scheme?.apiKeySecurityScheme;
    if (key?.location === "header" && /^[A-Za-z0-9-]+$/.test(key.name ?? "")) {
      found.push({ header: key.name, prefix: "", label: `API key (${key.name})` });
    }
  }
  return found;
}

/** Fills `sheet` with the form. `done()` is called after the credentials have changed. */
export function showForm(sheet, credentials, card, done) {
  const offered = ways(card);
  const kind = el("select", { id: "credential-kind" }, ...offered.map(({ label }, i) => el("option", { value: i }, label)));
  const value = el("input", { type: "password", id: "credential-value", autocomplete: "off", spellcheck: "false" });
  const keep = el("input", { type: "checkbox", id: "credential-keep" });
  const form = el(
    "form",
    { class: "fields" },
    el("label", { for: "credential-kind" }, "Kind"),
    kind,
    el("label", { for: "credential-value" }, "Token or key"),
    value,
    el("label", { class: "check" }, keep, " Keep until this tab is closed"),
    el("div", { class: "row" }, el("button", { type: "submit", class: "primary" }, "Sign in"), forget()),
    el("p", { class: "hint" }, "The page sends it in a header of each request, only to this address."),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const { header, prefix } = offered[Number(kind.value)];
    const given = value.value.trim();
    credentials.use(header, given && prefix + given.replace(/^bearer\s+/i, ""), keep.checked);
    done();
  });
  sheet.replaceChildren(form);
  value.focus();

  function forget() {
    if (!credentials.given) return null;
    const button = el("button", { type: "button" }, "Sign out");
    button.addEventListener("click", () => {
      credentials.use(null, "", false);
      done();
    });
    return button;
  }
}
