/* The confusion matrix. Only visible cells are drawn, so 400 classes are as fast as 4. */
const SMALLEST_CELL = 0.5;
const LARGEST_CELL = 72;
const LABELLED_CELL = 11;
const COUNTED_CELL = 22;
const SMALLEST_MARK = 3; // a filled cell is never drawn smaller than this

class ConfusionMatrix {
  constructor(records, box) {
    this.records = records;
    this.box = box;
    this.whole = box.querySelector(".whole");
    this.canvas = box.querySelector("canvas");
    this.zoom = 1;
    this.cursor = null;
    this.listen();
  }

  /* Load the selected matrix and order, and list the most frequent confusions. */
  load() {
    const record = this.records[Number(byId("confusion-record").value)];
    this.record = record;
    this.matrix = unfold(record, byId("confusion-order").value);
    this.cursor = null;
    this.listMistakes();
    this.listGroups();
  }

  draw() {
    this.filled = colourCells(this.matrix);
    this.measure();
    this.paint();
  }

  measure(again = false) {
    const { size } = this.matrix;
    const width = this.box.clientWidth;
    const pen = this.canvas.getContext("2d");
    pen.font = this.font();
    let longest = 0;
    for (let i = 0; i < size; i += 1) longest = Math.max(longest, pen.measureText(this.matrix.name(i)).width);
    const labelled = Math.ceil(Math.min(longest + 12, width * 0.28, 150));
    const limit = parseFloat(getComputedStyle(this.box).maxHeight) || width;
    const room = Math.min(width, limit) - 24;
    const fit = (room - labelled) / size >= LABELLED_CELL ? (room - labelled) / size : room / size;
    this.fit = fit;
    this.cell = Math.max(SMALLEST_CELL, Math.min(LARGEST_CELL, fit * this.zoom));
    if (this.cell > 4) this.cell = Math.floor(this.cell);
    this.margin = (this.cell >= LABELLED_CELL ? labelled : 0) + 20;
    const extent = this.margin + size * this.cell + 1;
    this.width = Math.min(extent, width);
    this.height = Math.min(extent, limit);
    this.whole.style.width = this.whole.style.height = extent + "px";
    if (!again && this.box.clientWidth < width) this.measure(true); // a scroll bar took some width
  }

  font(weight = 400) {
    const size = Math.max(10, Math.min(13, this.cell ? this.cell * 0.8 : 13));
    return `${weight} ${size}px ${getComputedStyle(this.box).fontFamily}`;
  }

  paint() {
    const pen = sharpen(this.canvas, this.width, this.height);
    const { margin, cell } = this;
    const { size } = this.matrix;
    const left = this.box.scrollLeft;
    const top = this.box.scrollTop;
    const first = (offset) => Math.max(0, Math.floor(offset / cell));
    const last = (offset, length) => Math.min(size, Math.ceil((offset + length - margin) / cell));
    const span = { rows: [first(top), last(top, this.height)], columns: [first(left), last(left, this.width)] };
    pen.save();
    pen.beginPath();
    pen.rect(margin, margin, this.width - margin, this.height - margin);
    pen.clip();
    this.paintCells(pen, span, left, top);
    if (cell >= 6) this.paintGrid(pen, span, left, top);
    pen.strokeStyle = colour("soft");
    pen.strokeRect(margin - left + 0.5, margin - top + 0.5, size * cell, size * cell);
    if (this.cursor) this.paintCursor(pen, left, top);
    pen.restore();
    this.paintNames(pen, span, left, top);
  }

  paintGrid(pen, { rows, columns }, left, top) {
    const { margin, cell } = this;
    pen.strokeStyle = colour("grid");
    pen.beginPath();
    for (let row = rows[0]; row <= rows[1]; row += 1) {
      pen.moveTo(margin - left, margin - top + row * cell + 0.5);
      pen.lineTo(this.width, margin - top + row * cell + 0.5);
    }
    for (let column = columns[0]; column <= columns[1]; column += 1) {
      pen.moveTo(margin - left + column * cell + 0.5, margin - top);
      pen.lineTo(margin - left + column * cell + 0.5, this.height);
    }
    pen.stroke();
  }

  paintCells(pen, { rows, columns }, left, top) {
    const { margin, cell } = this;
    const side = Math.max(cell, SMALLEST_MARK);
    pen.font = this.font();
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    for (const { row, column, count, dark, fill } of this.filled) {
      if (row < rows[0] || row >= rows[1] || column < columns[0] || column >= columns[1]) continue;
      const x = margin - left + (column + 0.5) * cell;
      const y = margin - top + (row + 0.5) * cell;
      pen.fillStyle = fill;
      pen.fillRect(x - side / 2, y - side / 2, side, side);
      if (cell < COUNTED_CELL) continue;
      pen.fillStyle = dark ? "#ffffff" : "#14171a";
      pen.fillText(String(Math.round(count * 10) / 10), x, y + 1);
    }
  }

