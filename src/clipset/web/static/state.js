/* What the page knows: the run, its videos in columns, filters, order, selection, labels. */
import { get } from "./api.js";
import { compareNames, isNone } from "./dom.js";

export const state = {
  run: null,
  videos: null, // columns, one entry for each video
  fields: new Map(), // key → { title, kind: "text" | "number", values }
  myLabels: new Map(), // video → label of the label loop
  labels: null, // the answer of /api/labels
  learner: null,
  items: [], // the videos of the grid, in order
  hits: null, // search results for each item, or null
  results: null, // search results before filters, or null
  filters: new Map(), // field key → Set of values, or { low, high }
  nameFilter: "",
  mistakesOnly: false,
  sort: "",
  selection: new Set(),
  active: -1, // index of an item
  open: null, // the video in the video pane
};

/* Topics: items, selection, open, hover, labels, colours. */
const listeners = new Map();
export function on(topic, run) {
  if (!listeners.has(topic)) listeners.set(topic, []);
  listeners.get(topic).push(run);
}
export function emit(topic, value) {
  for (const run of listeners.get(topic) ?? []) run(value);
}

const POLL = 2000; // milliseconds
const MANY_VALUES = 12; // numbers with more different values are filtered by a range

function addField(key, title, values, kind) {
  const present = values.filter((value) => !isNone(value));
  if (!present.length) return;
  if (!kind) {
    const numbers = present.every((value) => value !== "" && Number.isFinite(Number(value)));
    kind = numbers && new Set(present).size > MANY_VALUES ? "number" : "text";
    const convert = kind === "number" ? Number : String;
    values = values.map((value) => (isNone(value) ? null : convert(value)));
  }
  state.fields.set(key, { title, kind, values });
}

export async function loadRun() {
  const [run, videos] = await Promise.all([get("/api/run"), get("/api/videos")]);
  Object.assign(state, { run, videos });
  fillFields();
}

/* Map and predictions are computed after the server's start; the page opens without them. */
export async function waitForBackground(name) {
  while (state.run.background[name] === "pending") {
    await new Promise((done) => setTimeout(done, POLL));
    state.run = await get("/api/run");
  }
}

export async function waitForPredictions() {
  if (state.run.background.predictions !== "pending") return;
  await waitForBackground("predictions");
  if (state.run.background.predictions !== "ready") return;
  state.videos = await get("/api/videos");
  fillFields();
  emit("colours");
}

function fillFields() {
  const { videos } = state;
  addField("name", "Name", videos.names, "text");
  addField("label", "Label", videos.labels);
  addField("split", "Split", videos.splits, "text");
  addField("prediction", "Prediction", videos.predictions, "text");
  addField("confidence", "Confidence", videos.confidences, "number");
  addField("duration", "Duration", videos.durations, "number");
  for (const [name, values] of Object.entries(videos.columns)) addField("column:" + name, name, values);
  updateItems();
}

/* Labels and predictions of the label loop become fields like any other. */
export async function loadLabels() {
  state.labels = await get("/api/labels");
  state.myLabels = new Map(state.labels.labels);
  const { num_videos: total } = state.run;
  state.fields.delete("my-label");
  const values = Array.from({ length: total }, (_, video) => state.myLabels.get(video) ?? null);
  addField("my-label", "My label", values, "text");
  emit("labels");
}

export async function loadLearnerPredictions() {
  const { predictions, confidences } = await get("/api/learner/predictions");
  for (const key of ["my-prediction", "my-confidence"]) state.fields.delete(key);
  addField("my-prediction", "My prediction", predictions, "text");
  addField("my-confidence", "My confidence", confidences, "number");
  emit("colours");
}

export const isMistake = (video) => {
  const [label, prediction] = [state.videos.labels[video], state.videos.predictions[video]];
  return label !== null && prediction !== null && label !== prediction;
};

export const labelOf = (video) => state.myLabels.get(video) ?? state.videos.labels[video];

function accepts(video) {
  const { names, ids } = state.videos;
  const text = state.nameFilter;
  if (text && !names[video].toLowerCase().includes(text) && !ids[video].toLowerCase().includes(text)) return false;
  if (state.mistakesOnly && !isMistake(video)) return false;
  for (const [key, allowed] of state.filters) {
    const value = state.fields.get(key)?.values[video] ?? null;
    const isInside = () => value !== null && value >= allowed.low && value <= allowed.high;
    if (!(allowed instanceof Set ? allowed.has(value) : isInside())) return false;
  }
  return true;
}

/* A comparison of positions in `videos` for a sort like "name", "-confidence" or "mistakes". */
function comparison(sort, videos) {
  if (sort === "mistakes") {
    const { confidences } = state.videos;
    const cost = videos.map((video) => (isMistake(video) ? 1 + (confidences[video] ?? 0) : 0));
    return (a, b) => cost[b] - cost[a] || a - b;
  }
  const descending = sort.startsWith("-");
  const { kind, values } = state.fields.get(descending ? sort.slice(1) : sort);
  const compare = kind === "number" ? (a, b) => a - b : compareNames;
  const sign = descending ? -1 : 1;
  return (a, b) => {
    const [one, two] = [values[videos[a]] ?? null, values[videos[b]] ?? null];
    if (one === null || two === null) return (one === null) - (two === null) || a - b; // none comes last
    return sign * compare(one, two) || a - b;
  };
}

/* Filter and sort again. */
export function updateItems() {
  const { results, sort } = state;
  const videos = results ? results.map((hit) => hit.video) : Array.from(state.videos.ids.keys());
  const positions = [...videos.keys()].filter((position) => accepts(videos[position]));
  const canSort = sort === "mistakes" || state.fields.has(sort.replace(/^-/, ""));
  if (sort && canSort) positions.sort(comparison(sort, videos));
  const active = state.items[state.active];
  state.items = positions.map((position) => videos[position]);
  state.hits = results ? positions.map((position) => results[position]) : null;
  state.active = active === undefined ? -1 : state.items.indexOf(active);
  emit("items");
}

/* Allow a value of a field, or no longer. */
export function toggleFilter(key, value) {
  const allowed = new Set(state.filters.get(key) ?? []);
  if (!allowed.delete(value)) allowed.add(value);
  if (allowed.size) state.filters.set(key, allowed);
  else state.filters.delete(key);
  applyFilters();
}

/* Filter again; a search is repeated where the server filters. */
export function applyFilters(changes = {}) {
  Object.assign(state, changes);
  emit("filters");
  updateItems();
}

export function setSelection(videos) {
  state.selection = new Set(videos);
  emit("selection");
}

export function toggleSelected(video) {
  if (!state.selection.delete(video)) state.selection.add(video);
  emit("selection");
}

export function openVideo(video, hit = null) {
  state.open = video;
  emit("open", hit);
}

/* The filter that the server applies before it ranks. */
export function serverFilter() {
  const filter = { columns: {} };
  for (const [key, allowed] of state.filters) {
    if (!(allowed instanceof Set)) continue;
    if (key === "label" || key === "split") filter[key] = [...allowed];
    if (key.startsWith("column:")) filter.columns[key.slice(7)] = [...allowed];
  }
  return filter;
}
