// A hub: its sites, whom to invite, whom to shut out.

import { act, bytes, copyButton, dialog, el, keyed, rate, say, trouble, SIGNS } from "./page.js";
import { post } from "./server.js";

const ROWS = 100;
const LABELS = ["Site", "State", "Paths", "To it", "From it", "Total", "Wire", "Address"];

export class Hub {
  constructor(parent, admin) {
    this.admin = admin;
    this.last = new Map();
    this.rows = ROWS;
    this.search = el("input", { type: "search", id: "search", autocomplete: "off" });
    this.search.addEventListener("input", () => { this.rows = ROWS; this.list(); });
    this.only = el("input", { type: "checkbox", id: "only" });
    this.only.addEventListener("change", () => this.list());
    this.found = el("p", { role: "status", "aria-live": "polite", class: "soft" });
    this.body = el("tbody");
    this.more = el("button", { type: "button", on: () => { this.rows += ROWS; this.list(); } }, "Show more");
    const head = [...LABELS, ...(admin ? ["Action"] : [])].map((text) => el("th", { scope: "col" }, text));
    parent.append(el("section", { "aria-labelledby": "sites" },
      el("h2", { id: "sites" }, "Sites"),
      el("div", { class: "buttons" }, el("label", { for: "search" }, "Find "), this.search, el("label", {}, this.only, " only what is not well"), ...(admin ? this.inviting() : [])),
      this.found,
      el("table", { class: "sites" }, el("thead", {}, el("tr", {}, ...head)), this.body),
      this.more));
  }

  inviting() {
    const name = el("input", { id: "invite", autocomplete: "off", maxlength: "64" });
    const button = el("button", { type: "button" }, "Invite");
    button.addEventListener("click", async () => {
      const made = await act(button, () => post("/api/invite", { name: name.value }), `Site ${name.value} is invited.`);
      if (!made) return;
      name.value = "";
      const body = [el("p", {}, "This token is a secret for one machine, once, for 24 hours. On that machine run: ropewalk join")];
      if (made.qr) body.push(qrCode(made.qr));
      body.push(el("p", { class: "token", tabindex: "0" }, made.token), copyButton(made.token, "Copy the token"));
      await dialog("Invitation", body, ["Close"]);
    });
    return [el("label", { for: "invite" }, "New site "), name, button];
  }

  show(view) {
    this.since = null;
    const seconds = view.now_s - (this.before ?? view.now_s);
    for (const site of view.sites) {
      const old = this.last.get(site.name);
      const speed = (now, then) => (old && seconds > 0 && now >= then ? (8 * (now - then)) / seconds : null);
      site.to = speed(site.sent_bytes, old?.sent_bytes);
      site.from = speed(site.received_bytes, old?.received_bytes);
    }
    if (seconds > 0 || !this.before) {
      this.before = view.now_s;
      this.last = new Map(view.sites.map((site) => [site.name, site]));
    }
    this.sites = view.sites;
    this.list();
    const up = view.sites.filter((site) => site.up);
    return `${up.length} of ${view.sites.length} sites are connected${trouble(up.filter((site) => site.words.length).map((site) => site.name))}.`;
  }

  /** There is no news since then. */
  forget(since) {
    this.since = since;
    for (const row of this.body.rows) {
      row.cells[1].className = "unknown";
      say(row.cells[1], `${SIGNS.unknown} not known since ${since}`);
      for (const at of [2, 3, 4]) say(row.cells[at], "–");
    }
  }

  list() {
    const wanted = this.search.value.trim().toLowerCase();
    const all = (this.sites ?? []).filter((site) => {
      const fits = !wanted || site.name.toLowerCase().includes(wanted) || site.addresses.includes(wanted);
      return fits && (!this.only.checked || !site.up || site.words.length > 0);
    });
    say(this.found, `${all.length} of ${this.sites?.length ?? 0} sites match${all.length > this.rows ? `; the first ${this.rows} are shown` : ""}.`);
    this.more.hidden = all.length <= this.rows;
    keyed(this.body, all.slice(0, this.rows), (site) => site.name, (site) => this.row(site), update);
    if (this.since) this.forget(this.since);
  }

  row(site) {
    const cells = LABELS.map((label) => el("td", { "data-label": label }));
    say(cells[0], site.name);
    const row = el("tr", {}, ...cells);
    if (this.admin) {
      const button = el("button", { type: "button", "aria-label": `Revoke: ${site.name}` }, "Revoke");
      button.addEventListener("click", async () => {
        const sure = await dialog("Shut a site out", [el("p", {}, `Site ${site.name} is disconnected at once, and needs a new invitation to come back.`)], ["Revoke it", "Cancel"]);
        if (sure) await act(button, () => post("/api/revoke", { name: site.name }), `Site ${site.name} is revoked.`);
      });
      row.append(el("td", {}, button));
    }
    return row;
  }
}

function update(row, site) {
  const cells = row.children;
  const wrong = site.words.map(([uplink, said]) => `${uplink}: ${said.text}`).join("; ");
  const weight = !site.up ? "bad" : site.words.length ? "worse" : "good";
  const state = site.up ? (wrong || "well") : "not connected";
  cells[1].className = weight;
  say(cells[1], `${SIGNS[weight]} ${state}`);
  say(cells[2], `${site.paths[0]} of ${site.paths[1]}`);
  say(cells[3], rate(site.to));
  say(cells[4], rate(site.from));
  say(cells[5], bytes(site.sent_bytes + site.received_bytes));
  say(cells[6], site.wire ? String(site.wire) : "–");
  say(cells[7], site.addresses);
}

/** A QR code as a picture of squares, with its quiet zone. */
function qrCode({ width, bits }) {
  const ns = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(ns, "svg");
  svg.setAttribute("viewBox", `-4 -4 ${width + 8} ${width + 8}`);
  svg.setAttribute("class", "qr");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", "The token as a QR code");
  svg.setAttribute("shape-rendering", "crispEdges");
  const path = document.createElementNS(ns, "path");
  let steps = "";
  for (let at = 0; at < bits.length; at += 1) if (bits[at] === "1") steps += `M${at % width} ${Math.floor(at / width)}h1v1h-1z`;
  path.setAttribute("d", steps);
  path.setAttribute("fill", "#000");
  svg.append(path);
  return svg;
}
