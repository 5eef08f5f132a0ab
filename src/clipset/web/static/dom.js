/* Elements, texts and colours. All text of the server goes through textContent. */
export const byId = (id) => document.getElementById(id);

/* An element; `props` are properties, `on` listeners, `data` data attributes, `aria-…` attributes. */
export function make(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (isNone(value)) continue;
    if (name === "class") element.className = value;
    else if (name === "text") element.textContent = value;
    else if (name === "on") for (const [event, run] of Object.entries(value)) element.addEventListener(event, run);
    else if (name === "data") Object.assign(element.dataset, value);
    else if (name === "style") Object.assign(element.style, value);
    else if (name.includes("-") || name === "role" || name === "list") element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export const button = (text, run, props = {}) => make("button", { type: "button", text, on: { click: run }, ...props });

export const span = (className, text, title) => make("span", { class: className, text, title });

/* A bar filled to a fraction. */
export function gauge(fraction, fill) {
  const width = `${100 * Math.max(0, Math.min(1, fraction))}%`;
  return make("span", { class: "gauge" }, make("span", { class: "fill", style: { width, background: fill } }));
}

/* A box to type a class in, with those that exist. */
export function classInput(id, placeholder, label, names) {
  const list = make("datalist", { id }, ...names.map((value) => make("option", { value })));
  const input = make("input", { type: "text", placeholder, "aria-label": label, list: id, maxLength: 200 });
  return [input, list];
}

const SVG = "http://www.w3.org/2000/svg";
export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/* A place without content says what is missing and what to do. */
export function message(title, detail, ...actions) {
  return make("div", { class: "message" },
    make("p", { class: "title", text: title }), detail ? make("p", { text: detail }) : null,
    actions.length ? make("p", { class: "actions" }, ...actions) : null);
}

/* A row of buttons of which one is pressed. `choices`: [value, text] pairs. */
export function segmented(name, choices, value, run) {
  const row = make("div", { class: "segmented", role: "group", "aria-label": name });
  const press = (next) => {
    for (const one of row.children) one.setAttribute("aria-pressed", String(one.dataset.value === next));
  };
  for (const [key, text] of choices) {
    row.append(button(text, () => { press(key); run(key); }, { data: { value: key } }));
  }
  press(value);
  row.press = press;
  return row;
}

export function speak(text) {
  byId("spoken").textContent = text;
}

/* A short message at the edge of the page; errors stay until they are closed. */
export function toast(text, { error = false, action } = {}) {
  const close = () => box.remove();
  const box = make("div", { class: error ? "toast error" : "toast" }, make("span", { text }));
  if (action) box.append(button(action.text, () => { close(); action.run(); }));
  box.append(button("×", close, { class: "quiet", "aria-label": "Close" }));
  byId("toasts").append(box);
  while (byId("toasts").children.length > 4) byId("toasts").firstChild.remove();
  if (!error) setTimeout(close, 4000);
  return close;
}

export const tip = {
  show(x, y, ...parts) {
    const box = byId("tip");
    box.replaceChildren(...parts);
    box.hidden = false;
    const { width, height } = box.getBoundingClientRect();
    const left = x + 16 + width < innerWidth ? x + 16 : Math.max(8, x - width - 16);
    const top = Math.min(Math.max(8, y - height / 2), Math.max(8, innerHeight - height - 8));
    box.style.transform = `translate(${Math.round(left)}px, ${Math.round(top)}px)`;
  },
  hide() {
    byId("tip").hidden = true;
  },
};

export const percent = (fraction) => (isNone(fraction) ? "–" : `${Math.round(100 * fraction)} %`);
export const isNone = (value) => value === null || value === undefined;
export const count = (number) => String(number).replace(/\B(?=(\d{3})+$)/g, ","); // 12,345
export const plural = (number, noun, nouns = noun + "s") => `${count(number)} ${number === 1 ? noun : nouns}`;

/* Names in the order in which people count: a2 before a10. The first use loads the browser's tables. */
let collator;
export const compareNames = (a, b) => (collator ??= new Intl.Collator("en", { numeric: true })).compare(a, b);

/* 4.25 → "4.3 s", 75 → "1:15" */
export function clock(seconds) {
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")}`;
}

/* A number of a field in its own unit. */
export function formatNumber(key, value) {
  if (key.endsWith("confidence")) return percent(value);
  return key === "duration" ? clock(value) : String(Number(value.toPrecision(3)));
}

export const moment = (start, end) => `${clock(start).replace(" s", "")}–${clock(end)}`;

/* [red, green, blue] of a colour of style.css in the present scheme. */
export function colour(name) {
  const probe = byId("tip");
  probe.style.outlineColor = `var(--${name})`;
  const numbers = getComputedStyle(probe).outlineColor.match(/[\d.]+/g).slice(0, 3).map(Number);
  return numbers.map(Math.round);
}

export const NUM_COLOURS = 8;

/* Is the user typing, so that keys are text? */
export function isTyping(event) {
  return event.target.closest("input:not([type=checkbox]), select, textarea") !== null;
}
