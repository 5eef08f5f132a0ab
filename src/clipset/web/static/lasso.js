/* The lasso of the grid: dragging with the mouse draws a rectangle, and every tile that it touches is selected.
 *
 * What it touches is computed from the layout, so tiles that are scrolled out of view count, too. */
import { make, plural, speak } from "./dom.js";
import { setSelection, state } from "./state.js";

const MIN_DRAG = 6; // pixels; less is a click
const EDGE = 16; // pixels within the border in which the grid scrolls
const SCROLL_SPEED = 0.3; // pixels for each frame and pixel beyond the border

const clamp = (value, low, high) => Math.max(low, Math.min(value, high));

export class GridLasso {
  /* `grid.touched(rectangle)` lists the items that a rectangle touches. */
  constructor(grid) {
    this.grid = grid;
    this.box = grid.box;
    this.shape = make("div", { class: "lasso", hidden: true });
    grid.inner.append(this.shape);
    this.press = null; // the pressed mouse: where, and what was selected
    const { box } = this;
    box.addEventListener("pointerdown", (event) => this.down(event));
    box.addEventListener("pointermove", (event) => this.move(event));
    box.addEventListener("pointerup", () => this.up());
    box.addEventListener("lostpointercapture", () => this.stop());
    box.addEventListener("pointercancel", () => this.stop());
    addEventListener("keydown", (event) => this.key(event), { capture: true });
  }

  get isDrawn() {
    return !this.shape.hidden;
  }

  /* A point of the window as one of the grid's content, visible or not. */
  at({ x, y }) {
    const area = this.box.getBoundingClientRect();
    const height = Math.max(this.box.scrollHeight, this.box.clientHeight);
    return [
      clamp(x - area.left, 0, this.box.clientWidth),
      clamp(y - area.top + this.box.scrollTop, 0, height),
    ];
  }

  down(event) {
    this.stop();
    const isScrollbar = event.clientX - this.box.getBoundingClientRect().left >= this.box.clientWidth;
    if (event.pointerType !== "mouse" || event.button > 0 || isScrollbar) return;
    const pointer = { x: event.clientX, y: event.clientY };
    const adds = event.shiftKey || event.ctrlKey || event.metaKey;
    const start = this.at(pointer);
    this.press = { id: event.pointerId, from: pointer, pointer, start, adds, before: state.selection };
  }

  move(event) {
    const { press } = this;
    if (!press || event.pointerId !== press.id) return;
    if (!event.buttons) return void this.stop(); // released where the page does not see it
    press.pointer = { x: event.clientX, y: event.clientY };
    if (this.isDrawn || press.cancelled) return;
    if (Math.hypot(press.pointer.x - press.from.x, press.pointer.y - press.from.y) < MIN_DRAG) return;
    this.box.setPointerCapture(press.id);
    this.shape.hidden = false;
    this.touched = null;
    this.follow();
  }

  /* Once a frame, as the grid may scroll under a pointer that rests. */
  follow() {
    if (!this.press || !this.isDrawn) return;
    const area = this.box.getBoundingClientRect();
    const { y } = this.press.pointer;
    const beyond = Math.min(0, y - area.top - EDGE) + Math.max(0, y - area.bottom + EDGE);
    if (beyond) this.box.scrollTop += Math.sign(beyond) * Math.ceil(Math.abs(beyond) * SCROLL_SPEED);
    this.draw();
    requestAnimationFrame(() => this.follow());
  }

  draw() {
    const [a, b] = [this.press.start, this.at(this.press.pointer)];
    const [left, right] = [Math.min(a[0], b[0]), Math.max(a[0], b[0])];
    const [top, bottom] = [Math.min(a[1], b[1]), Math.max(a[1], b[1])];
    Object.assign(this.shape.style, {
      transform: `translate(${left}px, ${top}px)`, width: `${right - left}px`, height: `${bottom - top}px`,
    });
    const touched = this.grid.touched({ left, top, right, bottom });
    const isSame = touched.length === this.touched?.length && touched.every((item, k) => item === this.touched[k]);
    if (isSame) return;
    this.touched = touched;
    const videos = touched.map((item) => state.items[item]);
    setSelection(this.press.adds ? [...this.press.before, ...videos] : videos);
  }

  up() {
    if (this.isDrawn) {
      this.draw();
      this.grid.anchor = this.touched[0] ?? this.grid.anchor;
      speak(`${plural(state.selection.size, "video")} selected`);
    }
    if (this.isDrawn || this.press?.cancelled) this.ignoreClick();
    this.stop();
  }

  /* The release of the mouse is no click on a tile. */
  ignoreClick() {
    const ignore = (event) => event.stopImmediatePropagation();
    addEventListener("click", ignore, { capture: true });
    setTimeout(() => removeEventListener("click", ignore, { capture: true }));
  }

  stop() {
    this.press = null;
    this.shape.hidden = true;
  }

  key(event) {
    if (event.key !== "Escape" || !this.isDrawn) return;
    event.stopImmediatePropagation();
    event.preventDefault();
    setSelection(this.press.before);
    this.press.cancelled = true;
    this.shape.hidden = true;
  }
}
