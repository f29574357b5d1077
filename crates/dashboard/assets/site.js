// A site: its uplinks with their state in words, and why traffic goes where it goes.

import { act, bytes, dialog, el, fact, forgetCards, keyed, millis, percent, say, showWords, swatch, trouble } from "./page.js";
import { colour } from "./chart.js";
import { get, post } from "./server.js";

/** What an uplink carries when it is full. At other times its rate is what there was to send. */
function fullRate({ full_mbit: up, hub_full_mbit: down }) {
  const ways = [[down, "from"], [up, "towards"]].filter(([rate]) => rate != null);
  if (!ways.length) return "not known: it was not full within the last minute";
  return `at most ${ways.map(([rate, way]) => `${rate.toFixed(rate < 10 ? 1 : 0)} Mbit/s ${way} the hub`).join(", ")}`;
}

export class Site {
  constructor(parent, admin) {
    this.admin = admin;
    this.cards = el("ul", { class: "cards" });
    this.leftOut = el("p", { class: "soft" });
    const facts = el("dl", { class: "facts" });
    this.scheduler = fact(facts, "Scheduler");
    this.reason = fact(facts, "Why, when sending");
    this.protection = fact(facts, "Protection");
    this.data = fact(facts, "Data inside");
    this.kill = fact(facts, "Kill switch");
    this.choice = el("div", { class: "buttons" });
    parent.append(
      el("section", { "aria-labelledby": "uplinks" }, el("h2", { id: "uplinks" }, "Uplinks"), this.cards, this.leftOut),
      el("section", { "aria-labelledby": "tunnel" }, el("h2", { id: "tunnel" }, "Tunnel"), facts, this.choice),
    );
    if (admin) this.offerSchedulers();
  }

  async offerSchedulers() {
    const all = await get("/api/schedulers").catch(() => null);
    if (!all) return;
    this.select = el("select", { id: "scheduler" }, ...all.available.map((one) => el("option", { value: one.name, title: one.description }, one.name)));
    this.select.value = all.tunnels[0]?.send ?? "auto";
    const use = el("button", { type: "button" }, "Use this scheduler");
    use.addEventListener("click", () => act(use, () => post("/api/scheduler", { kind: this.select.value }), `Scheduler ${this.select.value} is in use, until the next start.`));
    this.choice.append(el("label", { for: "scheduler" }, "Scheduler "), this.select, use);
  }

  forget(since) { forgetCards(this.cards, since); }

  /** Shows a view; the sentence about the whole. */
  show(view) {
    const { tunnel } = view;
    if (!tunnel) return "The gateway starts.";
    const names = view.points.uplinks.map((uplink) => uplink.name);
    keyed(this.cards, tunnel.uplinks, (uplink) => uplink.name, (uplink) => this.card(uplink.name), (card, uplink) => this.update(card, uplink, names));
    this.uplinks = tunnel.uplinks;
    say(this.leftOut, view.left_out && `Interfaces ${view.left_out}.`);
    say(this.scheduler, tunnel.send === tunnel.receive ? tunnel.send : `${tunnel.send} sending, ${tunnel.receive} receiving`);
    say(this.reason, tunnel.reason || "nothing to tell");
    say(this.protection, tunnel.protection || "costs nothing now");
    say(this.data, `${bytes(tunnel.sent_bytes)} sent, ${bytes(tunnel.received_bytes)} received since the start`);
    const kill = view.kill_switch;
    say(this.kill, !kill ? "not there: not everything goes through the tunnel" : kill.is_set ? `on, ${kill.refused} packets refused` : "off: traffic may leave beside the tunnel");
    const up = tunnel.uplinks.filter((uplink) => uplink.state === "up");
    const worse = up.filter((uplink) => uplink.words.some((said) => said.weight !== "good"));
    const count = tunnel.uplinks.length;
    return `${tunnel.up ? "The tunnel is up" : "The tunnel is down"}: ${up.length} of ${count} ${count === 1 ? "uplink works" : "uplinks work"}${trouble(worse.map((uplink) => uplink.name))}.`;
  }

