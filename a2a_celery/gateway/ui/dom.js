/**
 * Elements. Whatever comes from outside goes in as text: no part of this page makes markup of a string, and its
 * Content-Security-Policy (trusted types) would not let it.
 */

/** An element with attributes (`on…`: a listener; null, undefined and false: left out) and children (strings are text). */
export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

/** Puts `items` into `parent` in their order; elements of items that stay are kept, with focus and selection. Of items with
 * the same key, which is whatever an agent or a client has made up, each has its own element. */
export function keyed(parent, items, keyOf, make, update) {
  const old = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  const times = new Map();
  let before = parent.firstElementChild;
  for (const item of items) {
    const given = keyOf(item);
    times.set(given, (times.get(given) ?? 0) + 1);
    const key = `${times.get(given)} ${given}`;
    let child = old.get(key);
    old.delete(key);
    if (!child) {
      child = make(item);
      child.dataset.key = key;
    }
    update(child, item);
    if (child === before) before = before.nextElementSibling;
    else parent.insertBefore(child, before);
  }
  for (const gone of old.values()) gone.remove();
}

/** Sets the text of `element`, if it is another one: a selection in it stays. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Marks `element` as the current one of its list, or not. */
export function mark(element, isCurrent) {
  if (isCurrent) element.setAttribute("aria-current", "true");
  else element.removeAttribute("aria-current");
}

/** Calls `draw` once in the next frame, however often it is asked for. */
export function oncePerFrame(draw) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    const now = () => {
      if (!asked) return;
      asked = false;
      draw();
    };
    requestAnimationFrame(now);
    setTimeout(now, 250); // a page that nobody sees has no frames
  };
}

/** A link to `url` if that is http or https, else its text: "javascript:" and the like lead nowhere. */
export function link(url, text = url) {
  let parsed;
  try {
    parsed = new URL(url);
  } catch {
    parsed = null;
  }
  if (parsed === null || !["http:", "https:"].includes(parsed.protocol)) {
    return el("span", { title: "Not a web address: shown as text" }, text === url ? url : `${text} (${url})`);
  }
  return el("a", { href: parsed.href, target: "_blank", rel: "noopener noreferrer", title: parsed.href }, text);
}

/** A button that copies `text`. */
export function copier(text, label) {
  const button = el("button", { type: "button", class: "quiet small", "aria-label": label, title: label }, "Copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Not allowed";
    }
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  return button;
}

/** An id for a message; `crypto.randomUUID` is there on https and localhost only. */
export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
