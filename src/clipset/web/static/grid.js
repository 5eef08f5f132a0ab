/* The grid of thumbnails: only the rows in view exist, so 100,000 videos scroll like 100. */
import { media } from "./api.js";
import { clock, make, moment, percent, span, speak } from "./dom.js";
import { colourStyle } from "./colours.js";
import { GridLasso } from "./lasso.js";
import { emit, isMistake, labelOf, on, openVideo, setSelection, state, toggleSelected } from "./state.js";

const GAP = 14; // pixels between cells
const CAPTION = 50; // height of the texts below a thumbnail
const OVERSCAN = 2; // rows beyond the window
const SPRITE_FRAMES = 10;
const SETTLE = 70; // milliseconds in a row's place before its thumbnails are asked for

export class Grid {
  constructor(box, search) {
    this.box = box;
    this.search = search;
    this.inner = make("div", { class: "cells", role: "presentation" });
    box.append(this.inner);
    this.cells = new Map(); // item index → cell
    this.spare = [];
    this.anchor = -1; // where a range selection starts
    this.lasso = new GridLasso(this);
    this.listen();
    on("items", () => this.update());
    on("selection", () => this.mark());
    on("labels", () => this.refresh());
    on("hover", (video) => this.markHover(video));
    addEventListener("server-back", () => this.refresh());
  }

  /* Columns and sizes for the present width. */
  layOut() {
    const width = this.box.clientWidth - 2 * GAP;
    const least = width < 560 ? 150 : 188;
    this.columns = Math.max(1, Math.floor((width + GAP) / (least + GAP)));
    this.cellWidth = (width - GAP * (this.columns - 1)) / this.columns;
    this.shotHeight = Math.round(this.cellWidth * 0.625);
    this.rowHeight = this.shotHeight + CAPTION + GAP;
    const rows = Math.ceil(state.items.length / this.columns);
    this.inner.style.height = `${rows * this.rowHeight + GAP}px`;
  }

  /* Other videos start at the top; the same ones stay where they are. */
  update() {
    const { items } = state;
    const isSame = this.items?.length === items.length && this.items.every((video, k) => video === items[k]);
    this.items = items;
    if (!isSame) {
      this.box.scrollTop = 0;
      this.anchor = -1;
      this.lasso.stop();
    }
    this.refresh();
  }

  refresh() {
    this.drop(() => true);
    this.render();
  }

  drop(isGone) {
    for (const [index, cell] of this.cells) {
      if (!isGone(index)) continue;
      this.cells.delete(index);
      cell.box.remove();
      this.spare.push(cell);
    }
  }

  render() {
    if (!this.box.clientWidth) return;
    this.layOut();
    const first = Math.max(0, Math.floor(this.box.scrollTop / this.rowHeight) - OVERSCAN) * this.columns;
    const rows = Math.ceil(this.box.clientHeight / this.rowHeight) + 2 * OVERSCAN + 1;
    const last = Math.min(state.items.length, first + rows * this.columns);
    this.drop((index) => index < first || index >= last);
    const added = document.createDocumentFragment();
    for (let index = first; index < last; index += 1) {
      if (this.cells.has(index)) continue;
      const cell = this.spare.pop() ?? makeCell();
      this.fill(cell, index);
      this.cells.set(index, cell);
      added.append(cell.box);
    }
    this.inner.append(added);
    this.place();
    clearTimeout(this.settling);
    this.settling = setTimeout(() => this.loadThumbnails(), SETTLE);
  }

  place() {
    for (const [index, { box, shot }] of this.cells) {
      const [row, column] = [Math.floor(index / this.columns), index % this.columns];
      box.style.width = `${this.cellWidth}px`;
      shot.style.height = `${this.shotHeight}px`;
      box.style.transform = `translate(${GAP + column * (this.cellWidth + GAP)}px, ${GAP + row * this.rowHeight}px)`;
    }
  }

  /* The items that a rectangle of the content touches, in the DOM or not. */
  touched({ left, top, right, bottom }) {
    const step = this.cellWidth + GAP;
    const firstRow = Math.max(0, Math.ceil(top / this.rowHeight - 1));
    const lastRow = Math.floor((bottom - GAP) / this.rowHeight);
    const firstColumn = Math.max(0, Math.ceil(left / step - 1));
    const lastColumn = Math.min(Math.floor((right - GAP) / step), this.columns - 1);
    const items = [];
    for (let row = firstRow; row <= lastRow; row += 1) {
      for (let column = firstColumn; column <= lastColumn; column += 1) items.push(row * this.columns + column);
    }
    return items.filter((item) => item < state.items.length);
  }

