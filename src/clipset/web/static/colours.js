/* One colour and shape for each value of a field, the same in grid, map, timeline and legend. */
import { colour, compareNames, NUM_COLOURS } from "./dom.js";
import { NUM_SHAPES } from "./raster.js";
import { on, state } from "./state.js";

const NUM_RANGES = 5;
const ranks = new Map(); // field key → { values, counts, rank }
let palette = null;

on("colours", () => ranks.clear());
on("labels", () => ranks.clear());

/* The colours of the scheme; read again after it changed. */
export function readPalette() {
  const names = (letter, length) => Array.from({ length }, (_, index) => colour(letter + index));
  palette = {
    list: names("c", NUM_COLOURS), ramp: names("r", NUM_RANGES),
    none: colour("backbone"), card: colour("card"), ink: colour("ink"), scale: colour("scale"), wrong: colour("wrong"),
  };
  return palette;
}
export const paletteNow = () => palette ?? readPalette();

export const cssColour = ([red, green, blue]) => `rgb(${red} ${green} ${blue})`;

/* Labels, predictions and labels of the loop are coloured alike. */
const LABEL_FIELDS = ["label", "prediction", "my-label", "my-prediction"];

/* The values of a field by name, with their counts: { values, counts, rank }. */
export function valuesOf(key) {
  if (ranks.has(key)) return ranks.get(key);
  const field = state.fields.get(key);
  const counts = new Map();
  for (const value of field?.values ?? []) if (value !== null) counts.set(value, (counts.get(value) ?? 0) + 1);
  const values = [...counts.keys()].sort(compareNames);
  const entry = { values, counts, rank: new Map(values.map((value, rank) => [value, rank])) };
  ranks.set(key, entry);
  return entry;
}

/* Classes of the run come first, then those of the label loop: a new class changes no colour. */
function labelRanks() {
  if (!ranks.has("labels")) {
    const { labels, predictions } = state.videos;
    const values = new Set();
    for (const list of [state.run.classes, state.labels?.classes ?? [], labels, predictions]) {
      for (const value of list) if (value !== null) values.add(value);
    }
    ranks.set("labels", new Map([...values].map((value, rank) => [value, rank])));
  }
  return ranks.get("labels");
}

/* { fill, channels, shape } of a value; null has the colour of "none". */
export function colourStyle(key, value) {
  const { list, ramp, none } = paletteNow();
  const style = (channels, shape = 0) => ({ channels, shape, fill: cssColour(channels) });
  if (value === null || value === undefined) return style(none);
  const field = state.fields.get(key);
  if (field?.kind === "number") return style(ramp[rangeOf(key, value)]);
  const rank = (LABEL_FIELDS.includes(key) ? labelRanks() : valuesOf(key).rank).get(value);
  if (rank === undefined) return style(none);
  return style(list[rank % NUM_COLOURS], Math.floor(rank / NUM_COLOURS) % NUM_SHAPES);
}

/* The upper edges of five ranges with about as many videos each. */
export function rangesOf(key) {
  const name = "ranges of " + key;
  if (!ranks.has(name)) {
    const numbers = state.fields.get(key).values.filter((value) => value !== null).sort((a, b) => a - b);
    const edge = (k) => numbers[Math.min(numbers.length - 1, Math.floor((k * numbers.length) / NUM_RANGES))];
    ranks.set(name, { low: numbers[0], edges: Array.from({ length: NUM_RANGES }, (_, k) => edge(k + 1)) });
  }
  return ranks.get(name);
}

function rangeOf(key, value) {
  const { edges } = rangesOf(key);
  const index = edges.findIndex((edge) => value < edge);
  return index < 0 ? NUM_RANGES - 1 : index;
}
