// The page: charts above, then what a site or a hub has to say.

import { Chart, append } from "./chart.js";
import { byId, clock, day, dialog, duration, el, keyed, millis, percent, rate, say, showWords, act, copyButton, SIGNS } from "./page.js";
import { begin, get, insist, post, watch } from "./server.js";
import { Site } from "./site.js";
import { Hub } from "./hub.js";
import { Balance } from "./balance.js";
import { Sdn } from "./sdn.js";

// Who shows what; a relay is shown as a hub.
const PARTS = { site: Site, balance: Balance, sdn: Sdn };

let charts = [];
let history = null;
let range = "minutes";
let main = null;
let admin = false;
let fetched = 0;
// When the last view came, milliseconds since 1970; 0 before the first.
let seen = 0;
let who = "gateway";

function makeCharts({ role, sdn }) {
  const parent = byId("charts");
  const make = (what) => new Chart(parent, what);
  if (role === "site") {
    charts = [
      make({ title: "Received", part: "received", format: rate, stacked: true }),
      make({ title: "Sent", part: "sent", format: rate, stacked: true, line: { title: "asked for", values: (h) => h.offered } }),
      make({ title: "Round trip", part: "rtt_ms", format: millis }),
      make({ title: "Loss", part: "loss", format: percent }),
    ];
  } else if (role === "balance") {
    charts = [
      make({ title: "Received", part: "received", format: rate, stacked: true }),
      make({ title: "Sent", part: "sent", format: rate, stacked: true }),
      make({ title: "Round trip of probes", part: "rtt_ms", format: millis }),
    ];
  } else if (role === "sdn") {
    // The controller keeps no past: charts begin when the page is opened.
    document.querySelector(".ranges").hidden = true;
    charts = sdn.load ? [make({ title: "Load", part: "received", format: rate, stacked: true })] : [];
    charts.push(
      make({ title: "Round trip of probes", part: "rtt_ms", format: millis }),
      make({ title: "Loss of probes", part: "loss", format: percent }),
    );
  } else {
    charts = [
      make({ title: "From the sites", part: "received", format: rate, stacked: true }),
      make({ title: "To the sites", part: "sent", format: rate, stacked: true, line: { title: "asked for", values: (h) => h.offered } }),
    ];
  }
  byId("charts-part").hidden = false;
}

async function fetchHistory() {
  fetched = Date.now();
  const wanted = range;
  const got = await get(`/api/history?range=${wanted}`).catch(() => null);
  if (!got || wanted !== range) return;
  history = got;
  charts.forEach((chart) => chart.show(history));
}

async function follow(points) {
  if (history && range === "minutes" && append(history, points)) {
    charts.forEach((chart) => chart.show(history));
  } else if (Date.now() - fetched > (range === "minutes" ? 1000 : 10000)) {
    await fetchHistory();
  }
}

function onView(view) {
  seen = Date.now();
  document.body.classList.remove("stale");
  if (!main) {
    if (view.role === "sdn") who = "controller";
    if (view.sdn?.charts !== false) makeCharts(view);
    main = new (PARTS[view.role] ?? Hub)(byId("parts"), admin);
    byId("parts").append(happened.part, help(admin));
  }
  // Without a name in its configuration a gateway is called as its role.
  const named = view.name && view.name !== view.role;
  const title = `${view.role} ${(named ? view.name : view.addresses[0]) ?? ""}`.trim();
  say(byId("title"), title);
  document.title = `${title} – Ropewalk`;
  say(byId("facts"), `version ${view.version}, running for ${duration(view.uptime_s)}${[view.interface, ...(named ? view.addresses : [])].map((text) => text && `, ${text}`).join("")}${admin ? "" : ", for looking only"}`);
  showWords(byId("words"), view.words, "li");
  say(byId("state"), main.show(view));
  happened.look();
  follow(view.points);
}

/** There is no view: `silent` where the gateway is known not to answer. */
function onGone(why, silent = false) {
  if (!seen) return say(byId("state"), `No news: ${why}. The page goes on trying.`);
  const since = clock(seen / 1000);
  const what = silent ? `The ${who} has not answered since ${since}` : `No news of the ${who} since ${since}`;
  say(byId("state"), `${what}: ${why}. The page goes on trying. What stands below is from then.`);
  if (document.body.classList.contains("stale")) return;
  document.body.classList.add("stale");
  main.forget(since);
}

// What happened, asked for now and then.
const happened = {
  list: el("ol", { class: "events", tabindex: "0", "aria-label": "What happened, newest first" }),
  asked: 0,
  async look() {
    if (Date.now() - this.asked < 5000) return;
    this.asked = Date.now();
    const all = await get("/api/happened").catch(() => null);
    if (!all) return;
    const today = new Date().toDateString();
    const items = all.map((event, index) => ({ ...event, index })).reverse();
    keyed(this.list, items, (event) => `${event.at_s} ${event.index} ${event.what}`,
      (event) => {
        const old = new Date(event.at_s * 1000).toDateString() !== today;
        return el("li", {}, el("time", { datetime: new Date(event.at_s * 1000).toISOString() }, old ? day(event.at_s) : clock(event.at_s)), event.what);
      }, () => {});
  },
};
happened.part = el("section", { "aria-labelledby": "happened" }, el("h2", { id: "happened" }, "What happened"), happened.list);

function help(allowed) {
  if (!allowed) return el("div");
  const doctor = el("button", { type: "button" }, "Run the doctor");
  doctor.addEventListener("click", async () => {
    const found = await act(doctor, () => post("/api/doctor"), (result) => (result.ok ? "The doctor found nothing that fails." : "The doctor found something that fails."));
    if (!found) return;
    const signs = { ok: "good", warn: "worse", fail: "bad" };
    const item = (check) => el("li", {}, el("strong", { class: signs[check.state] }, `${SIGNS[signs[check.state]]} ${check.name}: `), check.found, check.remedy ? el("p", {}, check.remedy) : null);
    await dialog("What the doctor found", [el("ul", {}, ...found.checks.map(item))], ["Close"]);
  });
  const report = el("button", { type: "button" }, "Make a report for support");
  report.addEventListener("click", async () => {
    const made = await act(report, () => post("/api/report"), "The report is made.");
    if (!made) return;
    await dialog("Report for support", [el("p", {}, "Keys and tokens are left out. Names and addresses are not: read it before you send it."), el("pre", { class: "token", tabindex: "0" }, made.report), copyButton(made.report, "Copy the report")], ["Close"]);
  });
  return el("section", { "aria-labelledby": "help" }, el("h2", { id: "help" }, "When something is wrong"), el("div", { class: "buttons" }, doctor, report));
}

for (const button of document.querySelectorAll("[data-range]")) {
  button.addEventListener("click", () => {
    range = button.dataset.range;
    document.querySelectorAll("[data-range]").forEach((other) => other.setAttribute("aria-pressed", String(other === button)));
    fetchHistory();
  });
}

try {
  await insist(begin, onGone);
  admin = (await insist(() => get("/api/about"), onGone)).admin;
  watch(onView, onGone);
} catch (error) {
  say(byId("state"), `No entry: ${error.message}.`);
}
