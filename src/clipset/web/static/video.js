/* One video: player, timeline, what was predicted, search from it, labels. */
import { get, media, post } from "./api.js";
import { colourStyle } from "./colours.js";
import { button, clock, gauge, isNone, isTyping, make, message, percent, span, toast } from "./dom.js";
import { ClassButtons, setLabel } from "./labels.js";
import { on, state } from "./state.js";
import { Timeline } from "./timeline.js";

const LONGEST_PREVIEW = 300; // seconds; a preview of a longer video has 8 s from a start

export class VideoPane {
  constructor(search, close) {
    this.search = search;
    this.video = null;
    this.afterLabel = null; // the label view goes on to the next video
    this.player = make("video", { controls: true, muted: true, loop: true, playsInline: true, preload: "metadata" });
    this.stage = make("div", { class: "stage" }, this.player);
    this.note = make("p", { class: "soft note", hidden: true });
    this.title = make("h2", { class: "name" });
    this.close = button("Close", close, { class: "quiet close", title: "Close (Esc)" });
    this.facts = make("dl", { class: "facts" });
    this.guesses = make("div", { class: "guesses" });
    this.classes = new ClassButtons((label) => this.label(label));
    this.timeline = new Timeline({
      seek: (time) => this.seek(time),
      selected: (range) => this.showSpan(range),
      removeSpan: (range) => setLabel(this.video, null, range),
    });
    this.spanBar = make("div", { class: "span-tools", hidden: true });
    this.more = button("More like this", () => search.like(this.video), { class: "primary" });
    this.less = button("Less like this", () => search.like(this.video, { negative: true }));
    this.actions = make("div", { class: "actions" }, this.more, this.less);
    this.body = make("div", { class: "video-body" }, this.stage, this.note, this.timeline.element, this.spanBar,
      this.actions, this.classes.element, this.guesses, this.facts);
    this.element = make("section", { class: "video-pane", "aria-label": "Video" },
      make("header", {}, this.title, this.close), this.body);
    this.listen();
    on("query", () => this.loadSimilarity());
    on("labels", () => this.refreshSpans());
  }

  async show(video, hit = null) {
    this.video = video;
    this.detail = null;
    this.element.classList.add("loading");
    this.timeline.clear();
    this.title.textContent = state.videos.names[video];
    this.title.title = state.videos.ids[video];
    this.play("file", hit?.start ?? 0);
    this.classes.show(video);
    let detail;
    try {
      detail = await get(`/api/videos/${video}`);
    } catch (error) {
      toast(error.message, { error: true });
      return;
    }
    if (this.video !== video) return;
    this.detail = detail;
    this.element.classList.remove("loading");
    this.timeline.show(detail, hit);
    this.fillFacts(detail);
    if (this.source === "none") this.play("none"); // the reason is known now
    this.loadSimilarity();
  }

  /* The file itself, else a preview that every browser plays, else a message. */
  play(source, from = 0) {
    this.source = source;
    this.from = from;
    const isLong = state.videos.durations[this.video] > LONGEST_PREVIEW;
    this.offset = source === "preview" && isLong ? from : 0; // where the player's zero lies
    this.stage.querySelector(".message")?.remove();
    this.player.hidden = source === "none";
    this.note.hidden = source !== "preview";
    this.note.textContent = "Preview: this browser cannot play the file itself.";
    if (source === "none") {
      this.player.removeAttribute("src");
      const why = this.detail?.problem ?? "Neither the file nor a preview could be played. Is the file still there?";
      this.stage.append(message("This video cannot be shown", why));
      return;
    }
    this.player.poster = media(this.video, "thumbnail");
    this.player.src = media(this.video, source) + (source === "preview" && isLong ? `?start=${from}` : "");
    if (!matchMedia("(prefers-reduced-motion: reduce)").matches) this.player.play().catch(() => {});
  }

  failed() {
    if (this.player.getAttribute("src")) this.play(this.source === "file" ? "preview" : "none", this.from);
  }

  stop() {
    this.player.pause();
    this.player.removeAttribute("src");
    this.player.load();
  }

  seek(time) {
    this.timeline.moveTo(time);
    if (this.source === "preview" && state.videos.durations[this.video] > LONGEST_PREVIEW) this.play("preview", time);
    else if (Number.isFinite(this.player.duration)) this.player.currentTime = Math.min(time, this.player.duration);
  }

