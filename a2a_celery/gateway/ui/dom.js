/**
 * Functions that create and update elements. Untrusted strings are inserted as text, never as markup. The
 * Content-Security-Policy of the page (trusted types) enforces this rule.
 */

/** Returns a new element. An attribute `on…` adds a listener, and null, undefined and false omit an attribute or a
 * child. Strings among the children become text. */
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

/** Updates the children of `parent` to one element for each of `items`, in order. The element of an item that was
 * already shown is reused, with focus and selection. Keys come from agents and clients, so several items may have the
 * same key. Each of these items has its own element. */
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

/** Sets the text of `element` only if it changes, so that a selection in an unchanged text stays. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Marks `element` as the current item of its list, or removes the mark. */
export function mark(element, isCurrent) {
  if (isCurrent) element.setAttribute("aria-current", "true");
  else element.removeAttribute("aria-current");
}

/** Returns a function that calls `draw` in the next frame, only once for all calls before this frame. */
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
    setTimeout(now, 250); // a hidden page has no frames
  };
}

/** Returns a link to `url` if its scheme is http or https. Any other URL, such as "javascript:…", becomes text. */
export function link(url, text = url) {
  let parsed;
  try {
    parsed = new URL(url);
  } catch {
    parsed = null;
  }
  if (parsed === null || !["http:", "https:"].includes(parsed.protocol)) {
    return el("span", { title: "Not a web address, so it is shown as text" }, text === url ? url : `${text} (${url})`);
  }
  return el("a", { href: parsed.href, target: "_blank", rel: "noopener noreferrer", title: parsed.href }, text);
}

/** Returns a button that copies `text`. */
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

/** Returns a new message id. `crypto.randomUUID` is not used, because it is available only on https and localhost. */
export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