  card(name) {
    const mark = swatch();
    const words = el("div");
    const facts = el("dl");
    const card = el("li", { class: "card" }, el("h3", {}, mark, name), words, facts);
    card.parts = { swatch: mark, words, rtt: fact(facts, "Round trip"), loss: fact(facts, "Loss"), rate: fact(facts, "Rate"), data: fact(facts, "Data used"), via: fact(facts, "Via") };
    if (this.admin) this.actions(card, name);
    return card;
  }

  actions(card, name) {
    const change = (button, body, done) => act(button, () => post("/api/path", { uplink: name, ...body }), done);
    const button = (text, on) => { const made = el("button", { type: "button", "aria-label": `${text}: ${name}` }, text); made.addEventListener("click", () => on(made)); return made; };
    const use = button("Take out of use", async (pressed) => {
      const enabled = card.state === "disabled";
      const last = !enabled && this.uplinks.filter((uplink) => uplink.state === "up").every((uplink) => uplink.name === name);
      if (last && !(await dialog("The last uplink that works", [el("p", {}, `Without ${name} nothing reaches the hub. If you reach this machine through the tunnel, you lose it.`)], ["Take it out of use", "Cancel"]))) return;
      await change(pressed, { enabled }, enabled ? `${name} is used again.` : `${name} is out of use, until the next start.`);
    });
    const leave = button("It will end soon", (pressed) => {
      const leaving = card.state !== "leaving";
      return change(pressed, leaving ? { leaving, seconds: 600 } : { leaving }, leaving ? `${name} is left: it carries traffic only while nothing else works, for 10 minutes at most.` : `${name} is used like the others.`);
    });
    const toggle = (mark) => button(mark[0].toUpperCase() + mark.slice(1), async (pressed) => {
      const value = pressed.getAttribute("aria-pressed") !== "true";
      const done = await change(pressed, { [mark]: value }, `${name} is ${value ? "" : "no longer "}${mark}, until the next start.`);
      // The next view says so, too; who presses again sooner means the new state.
      if (done) pressed.setAttribute("aria-pressed", String(value));
    });
    const metered = toggle("metered");
    const standby = toggle("standby");
    Object.assign(card.parts, { use, leave, metered, standby });
    card.append(el("div", { class: "buttons" }, use, leave, metered, standby));
  }

  update(card, uplink, names) {
    const { parts } = card;
    card.state = uplink.state;
    const place = names.indexOf(uplink.name);
    parts.swatch.style.background = place < 0 ? "none" : colour(place);
    showWords(parts.words, uplink.words);
    // What is dead or in doubt has only old figures.
    const carries = ["up", "leaving"].includes(uplink.state);
    say(parts.rtt, carries ? millis(uplink.rtt_ms) : "–");
    say(parts.loss, carries ? percent(uplink.loss) : "–");
    say(parts.rate, carries ? fullRate(uplink) : "–");
    say(parts.data, `${bytes(uplink.sent_bytes)} sent, ${bytes(uplink.received_bytes)} received by this connection`);
    const via = { quic: "UDP (QUIC)", tls: "TCP (TLS)" }[uplink.via] ?? "no connection";
    say(parts.via, uplink.remote ? `${via} to ${uplink.remote}` : via);
    if (!this.admin) return;
    const label = (button, text) => { say(button, text); button.setAttribute("aria-label", `${text}: ${uplink.name}`); };
    label(parts.use, uplink.state === "disabled" ? "Use again" : "Take out of use");
    label(parts.leave, uplink.state === "leaving" ? "It stays" : "It will end soon");
    parts.leave.hidden = !["up", "leaving"].includes(uplink.state);
    for (const mark of ["metered", "standby"]) parts[mark].setAttribute("aria-pressed", String(uplink[mark]));
  }
}