  async loadSimilarity() {
    const { video, detail } = this;
    if (video === null || !detail || !this.element.isConnected) return;
    const query = this.search.body();
    if (!query.positive.length && !query.text) return this.timeline.setSimilarity(null);
    try {
      const { clips } = await post(`/api/videos/${video}/similarity`, query);
      if (this.video === video) this.timeline.setSimilarity(clips.length ? clips : null);
    } catch {
      if (this.video === video) this.timeline.setSimilarity(null);
    }
    return undefined;
  }

  fillFacts(detail) {
    const length = detail.duration === null ? null : clock(detail.duration);
    const size = detail.width ? `${detail.width} × ${detail.height}` : null;
    const rows = [["Problem", detail.problem], ["Label", detail.label ?? "none"], ["Split", detail.split],
      ["Length", length], ["Size", size], ...Object.entries(detail.columns), ["File", detail.id]];
    this.facts.replaceChildren(...rows.filter(([, value]) => !isNone(value) && value !== "").map(([name, value]) =>
      make("div", {}, make("dt", { text: name }), make("dd", { text: String(value) }))));
    const guesses = detail.classes.map(({ label, probability }) => make("div", { class: "guess-row" },
      span("name", label, label), gauge(probability, colourStyle("label", label).fill),
      span("soft", percent(probability))));
    this.guesses.replaceChildren(...(guesses.length ? [make("h3", { text: "Predicted" })] : []), ...guesses);
  }

  /* A dragged moment can be searched, labelled and played. */
  showSpan(range) {
    this.classes.show(this.video, range);
    this.spanBar.hidden = !range;
    if (!range) return;
    const edge = (label, key) => {
      const input = make("input", { type: "number", step: "0.1", min: "0", value: range[key], "aria-label": label });
      input.addEventListener("change", () => this.timeline.select({ ...range, [key]: Number(input.value) }));
      return input;
    };
    const search = (options) => () => this.search.like(this.video, { range, ...options });
    this.spanBar.replaceChildren(
      make("span", { class: "edges" }, edge("Start in seconds", "start"), " to ", edge("End in seconds", "end"), " s"),
      button("Search this moment", search({ only: true }), { class: "primary" }), button("Add to search", search({})),
      button("Less like it", search({ negative: true })), button("Play", () => this.playSpan(range)),
      button("×", () => this.timeline.select(null), { class: "quiet", "aria-label": "Forget the moment" }));
  }

  playSpan(range) {
    this.loop = range;
    this.seek(range.start);
    this.player.play().catch(() => {});
  }

  async label(label) {
    const { video } = this;
    const { selection } = this.timeline;
    if (video === null || !(await setLabel(video, label, selection))) return;
    if (selection) this.timeline.select(null);
    else if (label !== null) this.afterLabel?.(video);
  }

  refreshSpans() {
    if (!this.detail || this.video === null) return;
    const spans = state.labels.spans.filter((one) => one.video === this.video);
    this.timeline.setSpans(spans);
  }

  /* Keys that work wherever the video is open; true if the key was used. */
  key(event) {
    if (this.video === null || isTyping(event) || event.ctrlKey || event.metaKey || event.altKey) return false;
    const label = this.classes.byKey(event.key);
    if (label !== undefined) this.label(label);
    else if (event.key === "[") this.timeline.selectFromPlayhead("start");
    else if (event.key === "]") this.timeline.selectFromPlayhead("end");
    else if (event.key === "c") this.classes.input.focus();
    else if (event.key === "p") this.player.paused ? this.player.play().catch(() => {}) : this.player.pause();
    else return false;
    event.preventDefault();
    return true;
  }

  listen() {
    const { player } = this;
    player.addEventListener("error", () => this.failed());
    player.addEventListener("loadedmetadata", () => {
      if (!player.videoWidth) this.failed(); // only its sound can be played
      else if (this.from && !this.offset) this.seek(this.from);
    });
    player.addEventListener("timeupdate", () => {
      const time = player.currentTime + this.offset;
      if (this.loop && time >= this.loop.end) {
        player.pause();
        this.loop = null;
      }
      this.timeline.moveTo(time);
    });
  }
}
