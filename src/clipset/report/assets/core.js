/* Shared by the charts: data, colours, high-resolution canvases, the tooltip. */
const byId = (id) => document.getElementById(id);

function readData(id) {
  const block = byId(id);
  return block ? JSON.parse(block.textContent) : null;
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
}

/* [red, green, blue] of a colour written as #rrggbb. */
function channels(hex) {
  return [1, 3, 5].map((start) => parseInt(hex.slice(start, start + 2), 16));
}

/* A canvas in the resolution of the screen; coordinates stay in CSS pixels. */
function sharpen(canvas, width, height) {
  const ratio = Math.min(devicePixelRatio || 1, 3);
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = width + "px";
  canvas.style.height = height + "px";
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  return pen;
}

/* Text cut to a width, with an ellipsis. */
function shorten(pen, text, width) {
  if (pen.measureText(text).width <= width) return text;
  let low = 0;
  let high = Math.min(text.length, 200);
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    if (pen.measureText(text.slice(0, middle) + "…").width <= width) low = middle;
    else high = middle - 1;
  }
  return text.slice(0, low) + "…";
}

function element(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

const tip = {
  box: byId("tip"),
  show(x, y, parts) {
    this.box.replaceChildren(...parts);
    this.box.hidden = false;
    this.shownAt = scrollY;
    const { width, height } = this.box.getBoundingClientRect();
    const left = x + 16 + width < innerWidth ? x + 16 : Math.max(8, x - width - 16);
    const top = Math.min(Math.max(8, y - height / 2), Math.max(8, innerHeight - height - 8));
    this.box.style.transform = `translate(${Math.round(left)}px, ${Math.round(top)}px)`;
  },
  hide() {
    this.box.hidden = true;
  },
  /* Hide the tooltip when the page was scrolled. */
  follow() {
    if (scrollY !== this.shownAt) this.hide();
  },
};

/* Announce a text to screen readers. */
function speak(text) {
  byId("spoken").textContent = text;
}

const percentOf = (part, whole) => (whole ? Math.round((1000 * part) / whole) / 10 : 0) + "\u202f%";

/* Charts are redrawn when their box, the window or the colour scheme changes. */
const charts = [];

function drawAll() {
  for (const chart of charts) chart.draw();
}

function keepDrawn(chart) {
  let width = chart.box.clientWidth;
  chart.draw();
  charts.push(chart);
  const follow = () => {
    if (chart.box.clientWidth === width) return;
    width = chart.box.clientWidth;
    chart.draw();
  };
  // In a frame of its own: drawing may add or remove a scroll bar, which changes the size again.
  new ResizeObserver(() => requestAnimationFrame(follow)).observe(chart.box);
}
