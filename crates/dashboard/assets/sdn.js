// `ropewalk-sdn`: uplinks or switches as cards, and stations. All words come with the view.

import { el, fact, forgetCards, keyed, say, showWords, swatch } from "./page.js";
import { colour } from "./chart.js";

export class Sdn {
  constructor(parent) {
    this.title = el("h2", { id: "cards" });
    this.cards = el("ul", { class: "cards" });
    this.facts = el("dl", { class: "facts" });
    this.head = el("tr");
    this.body = el("tbody");
    this.caption = el("h2", { id: "table" });
    this.table = el("section", { "aria-labelledby": "table", hidden: true }, this.caption,
      el("table", { class: "sites" }, el("thead", {}, this.head), this.body));
    parent.append(
      el("section", { "aria-labelledby": "cards" }, this.title, this.cards),
      el("section", { "aria-labelledby": "decides" }, el("h2", { id: "decides" }, "What the controller decides"), this.facts),
      this.table,
    );
  }

  forget(since) { forgetCards(this.cards, since); }

  /** Shows a view; the sentence about the whole. */
  show({ sdn, points }) {
    const names = points.uplinks.map((uplink) => uplink.name);
    say(this.title, sdn.title);
    keyed(this.cards, sdn.cards, (one) => one.name, card, ({ parts }, one) => {
      const place = names.indexOf(one.name);
      parts.mark.style.background = place < 0 ? "none" : colour(place);
      showWords(parts.words, one.words);
      tell(parts.facts, one.facts);
    });
    tell(this.facts, sdn.facts);
    const { table } = sdn;
    this.table.hidden = !table;
    if (table) {
      say(this.caption, table.title);
      keyed(this.head, table.columns, (text) => text, (text) => el("th", { scope: "col" }, text), () => {});
      keyed(this.body, table.rows, (row) => row[0], (row) => el("tr", {}, ...row.map((_, at) => el("td", { "data-label": table.columns[at] }))),
        ({ children }, row) => row.forEach((text, at) => say(children[at], text)));
    }
    return sdn.state;
  }
}

function card({ name }) {
  const parts = { mark: swatch(), words: el("div"), facts: el("dl") };
  const made = el("li", { class: "card" }, el("h3", {}, parts.mark, name), parts.words, parts.facts);
  made.parts = parts;
  return made;
}

/** Facts, each a name and a text; a name that is new gets a row. */
function tell(list, facts) {
  list.shown ??= new Map();
  for (const [name, text] of facts) {
    if (!list.shown.has(name)) list.shown.set(name, fact(list, name));
    say(list.shown.get(name), text);
  }
}
