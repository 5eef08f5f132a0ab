/* The map of the videos. */
const COLOURS = 8;
const RANGES = 5;
const HIT_RADIUS = 18; // pixels around a dot
const KEYS = { ArrowUp: [0, -1], ArrowDown: [0, 1], ArrowLeft: [-1, 0], ArrowRight: [1, 0] };

/* Colours repeat after eight labels with another shape: 40 combinations. */
const SHAPES = [
  (pen, x, y, r) => pen.arc(x, y, r, 0, 2 * Math.PI),
  (pen, x, y, r) => pen.rect(x - 0.85 * r, y - 0.85 * r, 1.7 * r, 1.7 * r),
  (pen, x, y, r) => polygon(pen, [[x, y - 1.2 * r], [x + 1.1 * r, y + 0.8 * r], [x - 1.1 * r, y + 0.8 * r]]),
  (pen, x, y, r) => polygon(pen, [[x, y - 1.3 * r], [x + 1.1 * r, y], [x, y + 1.3 * r], [x - 1.1 * r, y]]),
  (pen, x, y, r) => polygon(pen, [[x, y + 1.2 * r], [x + 1.1 * r, y - 0.8 * r], [x - 1.1 * r, y - 0.8 * r]]),
];

function polygon(pen, corners) {
  corners.forEach(([x, y], index) => (index ? pen.lineTo(x, y) : pen.moveTo(x, y)));
  pen.closePath();
}

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
    this.canvas = box.querySelector("canvas");
    this.buttons = [...document.querySelectorAll("#map-legend button")];
    this.hovered = -1; // the label under the pointer
    this.highlighted = new Set(); // clicked labels
    this.split = -1;
    this.selected = -1; // the video in the tooltip
    this.listen();
  }

  style(label) {
    if (label === this.data.unlabelled) return { fill: this.colours.none, shape: SHAPES[0] };
    if (this.data.targets) return { fill: this.colours.ramp[label], shape: SHAPES[0] };
    return {
      fill: this.colours.list[label % COLOURS],
      shape: SHAPES[Math.floor(label / COLOURS) % SHAPES.length],
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
    this.radius = Math.max(2.5, Math.min(5.5, 110 / Math.sqrt(x.length)));
    this.xs = x.map((value) => width / 2 + (value - wide / 2) * across);
    this.ys = y.map((value) => height / 2 - (value - high / 2) * down);
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
    const pen = sharpen(this.canvas, ...this.size);
    const dim = this.hovered >= 0 || this.highlighted.size > 0;
    for (const lit of dim ? [false, true] : [true]) {
      for (let i = 0; i < this.xs.length; i += 1) {
        if (this.isVisible(i) && this.isLit(i) === lit) this.paintDot(pen, i, lit);
      }
    }
    if (this.selected >= 0) this.paintRing(pen, this.selected);
  }

  paintDot(pen, i, lit) {
    const { fill, shape } = this.style(this.data.label[i]);
    pen.globalAlpha = lit ? 0.9 : 0.1;
    pen.fillStyle = lit ? fill : this.colours.none;
    pen.strokeStyle = this.colours.card;
    pen.beginPath();
    shape(pen, this.xs[i], this.ys[i], this.radius);
    pen.fill();
    if (lit) pen.stroke();
    pen.globalAlpha = 1;
  }

  paintRing(pen, i) {
    this.paintDot(pen, i, true);
    pen.strokeStyle = this.colours.ink;
    pen.lineWidth = 2;
    pen.beginPath();
    pen.arc(this.xs[i], this.ys[i], this.radius + 4, 0, 2 * Math.PI);
    pen.stroke();
  }

  paintKey(canvas, label) {
    const pen = sharpen(canvas, 14, 14);
    const { fill, shape } = this.style(label);
    pen.fillStyle = fill;
    pen.beginPath();
    shape(pen, 7, 7, 5);
    pen.fill();
  }

  nearest(x, y) {
    let best = -1;
    let least = HIT_RADIUS * HIT_RADIUS;
    for (let i = 0; i < this.xs.length; i += 1) {
      const distance = (this.xs[i] - x) ** 2 + (this.ys[i] - y) ** 2;
      if (distance < least && this.isVisible(i) && this.isLit(i)) [best, least] = [i, distance];
    }
    return best;
  }

  /* The nearest video in a direction. */
  next([across, down]) {
    if (this.selected < 0) return this.xs.findIndex((_, i) => this.isVisible(i) && this.isLit(i));
    let best = this.selected;
    let least = Infinity;
    for (let i = 0; i < this.xs.length; i += 1) {
      const [dx, dy] = [this.xs[i] - this.xs[this.selected], this.ys[i] - this.ys[this.selected]];
      const ahead = dx * across + dy * down;
      const cost = ahead + 2 * Math.abs(dx * down + dy * across);
      if (ahead > 0.01 && cost < least && this.isVisible(i) && this.isLit(i)) [best, least] = [i, cost];
    }
    return best;
  }

  select(i, aloud) {
    if (i === this.selected && i < 0) return;
    this.selected = i;
    this.paint();
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