  /* Rows that are only scrolled past never ask for their images. */
  loadThumbnails() {
    for (const { image, source } of this.cells.values()) {
      if (image.getAttribute("src") !== source) image.src = source;
    }
  }

  fill(cell, index) {
    const video = state.items[index];
    const { names, durations, predictions } = state.videos;
    const hit = state.hits?.[index];
    const [label, prediction] = [labelOf(video), predictions[video]];
    const isMoment = hit !== undefined && hit.start !== null;
    const source = media(video, "thumbnail") + (isMoment ? `?time=${((hit.start + hit.end) / 2).toFixed(1)}` : "");
    if (cell.source !== source) {
      cell.image.removeAttribute("src");
      cell.shot.classList.remove("loaded", "failed");
    }
    Object.assign(cell, { video, index, source });
    cell.box.id = `item-${index}`;
    cell.box.dataset.index = index;
    cell.box.setAttribute("aria-setsize", state.items.length);
    cell.box.setAttribute("aria-posinset", index + 1);
    cell.name.textContent = names[video];
    cell.box.title = state.videos.ids[video];
    cell.label.textContent = label ?? prediction ?? "no label";
    cell.label.classList.toggle("guess", label === null || label === undefined);
    const { fill } = colourStyle("label", label ?? null);
    cell.dot.style.background = fill;
    cell.mark.textContent = isMistake(video) ? `≠ ${prediction}` : "";
    const length = durations[video] ? clock(durations[video]) : "";
    cell.time.textContent = isMoment ? moment(hit.start, hit.end) : length;
    cell.time.classList.toggle("moment", isMoment);
    cell.score.textContent = hit ? hit.score.toFixed(2) : "";
    cell.film.hidden = true;
    this.markCell(cell);
    cell.box.setAttribute("aria-label", [names[video], label && `label ${label}`,
      isMistake(video) && `predicted ${prediction}`, hit && `score ${percent(hit.score)}`].filter(Boolean).join(", "));
  }

  markCell(cell) {
    const selected = state.selection.has(cell.video);
    cell.box.setAttribute("aria-selected", String(selected));
    cell.box.classList.toggle("active", cell.index === state.active);
    cell.box.classList.toggle("open", cell.video === state.open);
  }

  mark() {
    for (const cell of this.cells.values()) this.markCell(cell);
    this.box.classList.toggle("selecting", state.selection.size > 1);
    const active = this.cells.get(state.active);
    if (active) this.box.setAttribute("aria-activedescendant", active.box.id);
    else this.box.removeAttribute("aria-activedescendant");
  }

  markHover(video) {
    for (const cell of this.cells.values()) cell.box.classList.toggle("linked", cell.video === video);
  }

  /* Make an item the active one and bring it into view. */
  activate(index, aloud = true) {
    state.active = Math.max(0, Math.min(index, state.items.length - 1));
    const top = Math.floor(state.active / this.columns) * this.rowHeight;
    if (top < this.box.scrollTop) this.box.scrollTop = top;
    else if (top + this.rowHeight + GAP > this.box.scrollTop + this.box.clientHeight) {
      this.box.scrollTop = top + this.rowHeight + GAP - this.box.clientHeight;
    }
    this.render();
    this.mark();
    const cell = this.cells.get(state.active);
    if (aloud && cell) speak(cell.box.getAttribute("aria-label"));
  }

  reveal(video) {
    const index = state.items.indexOf(video);
    if (index >= 0) this.activate(index, false);
  }

  selectRange(index) {
    const from = this.anchor < 0 ? index : this.anchor;
    setSelection(state.items.slice(Math.min(from, index), Math.max(from, index) + 1));
  }

  open(index) {
    openVideo(state.items[index], state.hits?.[index]);
    this.mark();
  }

  click(event) {
    const box = event.target.closest(".cell");
    if (!box) return;
    const index = Number(box.dataset.index);
    const video = state.items[index];
    state.active = index;
    if (event.target.closest(".similar")) this.search.like(video, { only: true });
    else if (event.shiftKey) this.selectRange(index);
    else if (event.ctrlKey || event.metaKey || event.target.closest(".tick")) {
      this.anchor = index;
      toggleSelected(video);
    } else {
      this.anchor = index;
      setSelection([video]);
      this.open(index);
    }
  }

