/* The timeline of a video: clips, nearness to the query, predictions and labelled spans, all in seconds. */
import { colourStyle } from "./colours.js";
import { clock, make, moment, percent, span } from "./dom.js";

const MAX_LANES = 6; // of overlapping clips; more share the last one
const LEAST_SPAN = 0.05; // seconds
const STEPS = [0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600];

export class Timeline {
  /* `seek(seconds)` moves the player; `selected(range or null)`; `removeSpan(range)`. */
  constructor({ seek, selected, removeSpan }) {
    Object.assign(this, { seek, selected, removeSpan });
    this.rows = make("div", { class: "rows" });
    this.playhead = make("div", { class: "playhead" });
    this.region = make("div", { class: "region", hidden: true });
    this.marked = make("div", { class: "marked", hidden: true });
    this.track = make("div", {
      class: "track", role: "slider", tabIndex: 0, "aria-label": "Time", "aria-valuemin": "0",
      title: "Click to move, drag to select a moment",
    }, this.rows, make("div", { class: "overlay-lane" }, this.marked, this.region, this.playhead));
    this.element = make("div", { class: "timeline" }, this.track);
    this.duration = 1;
    this.selection = null;
    this.listen();
  }

  clear() {
    this.detail = null;
    this.rows.replaceChildren(this.row("", "ruler", []), this.row("Clips", "clips", []));
    this.marked.hidden = true;
    this.select(null);
    this.moveTo(0);
  }

  show(detail, hit) {
    this.detail = detail;
    this.duration = Math.max(detail.duration ?? 0, ...detail.clips.map((clip) => clip.end), 0.1);
    this.track.setAttribute("aria-valuemax", this.duration.toFixed(1));
    this.select(null);
    this.marked.hidden = !hit || hit.start === null;
    if (!this.marked.hidden) this.stretch(this.marked, hit.start, hit.end);
    this.similarity = null;
    this.moveTo(0);
    this.draw();
  }

  setSimilarity(clips) {
    this.similarity = clips;
    this.draw();
  }

  setSpans(spans) {
    this.detail.spans = spans;
    this.draw();
  }

  stretch(element, start, end) {
    const at = (time) => 100 * Math.max(0, Math.min(1, time / this.duration));
    element.style.left = `${at(start)}%`;
    element.style.width = `${Math.max(0.3, at(end) - at(start))}%`;
    return element;
  }

  bar(className, start, end, title, props = {}) {
    return this.stretch(make("div", { class: className, title, ...props }), start, end);
  }

  draw() {
    const { clips, timeline, spans } = this.detail;
    const rows = [this.ruler(), this.clipRow(clips)];
    if (this.similarity) rows.push(this.heatRow(this.similarity));
    if (timeline.length) rows.push(this.row("Predicted", "predicted", timeline.map((one) => {
      const title = `${one.label}, ${percent(one.probability)}, ${moment(one.start, one.end)}`;
      const bar = this.bar("guess", one.start, one.end, title);
      const { fill } = colourStyle("label", one.label);
      bar.style.borderLeftColor = fill;
      bar.style.background = `color-mix(in srgb, ${fill} ${Math.round(8 + 37 * one.probability)}%, var(--card))`;
      bar.append(span("", one.label));
      return bar;
    })));
    if (spans.length) rows.push(this.row("My spans", "spans", spans.map((one) => this.spanBar(one))));
    this.rows.replaceChildren(...rows);
  }

  row(title, className, children) {
    const lane = make("div", { class: "lane" }, ...children);
    return make("div", { class: `row ${className}` }, span("row-title", title), lane);
  }

  ruler() {
    const most = this.element.clientWidth < 420 ? 4 : 8;
    const step = STEPS.find((one) => this.duration / one <= most) ?? 7200;
    const ticks = [];
    for (let time = 0; time <= this.duration; time += step) {
      const tick = span("tick-mark", clock(time).replace(".0 s", " s"));
      tick.style.left = `${(100 * time) / this.duration}%`;
      if (time > 0.95 * this.duration) tick.classList.add("last");
      ticks.push(tick);
    }
    return this.row("", "ruler", ticks);
  }

