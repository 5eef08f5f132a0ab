/* The map of the vectors: points on one canvas, names, rings and the lasso on another. */
import { getResponse, media, ServerError } from "./api.js";
import { colourStyle, cssColour, paletteNow, rangesOf, valuesOf } from "./colours.js";
import { button, count, formatNumber, make, message, plural, span, speak, tip } from "./dom.js";
import { makeStamp, nearestPoint, nextPoint, packColour, Raster } from "./raster.js";
import {
  emit, labelOf, on, openVideo, setSelection, state, toggleFilter, toggleSelected, waitForBackground,
} from "./state.js";

const HIT_RADIUS = 14; // pixels
const MARGIN = 28;
const MANY_POINTS = 10000; // with more, points have no outline
const MAX_NAMES = 40;
const KEYS = { ArrowUp: [0, -1], ArrowDown: [0, 1], ArrowLeft: [-1, 0], ArrowRight: [1, 0] };

export class MapView {
  constructor(box) {
    this.points = make("canvas", { "aria-hidden": "true" });
    this.overlay = make("canvas", { "aria-hidden": "true" });
    this.plane = make("div", { class: "plane", tabIndex: 0, role: "application", "aria-label": "Map of the videos" },
      this.points, this.overlay);
    this.colourBy = make("select", { "aria-label": "Colour by", on: { change: () => this.recolour() } });
    this.lassoButton = button("Lasso", () => this.setLasso(!this.lassoing), {
      "aria-pressed": "false", title: "Select by drawing around points (or Shift and drag)",
    });
    this.legend = make("ul", { class: "legend", "aria-label": "Legend" });
    this.kind = make("span", { class: "soft" });
    const zoom = make("div", { class: "zoom" },
      button("+", () => this.zoomBy(1.5), { "aria-label": "Zoom in" }),
      button("−", () => this.zoomBy(1 / 1.5), { "aria-label": "Zoom out" }),
      button("Fit", () => this.fit()));
    box.append(
      make("div", { class: "map-tools" },
        make("label", {}, "Colour ", this.colourBy), this.lassoButton, zoom, this.kind),
      this.plane, this.legend);
    this.raster = new Raster(this.points);
    this.view = { zoom: 1, x: 0, y: 0 }; // the view's middle is moved by x, y pixels
    this.hovered = -1;
    this.lasso = null;
    this.pointers = new Map();
    this.listen();
    this.load();
  }

  /* Positions are computed in the background; until then the map says so. */
  async load() {
    this.plane.append(message("Drawing the map …"));
    try {
      await waitForBackground("map");
      const response = await getResponse("/api/map");
      this.positions = new Float32Array(await response.arrayBuffer());
      this.kind.textContent = response.headers.get("X-Kind") ?? "";
      this.plane.querySelector(".message")?.remove();
      this.measure();
      this.recolour();
    } catch (error) {
      if (!(error instanceof ServerError)) throw error;
      this.plane.querySelector(".message")?.remove();
      this.plane.append(message("No map", error.message));
    }
  }

  measure() {
    const { positions } = this;
    this.num = positions.length / 2;
    this.xs = new Float32Array(this.num);
    this.ys = new Float32Array(this.num);
    this.extent = [0, 1].map((axis) => {
      let most = 1e-6;
      for (let i = axis; i < positions.length; i += 2) if (positions[i] > most) most = positions[i];
      return most;
    });
  }

  /* Screen positions: the map fills its box; one axis may be stretched by half. */
  project() {
    const { positions, xs, ys, view, extent } = this;
    const [width, height] = this.size;
    const scales = [(width - 2 * MARGIN) / extent[0], (height - 2 * MARGIN) / extent[1]];
    const [across, down] = scales.map((scale, axis) => view.zoom * Math.min(scale, 1.5 * scales[1 - axis]));
    const left = width / 2 + view.x - (across * extent[0]) / 2;
    const bottom = height / 2 + view.y + (down * extent[1]) / 2;
    for (let i = 0; i < xs.length; i += 1) {
      xs[i] = left + across * positions[2 * i];
      ys[i] = bottom - down * positions[2 * i + 1];
    }
  }

  radius() {
    const calm = Math.max(1.5, Math.min(5, 90 / Math.sqrt(this.num)));
    return Math.min(6, calm * Math.sqrt(this.view.zoom));
  }

  /* Styles change with colours, filters and selection; positions with the view. */
  recolour() {
    if (!this.positions) return;
    this.fillColourBy();
    this.restyle();
    this.fillLegend();
  }

  fillColourBy() {
    const keys = [...state.fields.keys()].filter((key) => key !== "name");
    if (keys.join() === this.colourKeys) return;
    this.colourKeys = keys.join();
    const value = this.colourBy.value;
    const options = keys.map((key) => make("option", { value: key, text: state.fields.get(key).title }));
    this.colourBy.replaceChildren(...options);
    this.colourBy.value = keys.includes(value) ? value : keys[0] ?? "";
  }