  paintCursor(pen, left, top) {
    const [row, column] = this.cursor;
    const side = Math.max(this.cell, 5);
    const nudge = (side - this.cell) / 2;
    pen.lineWidth = 2;
    pen.strokeStyle = colour("ink");
    const x = this.margin - left + column * this.cell - nudge;
    const y = this.margin - top + row * this.cell - nudge;
    pen.strokeRect(x, y, side, side);
    pen.lineWidth = 1;
  }

  paintNames(pen, { rows, columns }, left, top) {
    const { margin, cell, matrix } = this;
    const room = margin - 20 - 8;
    pen.textBaseline = "middle";
    pen.textAlign = "right";
    for (let row = rows[0]; cell >= LABELLED_CELL && row < rows[1]; row += 1) {
      const y = margin - top + (row + 0.5) * cell;
      if (y < margin) continue;
      this.setNameStyle(pen, row === this.cursor?.[0]);
      pen.fillText(shorten(pen, matrix.name(row), room), margin - 6, y);
    }
    pen.textAlign = "left";
    for (let column = columns[0]; cell >= LABELLED_CELL && column < columns[1]; column += 1) {
      const x = margin - left + (column + 0.5) * cell;
      if (x < margin) continue;
      this.setNameStyle(pen, column === this.cursor?.[1]);
      pen.save();
      pen.translate(x, margin - 6);
      pen.rotate(-Math.PI / 2);
      pen.fillText(shorten(pen, matrix.name(column), room), 0, 0);
      pen.restore();
    }
    this.paintAxes(pen);
  }

  setNameStyle(pen, selected) {
    pen.font = this.font(selected ? 700 : 400);
    pen.fillStyle = colour(selected ? "ink" : "soft");
  }

  paintAxes(pen) {
    pen.font = `600 12px ${getComputedStyle(this.box).fontFamily}`;
    pen.fillStyle = colour("soft");
    pen.textAlign = "center";
    pen.fillText("predicted →", (this.margin + this.width) / 2, 9);
    pen.save();
    pen.translate(9, (this.margin + this.height) / 2);
    pen.rotate(-Math.PI / 2);
    pen.fillText("← true class", 0, 0);
    pen.restore();
  }

  /* The ten most frequent confusions. */
  listMistakes() {
    const { matrix } = this;
    const confusions = [];
    for (let row = 0; row < matrix.size; row += 1) {
      for (let column = 0; column < matrix.size; column += 1) {
        const count = row === column ? 0 : matrix.at(row, column);
        if (count) confusions.push([count, row, column]);
      }
    }
    confusions.sort((a, b) => b[0] - a[0]);
    const items = confusions.slice(0, 10).map(([count, row, column]) => {
      const names = `${matrix.name(row)} → ${matrix.name(column)}`;
      const go = () => this.goTo([row, row], [column, column], [row, column]);
      return this.listItem(names, `${count} of ${matrix.sum(row)}`, go);
    });
    byId("confusion-pairs").replaceChildren(...(items.length ? items : [element("li", "No mistakes.")]));
  }

  /* Groups of classes that are often confused. */
  listGroups() {
    const { classes, similar, groups } = this.record;
    const items = groups.map(({ first, size, mistakes, videos }) => {
      const names = similar.slice(first, first + size).map((index) => classes[index]).join(" · ");
      return this.listItem(names, `${Math.round(mistakes * 10) / 10} of ${videos}`, () => {
        const order = byId("confusion-order");
        if (order.value !== "similar") {
          order.value = "similar";
          this.load();
        }
        const span = [first, first + size - 1];
        this.goTo(span, span, null);
      });
    });
    byId("confusion-groups").hidden = items.length === 0;
    byId("confusion-groups-list").replaceChildren(...items);
  }

  /* A list entry that scrolls to its cells in the matrix. */
  listItem(text, number, go) {
    const item = element("li");
    const button = element("button", undefined, "go");
    button.type = "button";
    button.append(element("span", text), element("span", number));
    button.addEventListener("click", go);
    item.append(button);
    return item;
  }

  /* Scroll rows and columns to the middle, large enough to read. */
  goTo(rows, columns, cell) {
    const span = Math.max(rows[1] - rows[0], columns[1] - columns[0]) + 1;
    const room = Math.min(this.box.clientWidth, this.box.clientHeight) * 0.6;
    this.zoom = Math.max(1, Math.max(COUNTED_CELL + 2, Math.min(40, room / span)) / this.fit);
    this.draw();
    const middle = ([low, high], length) => ((low + high + 1) / 2) * this.cell - (length - this.margin) / 2;
    this.box.scrollLeft = middle(columns, this.width);
    this.box.scrollTop = middle(rows, this.height);
    this.point(cell, true);
    this.box.scrollIntoView({ block: "nearest" });
  }

