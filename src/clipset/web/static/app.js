/* The page: views, keys, colours, start. */
import { readPalette } from "./colours.js";
import { button, byId, classInput, count, isTyping, make, message, plural } from "./dom.js";
import { Filters } from "./filters.js";
import { Grid } from "./grid.js";
import { classes, labelAll, undo } from "./labels.js";
import { Search } from "./search.js";
import {
  emit, loadLabels, loadLearnerPredictions, loadRun, on, setSelection, state, waitForPredictions,
} from "./state.js";

const THEMES = { auto: "as the system", light: "light", dark: "dark" };
const ICONS = { auto: "◐", light: "☀", dark: "☾" };
const KEYS = [
  ["Arrows, Home, End", "move in the grid or between points of the map"], ["Space", "select or deselect"],
  ["Shift + arrows or click", "select a range"], ["a", "select all"],
  ["Drag in the grid", "select what the rectangle touches; with Ctrl or Shift, too"],
  ["Enter", "open the video; in Label: accept the suggestion"], ["Esc", "close the video, then forget the selection"],
  ["m, l", "more, less like this"], ["1–9", "label with a class"], ["c", "type a class"],
  ["u", "undo the last label"], ["s", "skip, in Label"], ["p", "play or pause"],
  ["[ and ]", "a moment from, until the playhead"], ["+ − 0", "zoom the map"], ["?", "these keys"],
];

const views = {};
let pane;
let tab = "";

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  const toggle = byId("theme");
  toggle.textContent = ICONS[theme];
  toggle.title = `Colours: ${THEMES[theme]}`;
  toggle.setAttribute("aria-label", toggle.title);
  try { localStorage.setItem("theme", theme); } catch { /* private mode: it lasts for this page */ }
  repaint();
}

function repaint() {
  readPalette();
  if (!state.run) return;
  emit("colours");
  views.grid?.refresh();
}

function startTheme() {
  let theme = "auto";
  try { theme = localStorage.getItem("theme") ?? "auto"; } catch { /* the system's */ }
  setTheme(theme in THEMES ? theme : "auto");
  byId("theme").addEventListener("click", () => {
    const names = Object.keys(THEMES);
    setTheme(names[(names.indexOf(document.documentElement.dataset.theme) + 1) % names.length]);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
}

const tabs = () => document.querySelectorAll("[role=tab]");

/* The view in the address, the videos if there is none. */
function tabOfAddress() {
  const name = location.hash.slice(1);
  return byId(name)?.classList.contains("view") ? name : "videos";
}

/* Show one view; the video pane goes where it is needed. */
function showTab(name) {
  if (name === tab) return;
  if (tab === "label") views.label.leave();
  tab = name;
  if (location.hash.slice(1) !== name) history.replaceState(null, "", "#" + name);
  for (const view of document.querySelectorAll(".view")) view.hidden = view.id !== name;
  for (const one of tabs()) one.setAttribute("aria-selected", String(one.dataset.tab === name));
  closeVideo();
  if (name === "label") views.label.open();
  if (name === "review") views.review.open();
  if (name === "report") showReport();
  if (name === "videos") views.grid.render();
}

function showReport() {
  const box = byId("report");
  if (box.children.length) return;
  box.append(state.run.has_report
    ? make("iframe", { src: "/report", title: "Report of the run" })
    : message("No report yet", "Run clipset report on this run; then open this tab again."));
}

/* A video covers the grid of a narrow page. */
const isNarrow = () => matchMedia("(max-width: 760px)").matches;

function showVideo(hit) {
  const side = tab === "review" ? byId("review-side") : byId("side");
  side.append(pane.element);
  side.classList.add("has-video");
  side.closest(".view").classList.add("has-video");
  pane.show(state.open, hit);
  if (isNarrow()) pane.close.focus();
}

function closeVideo() {
  if (pane.element.isConnected && pane.element.closest("#label") === null) {
    for (const element of document.querySelectorAll(".has-video")) element.classList.remove("has-video");
    pane.element.remove();
  }
  pane.stop();
  pane.video = null;
  state.open = null;
  emit("selection");
}

function fillSelection() {
  const bar = byId("selection");
  const { size } = state.selection;
  bar.hidden = size < 2;
  if (size < 2) return;
  const videos = [...state.selection];
  const [name, names] = classInput("selection-classes", "Label all as …", "Label the selected videos", classes());
  const form = make("form", {}, name, names);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (name.value.trim()) labelAll(videos, name.value.trim());
  });
  bar.replaceChildren(make("b", { text: `${count(size)} selected` }),
    button("More like these", () => views.search.likeAll(videos.slice(0, 20)), { class: "primary" }),
    ...(state.run.can_label ? [form] : []),
    button("Clear", () => setSelection([]), { class: "quiet" }));
}

