/* The map of the videos. */
const COLOURS = 8;
const RANGES = 5;
const HIT_RADIUS = 18; // pixels around a dot
const MANY_POINTS = 10000; // with more, dots have no outline
const KEYS = { ArrowUp: [0, -1], ArrowDown: [0, 1], ArrowLeft: [-1, 0], ArrowRight: [1, 0] };

/* Evenly spaced colours of the ramp, first and last included. */
function ramp(count) {
  return Array.from({ length: count }, (_, index) => {
    const step = count > 1 ? Math.round((index * (RANGES - 1)) / (count - 1)) : RANGES - 1;
    return colour("r" + step);
  });
}

class VideoMap {
  constructor(data, box) {
    this.data = data;
    this.box = box;
    [this.canvas, this.overlay] = box.querySelectorAll("canvas");
    this.raster = new Raster(this.canvas);
    this.buttons = [...document.querySelectorAll("#map-legend button")];
    this.hovered = -1; // the label under the pointer
    this.highlighted = new Set(); // clicked labels
    this.split = -1;
    this.selected = -1; // the video in the tooltip
    this.listen();
  }

  /* Colours repeat after eight labels with another shape: 40 combinations. */
  style(label) {
    if (label === this.data.unlabelled) return { fill: this.colours.none, shape: 0 };
    if (this.data.targets) return { fill: this.colours.ramp[label], shape: 0 };
    return {
      fill: this.colours.list[label % COLOURS],
      shape: Math.floor(label / COLOURS) % NUM_SHAPES,
    };
  }

  draw() {
    this.colours = {
      list: Array.from({ length: COLOURS }, (_, index) => colour("c" + index)),
      ramp: ramp(this.data.labels.length - (this.data.unlabelled >= 0)),
      none: colour("backbone"), card: colour("card"), ink: colour("ink"),
    };
    const { clientWidth: width, clientHeight: height } = this.box;
    this.size = [width, height];
    this.layOut(width, height);
    this.paint();
    this.buttons.forEach((button, label) => this.paintKey(button.querySelector("canvas"), label));
  }

  /* Fill the box; one axis may be stretched by half. */
  layOut(width, height) {
    const { x, y } = this.data;
    const margin = 22;
    const [wide, high] = [x, y].map((values) => values.reduce((a, b) => Math.max(a, b), 0) || 1e-9);
    const scales = [(width - 2 * margin) / wide, (height - 2 * margin) / high];
    const [across, down] = scales.map((scale, i) => Math.min(scale, 1.5 * scales[1 - i]));
    this.radius = Math.max(1.5, Math.min(5.5, 110 / Math.sqrt(x.length)));
    this.xs = Float32Array.from(x, (value) => width / 2 + (value - wide / 2) * across);
    this.ys = Float32Array.from(y, (value) => height / 2 - (value - high / 2) * down);
    this.makeStyles();
  }

  /* One style for each label, lit, and a last one for points that are not. */
  makeStyles() {
    const ratio = Math.min(devicePixelRatio || 1, 3);
    const outline = this.xs.length > MANY_POINTS ? 0 : ratio / 2;
    const stamps = Array.from({ length: NUM_SHAPES }, (_, shape) =>
      makeStamp(shape, this.radius * ratio, outline));
    const faint = channels(this.colours.none).map((value, k) =>
      Math.round(0.15 * value + 0.85 * channels(this.colours.card)[k]));
    this.styles = this.data.labels.map((_, label) => {
      const { fill, shape } = this.style(label);
      return { colour: packColour(channels(fill)), stamp: stamps[shape] };
    });
    this.styles.push({ colour: packColour(faint), stamp: makeStamp(0, this.radius * ratio) });
    this.reach = Math.max(...stamps.map((stamp) => stamp.reach));
  }

  isVisible(i) {
    return this.split < 0 || this.data.split[i] === this.split;
  }

  isLit(i) {
    const label = this.data.label[i];
    if (this.hovered >= 0) return label === this.hovered;
    return this.highlighted.size === 0 || this.highlighted.has(label);
  }

  paint() {
    const { styles, data } = this;
    const faint = styles.length - 1;
    const styleOf = Uint32Array.from(data.label, (label, i) => (this.isLit(i) ? label : faint));
    const visible = Array.from(styleOf.keys()).filter((i) => this.isVisible(i));
    this.raster.clear(...this.size, packColour(channels(this.colours.card)), this.reach);
    for (const lit of [false, true]) {
      const indices = visible.filter((i) => (styleOf[i] !== faint) === lit);
      this.raster.draw(this.xs, this.ys, indices, styles, styleOf);
    }
    this.raster.show();
    this.paintRing();
  }