  describe([row, column]) {
    const { matrix } = this;
    const count = matrix.at(row, column);
    return {
      names: row === column ? `${matrix.name(row)}: correct` : `${matrix.name(row)} → ${matrix.name(column)}`,
      count: `${count} of ${matrix.sum(row)} (${percentOf(count, matrix.sum(row))})`,
    };
  }

  /* The cell under a point of the window, or null. */
  find(x, y) {
    const box = this.canvas.getBoundingClientRect();
    if (x - box.left < this.margin || y - box.top < this.margin) return null;
    const column = Math.floor((x - box.left - this.margin + this.box.scrollLeft) / this.cell);
    const row = Math.floor((y - box.top - this.margin + this.box.scrollTop) / this.cell);
    const inside = row >= 0 && column >= 0 && row < this.matrix.size && column < this.matrix.size;
    return inside ? this.snap(row, column) : null;
  }

  /* Cells too small to hit: the nearest filled one within a few pixels. */
  snap(row, column) {
    const reach = Math.floor(5 / this.cell);
    let best = [row, column];
    let least = reach * reach + 1;
    for (let r = Math.max(0, row - reach); r <= Math.min(this.matrix.size - 1, row + reach); r += 1) {
      for (let c = Math.max(0, column - reach); c <= Math.min(this.matrix.size - 1, column + reach); c += 1) {
        const distance = (r - row) ** 2 + (c - column) ** 2;
        if (this.matrix.at(r, c) && distance < least) [best, least] = [[r, c], distance];
      }
    }
    return best;
  }

  point(cell, aloud) {
    this.cursor = cell;
    this.paint();
    if (!cell) return tip.hide();
    const { names, count } = this.describe(cell);
    const box = this.canvas.getBoundingClientRect();
    const x = box.left + this.margin - this.box.scrollLeft + (cell[1] + 0.5) * this.cell;
    const y = box.top + this.margin - this.box.scrollTop + (cell[0] + 0.5) * this.cell;
    tip.show(x + this.cell / 2, y, [element("b", names), element("span", count)]);
    if (aloud) speak(`${names}, ${count}`);
    return undefined;
  }

  /* Move the cursor by key and keep it in view. */
  step(rows, columns) {
    const last = this.matrix.size - 1;
    const [row, column] = this.cursor ?? [0, -columns];
    const cell = [Math.min(last, Math.max(0, row + rows)), Math.min(last, Math.max(0, column + columns))];
    const scrollTo = (offset, index, length) => {
      const start = index * this.cell;
      return Math.max(start + this.cell + this.margin - length, Math.min(offset, start));
    };
    this.box.scrollLeft = scrollTo(this.box.scrollLeft, cell[1], this.width);
    this.box.scrollTop = scrollTo(this.box.scrollTop, cell[0], this.height);
    this.point(cell, true);
  }

  /* Larger or smaller cells around the same middle. */
  resize(factor) {
    const before = this.cell;
    const middle = (offset, length) => (offset + (length - this.margin) / 2) / before;
    const across = middle(this.box.scrollLeft, this.width);
    const down = middle(this.box.scrollTop, this.height);
    this.zoom = factor ? this.zoom * factor : 1;
    this.draw();
    if (factor && this.cell === before) this.zoom /= factor;
    this.box.scrollLeft = across * this.cell - (this.width - this.margin) / 2;
    this.box.scrollTop = down * this.cell - (this.height - this.margin) / 2;
  }

  listen() {
    const keys = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const { box } = this;
    box.addEventListener("pointermove", (event) => this.point(this.find(event.clientX, event.clientY), false));
    box.addEventListener("pointerdown", (event) => this.point(this.find(event.clientX, event.clientY), true));
    box.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && this.point(null, false));
    box.addEventListener("blur", () => this.point(null, false));
    box.addEventListener("scroll", () => this.paint());
    box.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.point(null, false);
      if (!keys[event.key]) return;
      event.preventDefault();
      this.step(...keys[event.key]);
    });
    for (const id of ["confusion-record", "confusion-order"]) {
      byId(id).addEventListener("change", () => {
        this.load();
        this.draw();
      });
    }
    byId("confusion-in").addEventListener("click", () => this.resize(1.6));
    byId("confusion-out").addEventListener("click", () => this.resize(1 / 1.6));
    byId("confusion-fit").addEventListener("click", () => this.resize(0));
  }
}

function startConfusion() {
  const chart = new ConfusionMatrix(readData("confusion-data"), byId("confusion-box"));
  chart.load();
  keepDrawn(chart);
}