function fillGridMessage() {
  const box = byId("grid-message");
  box.hidden = state.items.length > 0;
  if (!box.hidden) {
    box.replaceChildren(state.run.num_videos
      ? message("No video fits", "The filters leave nothing.", button("Clear filters", () => views.filters.reset()))
      : message("This run has no videos", "Run clipset run on a folder with videos first."));
  }
}

function fillHelp() {
  const dialog = byId("help");
  const rows = KEYS.map(([key, text]) =>
    make("div", {}, make("dt", {}, make("kbd", { text: key })), make("dd", { text })));
  dialog.append(make("h2", { text: "Keys" }), make("dl", {}, ...rows),
    button("Close", () => dialog.close(), { class: "primary" }));
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  byId("help-open").addEventListener("click", () => dialog.showModal());
}

function listenToKeys() {
  addEventListener("keydown", (event) => {
    if (event.defaultPrevented || byId("help").open) return;
    if (tab === "label" && views.label.key(event)) return;
    if (pane.video !== null && pane.key(event)) return;
    if (isTyping(event)) return;
    if (event.key === "Escape" && state.open !== null) closeVideo();
    else if (event.key === "?") byId("help").showModal();
    else if (event.key === "u" && tab !== "label") undo();
    else return;
    event.preventDefault();
  });
}

/* The grid first, the rest of the page once it is drawn. */
async function start() {
  startTheme();
  await loadRun();
  const { run } = state;
  document.title = `${run.name} · clipset`;
  byId("run-name").textContent = run.name;
  byId("run-size").textContent = plural(run.num_videos, "video");
  views.search = new Search(byId("query"));
  views.grid = new Grid(byId("grid"), views.search);
  views.filters = new Filters(byId("tools"));
  on("items", fillGridMessage);
  on("reveal", (video) => views.grid.reveal(video));
  byId("start").remove();
  if (tabOfAddress() === "videos") byId("videos").hidden = false;
  emit("items");
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  await startRest();
  document.documentElement.dataset.ready = "true";
  await loadLabels();
  if (state.labels.labels.length) await loadLearnerPredictions().catch(() => {});
  await waitForPredictions();
}

async function startRest() {
  const [{ MapView }, { VideoPane }, { LabelView }, { ReviewView }] = await Promise.all(
    [import("./map.js"), import("./video.js"), import("./label.js"), import("./review.js")]);
  fillHelp();
  pane = new VideoPane(views.search, closeVideo);
  views.map = new MapView(byId("map"));
  views.label = new LabelView(byId("label"), pane);
  views.review = new ReviewView(byId("review"), pane, make("div", { class: "side", id: "review-side" }));
  on("selection", fillSelection);
  on("labels", fillSelection);
  on("open", showVideo);
  on("query", () => { if (isNarrow() && tab === "videos" && state.results) closeVideo(); });
  on("tab", showTab);
  listenToKeys();
  for (const one of tabs()) one.addEventListener("click", () => showTab(one.dataset.tab));
  document.querySelector(".tabs").addEventListener("keydown", (event) => {
    const step = { ArrowRight: "nextElementSibling", ArrowLeft: "previousElementSibling" }[event.key];
    event.target[step]?.focus();
  });
  addEventListener("hashchange", () => showTab(tabOfAddress()));
  showTab(tabOfAddress());
}

start().catch((error) => {
  if (!byId("start")) throw error;
  byId("start").replaceChildren(
    message("The run could not be opened", error.message, button("Try again", () => location.reload())));
});
