// `ropewalk balance`: how flows are spread over the uplinks, and why.

import { bytes, duration, el, fact, forgetCards, keyed, millis, say, showWords, swatch } from "./page.js";
import { colour } from "./chart.js";

const COLUMNS = ["Rule", "IPv4 over", "IPv6 over", "Addresses of names"];
const mbit = (value) => (value == null ? "not known: never seen full" : `${value.toFixed(1)} Mbit/s`);

export class Balance {
  constructor(parent) {
    this.cards = el("ul", { class: "cards" });
    const facts = el("dl", { class: "facts" });
    this.mode = fact(facts, "New flows");
    this.affinity = fact(facts, "Affinity");
    this.body = el("tbody");
    const head = COLUMNS.map((text) => el("th", { scope: "col" }, text));
    this.rules = el("section", { "aria-labelledby": "rules", hidden: true },
      el("h2", { id: "rules" }, "Rules"),
      el("table", { class: "sites" }, el("thead", {}, el("tr", {}, ...head)), this.body));
    parent.append(
      el("section", { "aria-labelledby": "uplinks" }, el("h2", { id: "uplinks" }, "Uplinks"), this.cards),
      el("section", { "aria-labelledby": "spread" }, el("h2", { id: "spread" }, "How flows are spread"), facts),
      this.rules,
    );
  }

  forget(since) { forgetCards(this.cards, since); }

  /** Shows a view; the sentence about the whole. */
  show(view) {
    const { balance } = view;
    if (!balance) return "The gateway starts.";
    const names = view.points.uplinks.map((uplink) => uplink.name);
    keyed(this.cards, balance.uplinks, (uplink) => uplink.name, card, (made, uplink) => update(made, uplink, names));
    say(this.mode, `mode ${balance.mode}`);
    say(this.affinity, balance.affinity_s ? `a client keeps its uplink to a site for ${duration(balance.affinity_s)}` : "none: each flow may take another uplink");
    this.rules.hidden = !balance.rules.length;
    keyed(this.body, balance.rules, (rule) => rule.rule, row, updateRow);
    const used = balance.uplinks.filter((uplink) => uplink.used).length;
    const flows = balance.uplinks.reduce((sum, uplink) => sum + uplink.flows, 0);
    return `${used} of ${balance.uplinks.length} uplinks take new flows; there are ${flows} flows.`;
  }
}

function card({ name }) {
  const mark = swatch();
  const words = el("div");
  const facts = el("dl");
  const made = el("li", { class: "card" }, el("h3", {}, mark, name), words, facts);
  made.parts = { mark, words, flows: fact(facts, "Flows"), load: fact(facts, "Load"), capacity: fact(facts, "Capacity"), rtt: fact(facts, "Round trip"), data: fact(facts, "Data"), failures: fact(facts, "Failures") };
  return made;
}

function update({ parts }, uplink, names) {
  const place = names.indexOf(uplink.name);
  parts.mark.style.background = place < 0 ? "none" : colour(place);
  showWords(parts.words, uplink.words);
  say(parts.flows, `${uplink.flows}${uplink.metered ? ", metered" : ""}`);
  say(parts.load, mbit(uplink.load_mbit));
  say(parts.capacity, mbit(uplink.capacity_mbit));
  say(parts.rtt, millis(uplink.rtt_ms));
  say(parts.data, `${bytes(uplink.sent_bytes)} sent, ${bytes(uplink.received_bytes)} received by the interface`);
  say(parts.failures, uplink.failures ? `failed ${uplink.failures} times, which ended ${uplink.severed} connections` : "none");
}

function row() {
  return el("tr", {}, ...COLUMNS.map((label) => el("td", { "data-label": label })));
}

function updateRow({ children }, rule) {
  const over = (uplinks) => uplinks.join(", ") || "none";
  [rule.rule, over(rule.uplinks_ipv4), over(rule.uplinks_ipv6), String(rule.addresses)].forEach((text, at) => say(children[at], text));
}
