/* Search by examples, moments, files and text: the query is a row of chips. */
import { post, thumbnail, upload } from "./api.js";
import { button, byId, clock, make, moment, plural, segmented, span, speak, toast } from "./dom.js";
import { emit, on, serverFilter, state, updateItems } from "./state.js";

const LIMIT = 200;

export class Search {
  constructor(box) {
    this.positive = [];
    this.negative = [];
    this.text = null;
    this.unit = "video";
    this.round = 0; // answers of older queries are dropped
    const accept = "video/*,.avi,.mkv,.gif";
    this.file = make("input", { type: "file", accept, hidden: true, "aria-label": "Video file" });
    this.file.addEventListener("change", () => { this.addFiles(this.file.files); this.file.value = ""; });
    this.chips = make("ul", { class: "chips", "aria-label": "Query" });
    this.status = make("span", { class: "soft", role: "status" });
    this.units = segmented("Search in", [["video", "Videos"], ["moment", "Moments"]], "video", (unit) => {
      this.unit = unit;
      this.run();
    });
    this.clear = button("Clear search", () => this.reset(), { class: "quiet" });
    this.hint = span("soft hint", "Drop a video anywhere, or press Similar on a thumbnail");
    box.append(
      ...(state.run.can_search_text ? [this.textBox()] : []),
      button("Search with a file …", () => this.file.click(), { class: "file" }), this.file,
      this.hint, this.chips, this.units, this.status, this.clear);
    this.listenToDrops();
    on("filters", () => this.isActive() && this.run());
    this.show();
  }

  textBox() {
    const placeholder = "Describe what to find";
    const input = make("input", { type: "search", placeholder, "aria-label": "Search by text" });
    const form = make("form", { role: "search" }, input);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.text = input.value.trim() || null;
      this.run();
    });
    this.input = input;
    return form;
  }

  isActive() {
    return this.positive.length + this.negative.length > 0 || this.text !== null;
  }

  /* Add an example: a video, or a range { start, end } of it. `only` starts a new query. */
  like(video, { negative = false, range = null, only = false } = {}) {
    if (only) this.forget();
    const example = { video, ...(range ? { start: range.start, end: range.end } : {}) };
    const same = (other) => other.video === video && other.start === example.start && other.end === example.end;
    this.positive = this.positive.filter((other) => !same(other));
    this.negative = this.negative.filter((other) => !same(other));
    (negative ? this.negative : this.positive).push(example);
    if (range && !negative) this.setUnit("moment");
    emit("tab", "videos");
    return this.run();
  }

  likeAll(videos, negative = false) {
    const list = negative ? this.negative : this.positive;
    for (const video of videos) if (!list.some((other) => other.video === video)) list.push({ video });
    return this.run();
  }

  async addFiles(files) {
    for (const file of files) {
      const example = { name: file.name, pending: true };
      this.positive.push(example);
      emit("tab", "videos");
      this.show();
      try {
        const answer = await upload(file);
        Object.assign(example, { upload: answer.upload, duration: answer.duration, pending: false });
      } catch (error) {
        this.positive = this.positive.filter((other) => other !== example);
        toast(`${file.name}: ${error.message}`, { error: true });
      }
    }
    await this.run();
  }

  setUnit(unit) {
    this.unit = unit;
    this.units.press(unit);
  }

  forget() {
    this.positive = [];
    this.negative = [];
    this.text = null;
    if (this.input) this.input.value = "";
  }

  reset() {
    this.forget();
    this.setUnit("video");
    this.run();
  }

  remove(example) {
    this.positive = this.positive.filter((other) => other !== example);
    this.negative = this.negative.filter((other) => other !== example);
    this.run();
  }

  /* The query as the server reads it. */
  body() {
    const bare = (examples) => examples.filter((one) => !one.pending).map(({ video, start, end, upload: id }) =>
      id !== undefined ? { upload: id } : start === undefined ? { video } : { video, start, end });
    return { positive: bare(this.positive), negative: bare(this.negative), text: this.text };
  }

  async run() {
    this.round += 1;
    const { round } = this;
    this.show();
    if (!this.isActive()) {
      Object.assign(state, { results: null, sort: "" });
      this.status.textContent = "";
      updateItems();
      emit("query");
      return;
    }
    const body = this.body();
    if (!body.positive.length && !body.text) {
      this.status.textContent = body.negative.length ? "Add something to look for: “more like this”" : "";
      return;
    }
    this.status.textContent = "Searching …";
    try {
      const answer = await post("/api/search", { ...body, unit: this.unit, filter: serverFilter(), limit: LIMIT });
      if (round !== this.round) return;
      if (!state.results) state.sort = "";
      state.results = answer.results;
      const milliseconds = Math.max(1, Math.round(1000 * answer.seconds));
      this.status.textContent = `${plural(answer.results.length, this.unit)}, nearest first · ${milliseconds} ms`;
      updateItems();
      speak(plural(answer.results.length, "result"));
      emit("query");
    } catch (error) {
      if (round !== this.round) return;
      this.status.textContent = "";
      toast(error.message, { error: true, action: { text: "Try again", run: () => this.run() } });
    }
  }

  show() {
    const active = this.isActive();
    byId("query").classList.toggle("active", active);
    for (const element of [this.units, this.clear, this.status, this.chips]) element.hidden = !active;
    this.hint.hidden = active;
    const chips = (examples, sign) => examples.map((example) => this.chip(example, sign));
    this.chips.replaceChildren(...chips(this.positive, "+"), ...chips(this.negative, "−"));
  }

  chip(example, sign) {
    const { video, start, end, name, pending } = example;
    const text = video === undefined ? name : state.videos.names[video];
    const length = pending ? "reading …" : example.duration ? clock(example.duration) : "";
    return make("li", { class: sign === "+" ? "chip" : "chip negative" },
      span("sign", sign, sign === "+" ? "more like this" : "less like this"),
      video === undefined ? null : thumbnail(video),
      make("span", { class: "name", text, title: text }),
      start === undefined ? null : span("soft", moment(start, end)),
      length ? span("soft", length) : null,
      button("×", () => this.remove(example), { class: "quiet", "aria-label": `Remove ${text}` }));
  }

  listenToDrops() {
    const overlay = byId("drop");
    const hasFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
    addEventListener("dragover", (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      overlay.hidden = false;
    });
    addEventListener("dragleave", (event) => { if (!event.relatedTarget) overlay.hidden = true; });
    addEventListener("drop", (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      overlay.hidden = true;
      this.addFiles([...event.dataTransfer.files]);
    });
  }
}
