/* Labels of the label loop: sent one by one, each on the server's disk before it counts here. */
import { get, post } from "./api.js";
import { button, classInput, make, moment, span, speak, toast } from "./dom.js";
import { colourStyle } from "./colours.js";
import { emit, loadLabels, loadLearnerPredictions, on, state } from "./state.js";

const NUM_KEYS = 9;
const REFRESH = 600; // milliseconds after the last label until grid and map have new predictions
const typed = new Set(); // classes that were typed and have no label yet
let refreshing = 0;

/* Classes in the order of their keys; a new one never moves the others. */
export function classes() {
  const own = state.labels?.classes ?? [];
  const { classes: run } = state.run;
  return [...new Set(run.length > NUM_KEYS ? [...own, ...typed, ...run] : [...run, ...own, ...typed])];
}

async function send(path, body) {
  try {
    state.learner = await post(path, body);
    await loadLabels();
    clearTimeout(refreshing);
    refreshing = setTimeout(() => loadLearnerPredictions().catch(() => {}), REFRESH);
    emit("learner");
    return true;
  } catch (error) {
    toast(error.message, { error: true, action: { text: "Try again", run: () => send(path, body) } });
    return false;
  }
}

/* Label a video, or a span of it; null removes the label. */
export async function setLabel(video, label, range = null) {
  if (label !== null) typed.add(label);
  const ok = await send("/api/labels", { video, label, start: range?.start ?? null, end: range?.end ?? null });
  if (ok) speak(label === null ? "Label removed" : `${state.videos.names[video]}: ${label}`);
  return ok;
}

export async function labelAll(videos, label) {
  for (const video of videos) if (!(await setLabel(video, label))) return false;
  toast(`${videos.length} videos labelled ${label}`);
  return true;
}

export const skip = (video) => send("/api/labels/skip", { video });
export const undo = () => send("/api/labels/undo");

export async function loadLearner() {
  state.learner = await get("/api/learner");
  emit("learner");
}

/* Buttons for the classes and a box to type a new one. */
export class ClassButtons {
  constructor(choose) {
    this.choose = choose;
    this.range = null;
    this.video = null;
    this.title = make("h3");
    this.list = make("div", { class: "classes" });
    [this.input, this.names] = classInput("class-names", "New class, then Enter", "Label with a class", []);
    const form = make("form", {}, this.input, this.names);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const label = this.input.value.trim();
      if (!label) return;
      this.input.value = "";
      this.input.blur();
      this.choose(label);
    });
    const isHidden = !state.run.can_label;
    this.element = make("div", { class: "label-strip", hidden: isHidden }, this.title, this.list, form);
    on("labels", () => this.show(this.video, this.range));
  }

  show(video, range = null) {
    Object.assign(this, { video, range });
    if (video === null || !state.labels || !state.run.can_label) return;
    const current = state.myLabels.get(video);
    this.title.textContent = range ? `Label ${moment(range.start, range.end)} as` : "Label this video as";
    this.names.replaceChildren(...classes().map((value) => make("option", { value })));
    this.list.replaceChildren(...classes().slice(0, 60).map((label, index) => {
      const isPressed = String(!range && label === current);
      const one = button("", () => this.choose(label), { class: "class", "aria-pressed": isPressed });
      if (index < NUM_KEYS) one.append(make("kbd", { text: String(index + 1) }));
      const background = colourStyle("label", label).fill;
      one.append(make("span", { class: "dot", style: { background } }), span("name", label));
      return one;
    }));
    const remove = button("Remove", () => this.choose(null), { class: "quiet" });
    if (current !== undefined && !range) this.list.append(remove);
  }

  /* The class of a digit key. */
  byKey(key) {
    return state.run.can_label && /^[1-9]$/.test(key) ? classes()[Number(key) - 1] : undefined;
  }
}