  paintRing() {
    const pen = sharpen(this.overlay, ...this.size);
    if (this.selected < 0) return;
    pen.strokeStyle = this.colours.ink;
    pen.lineWidth = 2;
    pen.beginPath();
    pen.arc(this.xs[this.selected], this.ys[this.selected], this.radius + 4, 0, 2 * Math.PI);
    pen.stroke();
  }

  paintKey(canvas, label) {
    const raster = new Raster(canvas);
    const { fill, shape } = this.style(label);
    const style = { colour: packColour(channels(fill)), stamp: makeStamp(shape, 5 * raster.ratio) };
    raster.clear(14, 14, 0, style.stamp.reach);
    raster.draw([7], [7], [0], [style], [0]);
    raster.show();
  }

  nearest(x, y) {
    return nearestPoint(this.xs, this.ys, x, y, HIT_RADIUS, (i) => this.isVisible(i) && this.isLit(i));
  }

  /* The nearest video in a direction. */
  next(direction) {
    const accepts = (i) => this.isVisible(i) && this.isLit(i);
    if (this.selected < 0) return this.data.label.findIndex((_, i) => accepts(i));
    return nextPoint(this.xs, this.ys, this.selected, direction, accepts);
  }

  select(i, aloud) {
    if (i === this.selected && i < 0) return;
    this.selected = i;
    this.paintRing();
    if (i < 0) {
      tip.hide();
      return;
    }
    const box = this.box.getBoundingClientRect();
    const label = this.data.targets?.[i] ?? this.data.labels[this.data.label[i]];
    const split = this.data.splits[this.data.split[i]];
    tip.show(box.left + this.xs[i], box.top + this.ys[i], this.card(i, label, split));
    if (aloud) speak([label, this.data.ids[i], split].filter(Boolean).join(", "));
  }

  card(i, label, split) {
    const parts = [element("b", label), element("span", this.data.ids[i], "id")];
    if (split !== undefined) parts.push(element("span", split));
    if (this.data.thumbnails[i]) {
      const image = element("img");
      image.alt = "";
      image.width = 144;
      image.src = "data:image/jpeg;base64," + this.data.thumbnails[i];
      parts.unshift(image);
    }
    return parts;
  }

  listen() {
    const { box } = this;
    const seek = (event, aloud) => {
      const corner = box.getBoundingClientRect();
      this.select(this.nearest(event.clientX - corner.left, event.clientY - corner.top), aloud);
    };
    box.addEventListener("pointermove", (event) => event.pointerType === "mouse" && seek(event, false));
    box.addEventListener("click", (event) => seek(event, true));
    box.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && this.select(-1, false));
    box.addEventListener("blur", () => this.select(-1, false));
    box.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.select(-1, false);
      if (!KEYS[event.key]) return;
      event.preventDefault();
      this.select(this.next(KEYS[event.key]), true);
    });
    this.buttons.forEach((button, label) => this.listenToKey(button, label));
    document.querySelectorAll(".splits button").forEach((button) => this.listenToSplit(button));
    byId("map-find")?.addEventListener("input", (event) => this.filter(event.target.value));
  }

  listenToKey(button, label) {
    const hover = (value) => () => {
      this.hovered = value;
      this.paint();
    };
    button.addEventListener("pointerenter", (event) => event.pointerType === "mouse" && hover(label)());
    button.addEventListener("pointerleave", hover(-1));
    button.addEventListener("click", () => {
      if (!this.highlighted.delete(label)) this.highlighted.add(label);
      button.setAttribute("aria-pressed", String(this.highlighted.has(label)));
      this.paint();
    });
  }

  listenToSplit(button) {
    button.addEventListener("click", () => {
      this.split = Number(button.dataset.split);
      for (const other of button.parentElement.children) {
        other.setAttribute("aria-pressed", String(other === button));
      }
      this.paint();
    });
  }

  filter(text) {
    const query = text.trim().toLowerCase();
    this.buttons.forEach((button, label) => {
      button.parentElement.hidden = !this.data.labels[label].toLowerCase().includes(query);
    });
  }
}

function startMap() {
  keepDrawn(new VideoMap(readData("map-data"), byId("map-box")));
}