  restyle() {
    if (!this.positions) return;
    const key = this.colourBy.value;
    const values = state.fields.get(key)?.values ?? [];
    const styleIndex = new Map([["dim", 0], ["ring", 1]]);
    this.looks = [null, null];
    const indexOf = (value) => {
      const { channels, shape } = colourStyle(key, value);
      const name = channels.join() + shape;
      if (!styleIndex.has(name)) {
        styleIndex.set(name, this.looks.length);
        this.looks.push({ channels, shape });
      }
      return styleIndex.get(name);
    };
    const lit = new Uint8Array(this.num);
    for (const video of state.items) lit[video] = 1;
    this.lit = lit;
    const cache = new Map();
    this.styleOf = new Uint16Array(this.num);
    for (let i = 0; i < this.num; i += 1) {
      const value = values[i] ?? null;
      if (!cache.has(value)) cache.set(value, indexOf(value));
      this.styleOf[i] = lit[i] ? cache.get(value) : 0;
    }
    const selected = state.selection.size > 1 ? state.selection : new Set();
    const all = Array.from(lit.keys());
    this.layers = {
      dim: all.filter((i) => !lit[i]),
      lit: all.filter((i) => lit[i] && !selected.has(i)),
      selected: [...selected],
    };
    this.placeNames(key, values);
    this.changed();
  }

  /* Each value's name at the middle of its points. */
  placeNames(key, values) {
    this.names = [];
    if (state.fields.get(key)?.kind !== "text" || valuesOf(key).values.length > MAX_NAMES) return;
    const groups = new Map();
    for (const i of state.items) {
      const value = values[i];
      if (value === null || value === undefined) continue;
      if (!groups.has(value)) groups.set(value, []);
      groups.get(value).push(i);
    }
    const median = (group, axis) => {
      const sorted = Float32Array.from(group, (i) => this.positions[2 * i + axis]).sort();
      return sorted[sorted.length >> 1];
    };
    for (const [value, group] of [...groups].sort((a, b) => b[1].length - a[1].length)) {
      const [x, y] = [median(group, 0), median(group, 1)];
      const middle = group.reduce((best, i) => {
        const distance = Math.hypot(this.positions[2 * i] - x, this.positions[2 * i + 1] - y);
        return distance < best[1] ? [i, distance] : best;
      }, [-1, Infinity])[0];
      this.names.push({ value, middle });
    }
  }

  /* One drawing for each frame, and none if nothing changed. */
  changed() {
    if (this.framed) return;
    this.framed = true;
    requestAnimationFrame(() => { this.framed = false; this.draw(); });
  }

  draw() {
    const { clientWidth: width, clientHeight: height } = this.plane;
    if (!this.positions || !this.layers || width < 10 || height < 10) return;
    this.size = [width, height];
    const began = performance.now();
    this.project();
    const palette = paletteNow();
    const { raster, xs, ys, styleOf } = this;
    const radius = this.radius() * raster.ratio;
    const outline = this.num > MANY_POINTS ? 0 : raster.ratio / 2;
    const faint = palette.none.map((value, k) => Math.round(0.22 * value + 0.78 * palette.card[k]));
    const styles = this.looks.map((look, index) => {
      const ring = 1.3 * radius + 1.5 * raster.ratio;
      if (index === 0) return { colour: packColour(faint), stamp: makeStamp(0, 0.8 * radius) };
      if (index === 1) return { colour: packColour(palette.ink), stamp: makeStamp(0, ring) };
      return { colour: packColour(look.channels), stamp: makeStamp(look.shape, radius, outline) };
    });
    raster.clear(width, height, packColour(palette.card), Math.max(...styles.map(({ stamp }) => stamp.reach)));
    const { dim, lit, selected } = this.layers;
    raster.draw(xs, ys, dim, styles, styleOf);
    raster.draw(xs, ys, lit, styles, styleOf);
    raster.draw(xs, ys, selected, styles, new Uint8Array(this.num).fill(1));
    raster.draw(xs, ys, selected, styles, styleOf);
    raster.show();
    this.drawOverlay(palette);
    this.plane.dataset.milliseconds = (performance.now() - began).toFixed(1);
  }

