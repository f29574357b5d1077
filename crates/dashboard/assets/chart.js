// Charts of a history, each with a legend in words and a table.

import { clock, day, el, say, keyed, millis, percent, rate, swatch } from "./page.js";

// Distinguishable for most people with colour blindness; names stand beside them everywhere.
const LIGHT = ["#0b6e99", "#c06000", "#3d7a29", "#8b4fb0", "#a8324a", "#5b6b00", "#2f57c4", "#7a5230"];
const DARK = ["#5bb8e0", "#f09a3e", "#7cc665", "#c594e6", "#f07f92", "#c0cc4a", "#8fa9ff", "#cfa37c"];
const dark = matchMedia("(prefers-color-scheme: dark)");
export const colour = (index) => { const all = dark.matches ? DARK : LIGHT; return all[index % all.length]; };

// Full scale of an axis at least, for each way to write values: its steps would read the same below.
const LEAST = new Map([[rate, 1000], [millis, 1], [percent, 0.01]]);
// Steps between ticks: those that one digit tells.
const STEPS = Array.from({ length: 16 }, (_, power) => [1, 2, 5].map((digit) => digit * 10 ** (power - 4))).flat();
// Room for half of the last time of the axis, which stands below the end of the plot.
const RIGHT = 44;

/** What a chart shows: its title, how values read, which list of an uplink, and lines beside. */
export class Chart {
  constructor(parent, { title, part, format, stacked, line }) {
    Object.assign(this, { title, part, format, stacked, line });
    this.plot = el("div", { class: "plot", role: "img" });
    this.legend = el("ul", { class: "legend" });
    this.table = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `${title}, as a table` });
    this.details = el("details", {}, el("summary", {}, `${title}: as a table`), this.table);
    this.details.addEventListener("toggle", () => this.fill());
    parent.append(el("figure", {}, el("figcaption", {}, title), this.plot, this.legend, this.details));
    dark.addEventListener("change", () => { this.forget(); this.draw(); });
    new ResizeObserver(() => this.resize()).observe(this.plot);
  }

  forget() { this.drawn?.destroy(); this.drawn = null; }

  /** Shows a history. */
  show(history) {
    this.history = history;
    this.draw();
    const names = history.uplinks.map((uplink) => uplink.name);
    const items = history.uplinks.map((uplink, index) => ({ name: uplink.name, index, value: uplink[this.part].at(-1) }));
    if (this.line) items.push({ name: this.line.title, index: -1, value: this.line.values(history).at(-1) });
    keyed(this.legend, items, (item) => item.name,
      () => el("li", {}, swatch(), el("span")),
      (child, item) => {
        child.firstChild.style.background = item.index < 0 ? "none" : colour(item.index);
        say(child.lastChild, `${item.name}: ${this.format(item.value)}`);
      });
    const newest = items.map((item) => `${item.name} ${this.format(item.value)}`).slice(0, 8).join(", ");
    const label = `${this.title}. Newest: ${newest}. All values stand in the table below.`;
    this.plot.setAttribute("aria-label", label);
    if (this.details.open && names.length && Date.now() - (this.filled ?? 0) > 10000) this.fill();
  }

  times() {
    const { end_s, step_s, offered } = this.history;
    return offered.map((_, index) => end_s - (offered.length - 1 - index) * step_s);
  }

  rows() {
    const lists = this.history.uplinks.map((uplink) => uplink[this.part]);
    if (!this.stacked) return lists;
    // Each row is the sum of its own and of those before; what is not known counts as nothing beside others.
    const sums = [];
    lists.forEach((list, index) => {
      sums.push(list.map((value, at) => {
        const below = index ? sums[index - 1][at] : null;
        return value == null ? below : (below ?? 0) + value;
      }));
    });
    return sums;
  }

  draw() {
    if (!this.history) return;
    const rows = this.rows();
    const count = rows.length;
    // The highest sum is drawn first, and lower ones over it.
    const ordered = this.stacked ? [...rows].reverse() : rows;
    const data = [this.times(), ...ordered];
    if (this.line) data.push(this.line.values(this.history));
    const key = this.history.uplinks.map((uplink) => uplink.name).join("\n");
    if (!this.drawn || key !== this.key) {
      this.forget();
      this.key = key;
      this.drawn = new uPlot(this.options(count), data, this.plot);
    } else {
      this.drawn.setData(data);
    }
  }

  options(count) {
    const css = getComputedStyle(document.documentElement);
    const ink = css.getPropertyValue("--soft").trim();
    const grid = { stroke: css.getPropertyValue("--line").trim(), width: 1 };
    const series = Array.from({ length: count }, (_, at) => {
      const index = this.stacked ? count - 1 - at : at;
      const hue = colour(index);
      return this.stacked ? { stroke: hue, fill: hue, width: 1, points: { show: false } } : { stroke: hue, width: 2, points: { show: false } };
    });
    if (this.line) series.push({ stroke: css.getPropertyValue("--asked").trim(), width: 2, dash: [6, 4], points: { show: false } });
    return {
      width: Math.max(200, this.plot.clientWidth), height: 170, legend: { show: false },
      cursor: { show: false },
      padding: [null, RIGHT, null, null],
      scales: { y: { range: (_, __, max) => [0, Math.max(max ?? 0, LEAST.get(this.format)) * 1.1] } },
      axes: [{ stroke: ink, grid, space: 90, values: (_, ticks) => ticks.map(clock) }, { stroke: ink, grid, size: 92, incrs: STEPS, values: (_, ticks) => ticks.map((tick) => this.format(tick)) }],
      series: [{}, ...series],
    };
  }

  resize() {
    const width = this.plot.clientWidth;
    if (this.drawn && width && width !== this.drawn.width) this.drawn.setSize({ width, height: 170 });
  }

  /** Fills the table while it is open. */
  fill() {
    if (!this.details.open || !this.history) return;
    this.filled = Date.now();
    const { uplinks, step_s } = this.history;
    const columns = uplinks.map((uplink) => [uplink.name, uplink[this.part]]);
    if (this.line) columns.push([this.line.title, this.line.values(this.history)]);
    const when = step_s < 300 ? clock : day;
    const rows = this.times().map((time, at) => el("tr", {}, el("th", { scope: "row" }, when(time)), ...columns.map(([, list]) => el("td", {}, this.format(list[at])))));
    const head = el("tr", {}, el("th", { scope: "col" }, "Time"), ...columns.map(([name]) => el("th", { scope: "col" }, name)));
    this.table.replaceChildren(el("table", {}, el("thead", {}, head), el("tbody", {}, ...rows.reverse())));
  }
}

/** Puts the newest points into a history of the same step; whether they reach far enough back. */
export function append(history, newest) {
  const count = newest.offered.length;
  if (newest.step_s !== history.step_s || !count) return false;
  const steps = (newest.end_s - history.end_s) / history.step_s;
  const same = newest.uplinks.length === history.uplinks.length && newest.uplinks.every((uplink, at) => uplink.name === history.uplinks[at].name);
  if (!same || steps < 0 || steps > count) return false;
  const lists = (of) => [of.offered, of.up, ...of.uplinks.flatMap((uplink) => [uplink.sent, uplink.received, uplink.rtt_ms, uplink.loss])];
  const more = lists(newest);
  lists(history).forEach((list, at) => {
    // Those that are known already may have been means of a part of their time.
    list.splice(Math.max(0, list.length - (count - steps)), list.length, ...more[at]);
    list.splice(0, list.length - 300);
  });
  history.end_s = newest.end_s;
  return true;
}
