/* The label loop: a queue that says why, a score on labels kept aside, undo, skip, export. */
import { get, post, thumbnail } from "./api.js";
import { colourStyle } from "./colours.js";
import { button, count, gauge, isTyping, make, message, percent, plural, span, svg, toast } from "./dom.js";
import { classes, loadLearner, skip, undo } from "./labels.js";
import { on, state } from "./state.js";

const QUEUE_LENGTH = 12;

export class LabelView {
  constructor(box, pane) {
    this.pane = pane;
    this.queue = [];
    this.current = null;
    this.reason = make("p", { class: "reason", role: "status" });
    this.suggestion = button("", () => this.accept(), { class: "suggestion", hidden: true });
    this.place = make("div", { class: "label-video" });
    this.list = make("ol", { class: "queue", "aria-label": "Next videos" });
    this.score = make("div", { class: "card score-card" });
    this.counts = make("ul", { class: "counts" });
    this.undoButton = button("Undo", () => this.undo(), { title: "Undo (u)" });
    this.skipButton = button("Skip", () => this.skip(), { title: "Skip (s)" });
    this.exported = make("div", { class: "exported", role: "status" });
    this.main = make("div", { class: "label-main" },
      make("div", { class: "label-head" },
        this.reason, this.suggestion, span("spacer"), this.undoButton, this.skipButton),
      this.place, make("h3", { text: "Next" }), this.list);
    box.append(this.main, make("div", { class: "label-side" }, this.score,
      make("div", { class: "card" }, make("h3", { text: "Classes" }), this.counts),
      make("div", { class: "card" }, make("h3", { text: "Use it" }),
        make("p", { class: "soft", text: "Writes a catalog with your labels and a classifier. Yours stays as it is." }),
        button("Export", () => this.export(), { class: "primary" }), this.exported)));
    on("labels", () => this.fillCounts());
    on("learner", () => this.fillScore());
  }

  /* Called whenever the tab is opened. */
  async open() {
    if (!state.run.can_label) {
      this.main.replaceChildren(message("This run cannot be labelled",
        "Its folder cannot be written. Serve a copy of it, or ask for the right to write."));
      return;
    }
    this.place.append(this.pane.element);
    this.pane.afterLabel = (video) => this.next(video);
    this.fillCounts();
    await Promise.all([loadLearner(), this.loadQueue()]);
    if (this.current === null) this.showNext();
    else this.showVideo(this.current);
  }

  leave() {
    this.pane.afterLabel = null;
  }

  async loadQueue() {
    const { items } = await get(`/api/queue?limit=${QUEUE_LENGTH}`);
    this.queue = items;
    this.fillQueue();
  }

  showVideo(item) {
    this.current = item;
    const { video, reason, suggestion, probability } = item;
    this.reason.textContent = reason ? `Why this one: ${reason}` : "";
    this.suggestion.hidden = !suggestion;
    const looks = `Looks like ${suggestion}, ${percent(probability)} `;
    if (suggestion) this.suggestion.replaceChildren(looks, make("kbd", { text: "Enter" }));
    this.place.replaceChildren(this.pane.element);
    this.pane.show(video);
    this.fillQueue();
  }

  showNext() {
    const item = this.queue.find(({ video }) => video !== this.current?.video && !state.myLabels.has(video));
    if (item) return this.showVideo(item);
    this.current = null;
    this.reason.textContent = "";
    this.suggestion.hidden = true;
    this.pane.stop();
    this.place.replaceChildren(message("No video is left in the queue",
      "Everything is labelled or skipped. Export, or look at the doubtful labels in Review."));
    return undefined;
  }

  /* Go on at once; the new queue arrives while the next video is being watched. */
  async next(done) {
    this.queue = this.queue.filter(({ video }) => video !== done);
    if (this.queue.length) this.showNext();
    await this.loadQueue();
    if (this.current?.video === done) this.showNext();
  }

  accept() {
    if (this.current?.suggestion) this.pane.label(this.current.suggestion);
  }

  async skip() {
    if (!this.current) return;
    const { video } = this.current;
    if (await skip(video)) this.next(video);
  }

  /* A video whose label or skip is taken back is shown again. */
  async undo() {
    const before = doneVideos();
    if (!(await undo())) return;
    const after = doneVideos();
    const video = [...before].find((one) => !after.has(one));
    toast(video === undefined ? "Undone" : `${state.videos.names[video]}: undone`);
    if (video !== undefined) this.showVideo({ video, reason: "undone just now", suggestion: null, probability: null });
    this.loadQueue();
  }

