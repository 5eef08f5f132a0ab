/* Points of a map, drawn by writing pixels: the map of the report and the map of the page.

   A point is a small stamp, copied into one array of pixels that goes to the canvas in one call. */
export const NUM_SHAPES = 5;

/* A pixel as canvases store it (little-endian: alpha, blue, green, red). */
export function packColour([red, green, blue]) {
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

/* Corners of the shapes after the disc, for a radius of 1. */
const CORNERS = [
  null,
  [[-0.85, -0.85], [0.85, -0.85], [0.85, 0.85], [-0.85, 0.85]],
  [[0, -1.2], [1.1, 0.8], [-1.1, 0.8]],
  [[0, -1.3], [1.1, 0], [0, 1.3], [-1.1, 0]],
  [[0, 1.2], [-1.1, -0.8], [1.1, -0.8]],
];

/* Pixels from (x, y) to the edge of a shape; positive inside. */
function depth(shape, radius, x, y) {
  if (shape === 0) return radius - Math.hypot(x, y);
  const corners = CORNERS[shape];
  let least = Infinity;
  for (let i = 0; i < corners.length; i += 1) {
    const [ax, ay] = corners[i];
    const [bx, by] = corners[(i + 1) % corners.length];
    const side = (bx - ax) * (y - ay * radius) - (by - ay) * (x - ax * radius);
    least = Math.min(least, side / Math.hypot(bx - ax, by - ay));
  }
  return least;
}

/* How much of a pixel is covered, in 256ths. */
const coverage = (inside) => Math.round(256 * Math.min(1, Math.max(0, inside + 0.5)));

/* The pixels of a shape around its middle: `fill` and `halo` (an outline in another colour), in 256ths. */
export function makeStamp(shape, radius, outline = 0) {
  const reach = Math.ceil(1.3 * radius + outline + 0.5);
  const [dx, dy, fill, halo] = [[], [], [], []];
  for (let y = -reach; y <= reach; y += 1) {
    for (let x = -reach; x <= reach; x += 1) {
      const inside = depth(shape, radius, x, y);
      const outer = coverage(inside + outline);
      if (!outer) continue;
      dx.push(x);
      dy.push(y);
      fill.push(coverage(inside));
      halo.push(outline ? outer : 0);
    }
  }
  return { reach, dx, dy, fill: Uint16Array.from(fill), halo: Uint16Array.from(halo) };
}

/* Two pixels mixed; `amount` of the first in 256ths. The lower one is opaque or empty (0). */
function mix(top, bottom, amount) {
  if (bottom === 0) return ((top & 0xffffff) | (Math.min(amount, 255) << 24)) >>> 0;
  const rest = 256 - amount;
  const ends = ((top & 0xff00ff) * amount + (bottom & 0xff00ff) * rest) >>> 8;
  const middle = (((top >>> 8) & 0xff) * amount + ((bottom >>> 8) & 0xff) * rest) & 0xff00;
  return ((ends & 0xff00ff) | middle | 0xff000000) >>> 0;
}

/* A canvas of points. Coordinates are CSS pixels; pixels are those of the screen. */
export class Raster {
  constructor(canvas) {
    this.canvas = canvas;
    this.ratio = Math.min(devicePixelRatio || 1, 3);
  }

  /* Fit the canvas to a size and fill it with a colour. `reach` is the largest of the stamps. */
  clear(width, height, background, reach) {
    this.ratio = Math.min(devicePixelRatio || 1, 3);
    const [across, down] = [Math.max(1, Math.round(width * this.ratio)), Math.max(1, Math.round(height * this.ratio))];
    const margin = 2 * reach; // a stamp at the edge needs no check
    if (this.canvas.width !== across || this.canvas.height !== down || this.margin !== margin || !this.image) {
      this.canvas.width = across;
      this.canvas.height = down;
      this.canvas.style.width = width + "px";
      this.canvas.style.height = height + "px";
      this.margin = margin;
      this.image = new ImageData(across + 2 * margin, down + 2 * margin);
      this.pixels = new Uint32Array(this.image.data.buffer);
    }
    this.background = background;
    this.pixels.fill(background);
  }

  /* Draw points in the order of `indices`; point i has `styles[styleOf[i]]`: { colour, stamp }. */
  draw(xs, ys, indices, styles, styleOf) {
    const { pixels, margin, ratio, background } = this;
    const width = this.image.width;
    const [right, bottom] = [width - margin / 2, this.image.height - margin / 2];
    const offsets = styles.map(({ stamp }) => Int32Array.from(stamp.dx, (x, k) => stamp.dy[k] * width + x));
    for (let n = 0; n < indices.length; n += 1) {
      const i = indices[n];
      const x = Math.round(xs[i] * ratio) + margin;
      const y = Math.round(ys[i] * ratio) + margin;
      if (!(x >= margin / 2 && y >= margin / 2 && x < right && y < bottom)) continue;
      const { colour, stamp } = styles[styleOf[i]];
      const { fill, halo } = stamp;
      const shifts = offsets[styleOf[i]];
      const middle = y * width + x;
      for (let k = 0; k < shifts.length; k += 1) {
        const at = middle + shifts[k];
        if (fill[k] === 256) pixels[at] = colour;
        else pixels[at] = mix(colour, halo[k] ? mix(background, pixels[at], halo[k]) : pixels[at], fill[k]);
      }
    }
  }

  show() {
    this.canvas.getContext("2d").putImageData(this.image, -this.margin, -this.margin);
  }
}

/* The nearest of the points that `accepts` within a radius, or -1. */
export function nearestPoint(xs, ys, x, y, radius, accepts) {
  let best = -1;
  let least = radius * radius;
  for (let i = 0; i < xs.length; i += 1) {
    const distance = (xs[i] - x) ** 2 + (ys[i] - y) ** 2;
    if (distance < least && accepts(i)) [best, least] = [i, distance];
  }
  return best;
}

/* The nearest accepted point in a direction ([-1, 0] is left), or `from` if there is none. */
export function nextPoint(xs, ys, from, [across, down], accepts) {
  let best = from;
  let least = Infinity;
  for (let i = 0; i < xs.length; i += 1) {
    const [dx, dy] = [xs[i] - xs[from], ys[i] - ys[from]];
    const ahead = dx * across + dy * down;
    const cost = ahead + 2 * Math.abs(dx * down + dy * across);
    if (ahead > 0.01 && cost < least && accepts(i)) [best, least] = [i, cost];
  }
  return best;
}