  /* Clips that overlap lie on lanes of their own. */
  clipRow(clips) {
    const ends = [];
    const bars = [...clips].sort((a, b) => a.start - b.start).map((clip) => {
      let lane = ends.findIndex((end) => end <= clip.start + 1e-6);
      if (lane < 0) lane = Math.min(ends.length, MAX_LANES - 1);
      ends[lane] = Math.max(ends[lane] ?? 0, clip.end);
      const bar = this.bar("clip-bar", clip.start, clip.end, `clip ${moment(clip.start, clip.end)}`);
      bar.dataset.lane = lane;
      return bar;
    });
    const lanes = Math.max(1, ends.length);
    for (const bar of bars) {
      bar.style.top = `${(100 * Number(bar.dataset.lane)) / lanes}%`;
      bar.style.height = `calc(${100 / lanes}% - 1px)`;
    }
    return this.row("Clips", "clips", bars);
  }

  heatRow(clips) {
    const scores = clips.map((clip) => clip.score);
    const [least, most] = [Math.min(...scores), Math.max(...scores)];
    return this.row("Query", "heat", clips.map((clip) => {
      const title = `${clip.score.toFixed(2)} at ${moment(clip.start, clip.end)}`;
      const bar = this.bar("heat-bar", clip.start, clip.end, title);
      bar.style.opacity = most > least ? 0.08 + (0.92 * (clip.score - least)) / (most - least) : 0.5;
      return bar;
    }));
  }

  spanBar(range) {
    const bar = this.bar("span-bar", range.start, range.end, `${range.label}, ${moment(range.start, range.end)}`);
    const { fill } = colourStyle("label", range.label);
    bar.style.borderLeftColor = fill;
    bar.style.background = `color-mix(in srgb, ${fill} 45%, var(--card))`;
    bar.append(span("", range.label), make("button", {
      type: "button", text: "×", "aria-label": `Remove the span ${range.label}, ${moment(range.start, range.end)}`,
      on: { click: () => this.removeSpan(range), pointerdown: (event) => event.stopPropagation() },
    }));
    return bar;
  }

  moveTo(time) {
    this.time = time;
    this.playhead.style.left = `${100 * Math.min(1, time / this.duration)}%`;
    this.track.setAttribute("aria-valuenow", time.toFixed(1));
    this.track.setAttribute("aria-valuetext", clock(time));
  }

  /* Select a span, or none. */
  select(range) {
    this.selection = range && range.end - range.start >= LEAST_SPAN ? range : null;
    this.region.hidden = !this.selection;
    if (this.selection) this.stretch(this.region, range.start, range.end);
    this.selected(this.selection);
  }

  /* `[` and `]`: from or until the playhead. */
  selectFromPlayhead(edge) {
    const { start, end } = this.selection ?? { start: 0, end: this.duration };
    if (edge === "start") this.select({ start: round(this.time), end: end > this.time ? end : round(this.duration) });
    else this.select({ start: start < this.time ? start : 0, end: round(this.time) });
  }

  listen() {
    const { track } = this;
    const timeAt = (event) => {
      const { left, width } = this.rows.querySelector(".lane").getBoundingClientRect();
      return Math.max(0, Math.min(1, (event.clientX - left) / width)) * this.duration;
    };
    let from = null;
    track.addEventListener("pointerdown", (event) => {
      if (!this.detail || event.button > 0) return;
      track.setPointerCapture(event.pointerId);
      from = { time: timeAt(event), x: event.clientX };
    });
    track.addEventListener("pointermove", (event) => {
      if (!from || Math.abs(event.clientX - from.x) < 4) return;
      const time = timeAt(event);
      this.select({ start: round(Math.min(from.time, time)), end: round(Math.max(from.time, time)) });
    });
    track.addEventListener("pointerup", (event) => {
      if (from && Math.abs(event.clientX - from.x) < 4) {
        this.select(null);
        this.seek(timeAt(event));
      }
      from = null;
    });
    track.addEventListener("pointercancel", () => { from = null; });
    track.addEventListener("keydown", (event) => {
      const steps = { ArrowLeft: -0.1, ArrowRight: 0.1, PageUp: 1, PageDown: -1, Home: -Infinity, End: Infinity };
      if (event.key in steps) this.seek(Math.max(0, Math.min(this.duration, this.time + steps[event.key])));
      else return;
      event.preventDefault();
    });
  }
}

const round = (seconds) => Math.round(100 * seconds) / 100;
