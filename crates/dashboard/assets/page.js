// Makes elements. Names and texts of others come in as text only, never as markup.

export const byId = (id) => document.getElementById(id);

/** An element: attributes, `on` for a click, then children, which are elements or texts. */
export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "on") made.addEventListener("click", value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value != null) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child != null));
  return made;
}

/** Sets a text only when it differs, so that nothing is read aloud twice and selections stay. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Keeps children of `parent` in step with `items`: `make` once for each key, `update` each time. */
export function keyed(parent, items, key, make, update) {
  const old = parent.kept ?? new Map();
  const kept = new Map();
  let place = parent.firstElementChild;
  for (const item of items) {
    const name = key(item);
    if (kept.has(name)) continue;
    const child = old.get(name) ?? make(item);
    kept.set(name, child);
    old.delete(name);
    update(child, item);
    if (child === place) place = place.nextElementSibling;
    else parent.insertBefore(child, place);
  }
  for (const gone of old.values()) gone.remove();
  parent.kept = kept;
}

/** A row of a list of facts; the element for its value. */
export const fact = (list, name) => {
  const value = el("dd");
  list.append(el("dt", {}, name), value);
  return value;
};

/** The square that says which colour an uplink has in the charts. */
export function swatch() {
  const made = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  made.setAttribute("class", "swatch");
  made.setAttribute("aria-hidden", "true");
  return made;
}

/** Shows the state of an uplink in words. */
export function showWords(parent, words, tag = "p") {
  keyed(parent, words, (said) => said.about, () => el(tag), (child, said) => {
    child.className = said.weight;
    say(child, `${SIGNS[said.weight]} ${said.text}`);
  });
}

const scaled = (value, units, step) => {
  let unit = 0;
  while (value >= step && unit + 1 < units.length) { value /= step; unit += 1; }
  return `${value.toFixed(unit && value < 100 ? 1 : 0)} ${units[unit]}`;
};
export const bytes = (count) => scaled(count, ["B", "kB", "MB", "GB", "TB"], 1000);
export const rate = (bits) => (bits == null ? "–" : scaled(bits, ["bit/s", "kbit/s", "Mbit/s", "Gbit/s"], 1000));
export const millis = (ms) => (ms == null ? "–" : `${ms < 10 ? ms.toFixed(1) : ms.toFixed(0)} ms`);
export const percent = (part) => (part == null ? "–" : `${(part * 100).toFixed(part < 0.1 ? 1 : 0)} %`);
export const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString();
export const day = (seconds) => new Date(seconds * 1000).toLocaleString();
export function duration(seconds) {
  const parts = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const first = Math.max(0, parts.findIndex(([, size]) => seconds >= size));
  return parts.slice(first, first + 2).map(([name, size], index) => {
    const whole = Math.floor(index ? (seconds % parts[first][1]) / size : seconds / size);
    return `${whole} ${name}`;
  }).join(" ");
}

/** Words with a sign beside the colour. */
export const SIGNS = { good: "✓", worse: "!", bad: "✗", unknown: "?" };

/** What cards say while there is no news. */
export function forgetCards(cards, since) {
  const text = `not known since ${since}; the figures are from then`;
  for (const card of cards.children) showWords(card.parts.words, [{ about: "unknown", weight: "unknown", text }]);
}

/** For the end of a sentence about those that work: how many of them have trouble, and which if they are few. */
export const trouble = (names) => {
  const which = names.length <= 3 ? `: ${names.join(", ")}` : "";
  return names.length ? `, ${names.length} of them ${names.length === 1 ? "has" : "have"} trouble${which}` : "";
};

/** Says what came of an action. */
export function tell(text) { say(byId("said"), text); }

/** Does something that may fail, and says what came of it. The button waits meanwhile. */
export async function act(button, doing, done) {
  button?.setAttribute("disabled", "");
  tell("Working on it.");
  try {
    const result = await doing();
    tell(typeof done === "function" ? done(result) : done);
    return result;
  } catch (error) {
    tell(`That did not work: ${error.message}.`);
    return undefined;
  } finally {
    button?.removeAttribute("disabled");
  }
}

/** Asks or shows something; resolves to true when the first button was pressed. */
export function dialog(title, body, buttons) {
  const shown = byId("dialog");
  say(byId("dialog-title"), title);
  byId("dialog-body").replaceChildren(...body);
  return new Promise((resolve) => {
    const end = (answer) => {
      shown.close();
      // What was shown may be a secret.
      byId("dialog-body").replaceChildren();
      resolve(answer);
    };
    byId("dialog-buttons").replaceChildren(...buttons.map((text, index) => el("button", { type: "button", on: () => end(index === 0) }, text)));
    shown.oncancel = () => end(false);
    shown.showModal();
  });
}

/** A button that copies a text. */
export function copyButton(text, label) {
  const button = el("button", { type: "button" }, label);
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(text).then(
      () => say(button, "Copied"),
      () => say(button, "Not copied: select the text and copy by hand"),
    );
  });
  return button;
}