  drawOverlay(palette = paletteNow()) {
    const [width, height] = this.size;
    const { ratio } = this.raster;
    const pen = this.overlay.getContext("2d");
    const [across, down] = [Math.round(width * ratio), Math.round(height * ratio)];
    if (this.overlay.width !== across || this.overlay.height !== down) {
      Object.assign(this.overlay, { width: across, height: down });
      Object.assign(this.overlay.style, { width: width + "px", height: height + "px" });
    }
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    this.drawNames(pen, palette);
    pen.strokeStyle = cssColour(palette.ink);
    for (const [video, line] of [[state.open, 2.5], [this.hovered, 1.5]]) {
      if (video === null || video < 0 || video >= this.num) continue;
      pen.lineWidth = line;
      pen.beginPath();
      pen.arc(this.xs[video], this.ys[video], this.radius() + 4, 0, 2 * Math.PI);
      pen.stroke();
    }
    if (!this.lasso) return;
    pen.beginPath();
    this.lasso.forEach(([x, y], index) => (index ? pen.lineTo(x, y) : pen.moveTo(x, y)));
    pen.closePath();
    pen.fillStyle = cssColour(palette.scale).replace(")", " / 0.12)");
    pen.fill();
    pen.strokeStyle = cssColour(palette.scale);
    pen.lineWidth = 1.5;
    pen.setLineDash([5, 4]);
    pen.stroke();
    pen.setLineDash([]);
  }

  drawNames(pen, palette) {
    pen.font = `600 12px ${getComputedStyle(this.plane).fontFamily}`;
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    pen.lineJoin = "round";
    const used = [];
    for (const { value, middle } of this.names) {
      const text = value.length > 26 ? value.slice(0, 25) + "…" : value;
      const half = pen.measureText(text).width / 2 + 4;
      const [x, y] = [this.xs[middle], this.ys[middle]];
      if (x < half || y < 10 || x > this.size[0] - half || y > this.size[1] - 10) continue;
      const overlaps = ([left, right, level]) => x - half < right && x + half > left && Math.abs(y - level) < 17;
      if (used.some(overlaps)) continue;
      used.push([x - half, x + half, y]);
      pen.strokeStyle = cssColour(palette.card).replace(")", " / 0.9)");
      pen.lineWidth = 4;
      pen.strokeText(text, x, y);
      pen.fillStyle = cssColour(palette.ink);
      pen.fillText(text, x, y);
    }
  }

  fillLegend() {
    const key = this.colourBy.value;
    const field = state.fields.get(key);
    if (!field) return this.legend.replaceChildren();
    if (field.kind === "number") {
      const { low, edges } = rangesOf(key);
      this.legend.replaceChildren(...edges.map((edge, k) => make("li", {},
        swatch(colourStyle(key, k ? edges[k - 1] : low)),
        span("", `${k ? "" : formatNumber(key, low)} to ${formatNumber(key, edge)}`))));
      return undefined;
    }
    const { values, counts } = valuesOf(key);
    const allowed = state.filters.get(key);
    this.legend.replaceChildren(...values.slice(0, 200).map((value) => make("li", {},
      make("button", {
        type: "button", title: `Show only ${value}`,
        "aria-pressed": String(allowed instanceof Set && allowed.has(value)),
        on: { click: () => toggleFilter(key, value) },
      }, swatch(colourStyle(key, value)), span("name", value),
      span("soft", count(counts.get(value)))))));
    return undefined;
  }

  fit() {
    this.view = { zoom: 1, x: 0, y: 0 };
    this.changed();
  }

  /* Zoom about a point of the box, its middle if none. */
  zoomBy(factor, x = this.size[0] / 2, y = this.size[1] / 2) {
    const { view } = this;
    const zoom = Math.max(0.5, Math.min(200, view.zoom * factor));
    const ratio = zoom / view.zoom;
    const [dx, dy] = [x - this.size[0] / 2, y - this.size[1] / 2];
    this.view = { zoom, x: dx - (dx - view.x) * ratio, y: dy - (dy - view.y) * ratio };
    this.changed();
  }

  setLasso(active) {
    this.lassoing = active;
    this.lassoButton.setAttribute("aria-pressed", String(active));
    this.plane.classList.toggle("lassoing", active);
  }

  nearest(x, y) {
    return nearestPoint(this.xs, this.ys, x, y, HIT_RADIUS, (i) => this.lit[i] === 1);
  }

  hover(video, aloud = false) {
    if (video !== this.hovered) {
      this.hovered = video;
      emit("hover", video);
    }
    if (video < 0) return tip.hide();
    const { names, splits } = state.videos;
    const box = this.plane.getBoundingClientRect();
    const image = make("img", { alt: "", src: media(video, "thumbnail"), width: 168 });
    tip.show(box.left + this.xs[video], box.top + this.ys[video], image,
      make("b", { text: labelOf(video) ?? "no label" }), span("name", names[video]),
      make("span", { text: splits[video] ?? "" }));
    if (aloud) speak([labelOf(video), names[video]].filter(Boolean).join(", "));
    return undefined;
  }

  pick(video, adds) {
    if (video < 0) return;
    if (adds) return void toggleSelected(video);
    setSelection([video]);
    emit("reveal", video);
    openVideo(video);
  }