  key(event) {
    if (!state.items.length || event.altKey) return;
    const page = Math.max(1, Math.floor(this.box.clientHeight / this.rowHeight)) * this.columns;
    const steps = {
      ArrowRight: 1, ArrowLeft: -1, ArrowDown: this.columns, ArrowUp: -this.columns, PageDown: page, PageUp: -page,
      Home: -Infinity, End: Infinity,
    };
    const video = state.items[state.active];
    if (event.key in steps) {
      const last = state.items.length - 1;
      const next = state.active < 0 ? 0 : Math.max(0, Math.min(state.active + steps[event.key], last));
      if (event.shiftKey && this.anchor < 0) this.anchor = Math.max(0, state.active);
      this.activate(next);
      if (event.shiftKey) this.selectRange(next);
      else this.anchor = next;
    } else if (event.key === "a") setSelection(state.items);
    else if (event.key === "Escape" && state.selection.size) {
      setSelection([]);
      event.stopPropagation();
    } else if (video === undefined) return;
    else if (event.key === " ") toggleSelected(video);
    else if (event.key === "Enter") this.open(state.active);
    else if (event.key === "m") this.search.like(video);
    else if (event.key === "l") this.search.like(video, { negative: true });
    else return;
    event.preventDefault();
  }

  /* The frame under the pointer: the sprite holds ten frames side by side. */
  scrub(event) {
    const box = event.pointerType === "mouse" ? event.target.closest?.(".cell") : null;
    const cell = box ? this.cells.get(Number(box.dataset.index)) : null;
    if (this.scrubbed && this.scrubbed !== cell) this.scrubbed.film.hidden = true;
    if (cell !== this.scrubbed) emit("hover", cell ? cell.video : -1);
    this.scrubbed = cell;
    if (!cell) return;
    if (cell.sprite?.video !== cell.video) loadSprite(cell);
    const { image, ready } = cell.sprite;
    if (!ready) return;
    const area = cell.shot.getBoundingClientRect();
    const frame = Math.floor(((event.clientX - area.left) / area.width) * SPRITE_FRAMES);
    const [width, height] = [image.naturalWidth / SPRITE_FRAMES, image.naturalHeight];
    const zoom = Math.max(area.width / width, area.height / height);
    const left = -Math.max(0, Math.min(frame, SPRITE_FRAMES - 1)) * width * zoom + (area.width - width * zoom) / 2;
    cell.film.style.backgroundImage = `url(${image.src})`;
    cell.film.style.backgroundSize = `${image.naturalWidth * zoom}px ${height * zoom}px`;
    cell.film.style.backgroundPosition = `${left}px ${(area.height - height * zoom) / 2}px`;
    cell.film.hidden = false;
  }

  listen() {
    const { box } = this;
    let framed = false;
    box.addEventListener("scroll", () => {
      if (framed) return;
      framed = true;
      requestAnimationFrame(() => { framed = false; this.render(); });
    }, { passive: true });
    new ResizeObserver(() => requestAnimationFrame(() => this.render())).observe(box);
    box.addEventListener("click", (event) => this.click(event));
    box.addEventListener("keydown", (event) => this.key(event));
    box.addEventListener("pointermove", (event) => this.scrub(event));
    box.addEventListener("pointerleave", (event) => this.scrub({ target: box, pointerType: event.pointerType }));
  }
}

function loadSprite(cell) {
  const sprite = { video: cell.video, image: new Image(), ready: false };
  sprite.image.onload = () => { sprite.ready = true; };
  sprite.image.src = media(cell.video, "sprite");
  cell.sprite = sprite;
}

function makeCell() {
  const cell = {
    image: make("img", { alt: "", decoding: "async", draggable: false, fetchPriority: "low" }),
    film: make("div", { class: "film", hidden: true }),
    time: span("time"),
    score: span("score"),
    dot: span("dot"),
    label: span("label"),
    mark: span("mark"),
    name: span("name"),
  };
  cell.shot = make("div", { class: "shot" }, cell.image, cell.film, cell.score, cell.time,
    make("span", { class: "tick", "aria-hidden": "true" }),
    make("span", { class: "similar", text: "Similar", "aria-hidden": "true" }));
  cell.image.addEventListener("load", () => cell.shot.classList.add("loaded"));
  cell.image.addEventListener("error", () => cell.shot.classList.add("failed"));
  const caption = make("div", { class: "caption" },
    make("div", {}, cell.dot, cell.label, cell.mark), make("div", {}, cell.name));
  cell.box = make("div", { class: "cell", role: "option" }, cell.shot, caption);
  return cell;
}