  fillQueue() {
    const items = this.queue.filter(({ video }) => video !== this.current?.video);
    this.list.replaceChildren(...items.map((item) => make("li", {}, make("button", {
      type: "button", on: { click: () => this.showVideo(item) }, title: state.videos.ids[item.video],
    }, thumbnail(item.video),
    span("name", state.videos.names[item.video]), span("soft", item.reason)))));
  }

  fillCounts() {
    if (!state.labels) return;
    const { counts, spans } = state.labels;
    const most = Math.max(1, ...Object.values(counts));
    this.counts.replaceChildren(...classes().map((label, index) => {
      const number = counts[label] ?? 0;
      const inSpans = spans.filter((one) => one.label === label).length;
      return make("li", {}, make("kbd", { text: index < 9 ? String(index + 1) : "" }), span("name", label, label),
        gauge(number / most, colourStyle("label", label).fill),
        span("soft", count(number) + (inSpans ? ` + ${plural(inSpans, "span")}` : "")));
    }));
    const none = "None yet: type the first one below the video.";
    if (!classes().length) this.counts.append(make("li", { class: "soft", text: none }));
  }

  fillScore() {
    const { learner } = state;
    if (!learner) return;
    const { score, low, high, num_labels: labels, num_held_out: held, curve } = learner;
    const parts = [make("h3", { text: "Score so far" })];
    if (score === null) {
      parts.push(make("p", { class: "big soft", text: "–" }),
        make("p", { class: "soft", text: `${plural(labels, "label")}. Every fifth one is kept aside for the score.` }));
    } else {
      const interval = ` ${percent(low).replace(" %", "")}–${percent(high)}`;
      const basis = `right on ${plural(held, "label")} of ${count(labels)} that are never trained on (95 % interval)`;
      parts.push(make("p", { class: "big", data: { score: String(score) } }, percent(score), span("soft", interval)),
        make("p", { class: "soft", text: basis }));
      if (curve.length > 1) parts.push(drawCurve(curve));
    }
    this.score.replaceChildren(...parts);
  }

  async export() {
    try {
      const { catalog, head, command } = await post("/api/export");
      const copy = button("Copy", () => navigator.clipboard?.writeText(command).then(() => toast("Copied"), () => {}));
      const written = [catalog, head].filter((path) => path !== null).map((text) => make("code", { text }));
      this.exported.replaceChildren(make("p", { text: "Written:" }), ...written,
        make("p", { text: "Predict new videos with it:" }), make("code", { class: "command", text: command }), copy);
    } catch (error) {
      toast(error.message, { error: true });
    }
  }

  key(event) {
    if (isTyping(event) || event.ctrlKey || event.metaKey || event.altKey) return false;
    if (event.key === "u") this.undo();
    else if (event.key === "s") this.skip();
    else if (event.key === "Enter" && !event.target.closest("button, a, [tabindex='0']")) this.accept();
    else return false;
    event.preventDefault();
    return true;
  }
}

const doneVideos = () => new Set([...state.myLabels.keys(), ...state.labels.skipped]);

/* Score against number of labels, with its interval. */
function drawCurve(curve) {
  const [width, height, left, bottom] = [280, 110, 38, 16];
  const last = curve.at(-1).num_labels;
  const first = curve[0].num_labels;
  const x = (labels) => left + ((width - left - 6) * (labels - first)) / Math.max(1, last - first);
  const y = (score) => 6 + (height - bottom - 6) * (1 - score);
  const line = curve.map((point) => `${x(point.num_labels).toFixed(1)},${y(point.score).toFixed(1)}`);
  const band = [...curve.map((point) => `${x(point.num_labels).toFixed(1)},${y(point.high).toFixed(1)}`),
    ...[...curve].reverse().map((point) => `${x(point.num_labels).toFixed(1)},${y(point.low).toFixed(1)}`)];
  const text = (content, at, level, anchor) => {
    const element = svg("text", { x: at, y: level, "text-anchor": anchor });
    element.textContent = content;
    return element;
  };
  const rule = (score) => [
    svg("line", { x1: left, x2: width - 6, y1: y(score), y2: y(score), class: "rule" }),
    text(percent(score), left - 5, y(score) + 3.5, "end"),
  ];
  const [one, two] = [percent(curve[0].score), percent(curve.at(-1).score)];
  const spoken = `Score from ${one} at ${first} labels to ${two} at ${last}`;
  const frame = { class: "curve", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": spoken };
  return svg("svg", frame, ...[0, 0.5, 1].flatMap(rule),
    svg("polygon", { points: band.join(" "), class: "band" }),
    svg("polyline", { points: line.join(" "), class: "line" }),
    svg("circle", { cx: x(last), cy: y(curve.at(-1).score), r: 3.5, class: "end" }),
    text(`${first}`, left, height - 2, "start"), text(`${last} labels`, width - 6, height - 2, "end"));
}