  endLasso(adds) {
    const polygon = this.lasso;
    this.lasso = null;
    this.setLasso(false);
    const inside = polygon.length > 2 ? state.items.filter((i) => contains(polygon, this.xs[i], this.ys[i])) : [];
    setSelection(adds ? [...state.selection, ...inside] : inside);
    speak(`${plural(state.selection.size, "video")} selected`);
    this.changed();
  }

  listen() {
    const { plane } = this;
    const at = (event) => {
      const box = plane.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    plane.addEventListener("pointerdown", (event) => {
      if (!this.positions || event.button > 0) return;
      plane.setPointerCapture(event.pointerId);
      this.pointers.set(event.pointerId, at(event));
      this.dragged = 0;
      if (this.pointers.size === 1 && (this.lassoing || event.shiftKey)) this.lasso = [at(event)];
    });
    plane.addEventListener("pointermove", (event) => this.move(event, at(event)));
    plane.addEventListener("pointerup", (event) => {
      if (!this.pointers.delete(event.pointerId)) return;
      const adds = event.ctrlKey || event.metaKey;
      if (this.lasso) this.endLasso(adds);
      else if (this.dragged < 5 && !this.pointers.size) this.pick(this.nearest(...at(event)), adds);
    });
    plane.addEventListener("pointercancel", (event) => { this.pointers.delete(event.pointerId); this.lasso = null; });
    plane.addEventListener("pointerleave", () => this.positions && this.hover(-1));
    plane.addEventListener("blur", () => this.positions && this.hover(-1));
    plane.addEventListener("dblclick", (event) => this.positions && this.zoomBy(2, ...at(event)));
    plane.addEventListener("wheel", (event) => {
      if (!this.positions) return;
      event.preventDefault();
      this.zoomBy(Math.exp(-event.deltaY / 400), ...at(event));
    }, { passive: false });
    plane.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.changed()).observe(plane);
    on("items", () => { this.restyle(); this.fillLegend(); });
    on("selection", () => this.restyle());
    on("labels", () => this.recolour());
    on("colours", () => this.recolour());
    on("open", () => this.changed());
    on("hover", (video) => {
      this.hovered = video;
      if (this.layers && this.size) this.drawOverlay();
    });
  }

  move(event, [x, y]) {
    if (!this.positions || !this.size) return;
    const before = this.pointers.get(event.pointerId);
    if (!before) {
      if (event.pointerType === "mouse") this.hover(this.nearest(x, y));
      return;
    }
    const other = [...this.pointers].find(([id]) => id !== event.pointerId)?.[1];
    this.pointers.set(event.pointerId, [x, y]);
    this.dragged += Math.hypot(x - before[0], y - before[1]);
    if (this.lasso) {
      this.lasso.push([x, y]);
      this.drawOverlay();
    } else if (other) {
      const spread = (point) => Math.hypot(point[0] - other[0], point[1] - other[1]) || 1;
      this.zoomBy(spread([x, y]) / spread(before), (x + other[0]) / 2, (y + other[1]) / 2);
    } else {
      this.view = { ...this.view, x: this.view.x + x - before[0], y: this.view.y + y - before[1] };
      this.hover(-1);
      this.changed();
    }
  }

  key(event) {
    if (!this.positions) return;
    if (KEYS[event.key]) {
      const first = state.items[0] ?? -1;
      const isLit = (i) => this.lit[i] === 1;
      this.hover(this.hovered < 0 ? first : nextPoint(this.xs, this.ys, this.hovered, KEYS[event.key], isLit), true);
    } else if (event.key === "Enter") this.pick(this.hovered, false);
    else if (event.key === " ") this.pick(this.hovered, true);
    else if (event.key === "+" || event.key === "=") this.zoomBy(1.5);
    else if (event.key === "-") this.zoomBy(1 / 1.5);
    else if (event.key === "0") this.fit();
    else return;
    event.preventDefault();
  }
}

/* A point of the legend. */
function swatch({ shape, channels }) {
  const canvas = make("canvas", { "aria-hidden": "true" });
  const raster = new Raster(canvas);
  const stamp = makeStamp(shape, 4.5 * raster.ratio);
  raster.clear(13, 13, 0, stamp.reach);
  raster.draw([6], [6], [0], [{ colour: packColour(channels), stamp }], [0]);
  raster.show();
  return canvas;
}

/* Is a point inside a polygon? A ray to the right crosses its edges an odd number of times. */
function contains(polygon, x, y) {
  let inside = false;
  for (let i = 0, j = polygon.length - 1; i < polygon.length; j = i, i += 1) {
    const [[ax, ay], [bx, by]] = [polygon[i], polygon[j]];
    if (ay > y !== by > y && x < ((bx - ax) * (y - ay)) / (by - ay) + ax) inside = !inside;
  }
  return inside;
}
