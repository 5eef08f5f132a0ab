/* The row above the grid: filter by name, value or range; sort; how many videos are left. */
import { valuesOf, colourStyle } from "./colours.js";
import { button, byId, count, formatNumber, isNone, make, plural, segmented, span } from "./dom.js";
import { applyFilters, isMistake, on, state, toggleFilter, updateItems } from "./state.js";

const FIRST_FACETS = ["label", "split", "prediction", "confidence", "my-label"];
const MAX_VALUES = 300; // in one list; a search narrows it
const TYPING = 150; // milliseconds after the last key

export class Filters {
  constructor(box) {
    this.facets = make("div", { class: "facets" });
    this.name = make("input", { type: "search", placeholder: "Filter by name", "aria-label": "Filter by name" });
    this.name.addEventListener("input", () => {
      clearTimeout(this.typing);
      this.typing = setTimeout(() => applyFilters({ nameFilter: this.name.value.trim().toLowerCase() }), TYPING);
    });
    this.sort = make("select", { "aria-label": "Sort" });
    this.sort.addEventListener("change", () => { state.sort = this.sort.value; updateItems(); });
    this.total = make("span", { class: "total", role: "status" });
    this.mistakes = button("Mistakes", () => applyFilters({ mistakesOnly: !state.mistakesOnly }), { class: "facet" });
    this.clear = button("Clear filters", () => this.reset(), { class: "quiet", hidden: true });
    this.more = make("select", { class: "facet", "aria-label": "Add a filter", on: { change: () => this.addFacet() } });
    this.panes = segmented("Panes", [["grid", "Grid"], ["both", "Both"], ["map", "Map"]], "both", setPanes);
    this.extra = new Set();
    box.append(this.name, this.facets, this.clear, span("spacer"), this.total,
      make("label", {}, span("word", "Sort"), this.sort), this.panes);
    setPanes("both");
    on("items", () => this.update());
    on("labels", () => this.fillFacets());
    on("colours", () => this.fillSort());
    on("filters", () => this.fillFacets());
    this.fillFacets();
  }

  reset() {
    state.filters.clear();
    this.name.value = "";
    applyFilters({ nameFilter: "", mistakesOnly: false });
  }

  fillFacets() {
    const keys = [...state.fields.keys()].filter((key) => key !== "name");
    const used = keys.filter((key) => FIRST_FACETS.includes(key) || this.extra.has(key) || state.filters.has(key));
    const rest = keys.filter((key) => !used.includes(key));
    const hasMistakes = state.videos.labels.some((_, video) => isMistake(video));
    this.mistakes.setAttribute("aria-pressed", String(state.mistakesOnly));
    this.more.replaceChildren(make("option", { value: "", text: "+ Filter" }),
      ...rest.map((key) => make("option", { value: key, text: state.fields.get(key).title })));
    this.facets.replaceChildren(...used.map((key) => this.facet(key)),
      ...(hasMistakes || state.mistakesOnly ? [this.mistakes] : []), ...(rest.length ? [this.more] : []));
    this.clear.hidden = !(state.filters.size || state.nameFilter || state.mistakesOnly);
    this.fillSort();
  }

  addFacet() {
    const key = this.more.value;
    this.extra.add(key);
    this.fillFacets();
    this.facets.querySelector(`[data-key="${CSS.escape(key)}"]`)?.click();
  }

  facet(key) {
    const { title } = state.fields.get(key);
    const filter = state.filters.get(key);
    let text = title;
    if (filter instanceof Set) text = `${title}: ${filter.size === 1 ? [...filter][0] ?? "none" : filter.size}`;
    else if (filter) text = `${title}: ${formatNumber(key, filter.low)} to ${formatNumber(key, filter.high)}`;
    return button(text, (event) => this.openFacet(key, event.currentTarget), {
      class: filter ? "facet used" : "facet", data: { key }, "aria-haspopup": "dialog",
    });
  }

  openFacet(key, anchor) {
    byId("facet-popover")?.remove();
    const { kind, title } = state.fields.get(key);
    const controls = kind === "number" ? this.rangeControls(key) : this.valueControls(key);
    const props = { id: "facet-popover", class: "popover", popover: "auto", role: "dialog", "aria-label": title };
    const popover = make("div", props, ...controls);
    document.body.append(popover);
    popover.addEventListener("toggle", (event) => {
      if (event.newState !== "closed") return;
      popover.remove();
      this.facets.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus();
    });
    popover.showPopover();
    const { left, bottom } = anchor.getBoundingClientRect();
    popover.style.left = `${Math.max(8, Math.min(left, innerWidth - popover.offsetWidth - 8))}px`;
    popover.style.top = `${bottom + 6}px`;
    popover.querySelector("input")?.focus();
  }

  valueControls(key) {
    const { values, counts } = valuesOf(key);
    const numNone = state.fields.get(key).values.filter(isNone).length;
    const entries = values.map((value) => [value, value, counts.get(value)]);
    if (numNone) entries.push([null, "none", numNone]);
    const list = make("ul", { class: "values" });
    const fill = (text) => {
      const matching = entries.filter(([, name]) => name.toLowerCase().includes(text));
      list.replaceChildren(...matching.slice(0, MAX_VALUES).map(([value, name, number]) => {
        const tick = make("input", { type: "checkbox", checked: state.filters.get(key)?.has(value) ?? false });
        tick.addEventListener("change", () => toggleFilter(key, value));
        return make("li", {}, make("label", {}, tick,
          make("span", { class: "dot", style: { background: colourStyle(key, value).fill } }),
          span("name", name), span("soft", count(number))));
      }));
      const rest = matching.length - MAX_VALUES;
      const note = rest > 0 ? `${count(rest)} more: type to find them` : matching.length ? "" : "No such value";
      if (note) list.append(make("li", { class: "soft", text: note }));
    };
    fill("");
    const find = make("input", { type: "search", placeholder: "Find a value", "aria-label": "Find a value",
      on: { input: () => fill(find.value.trim().toLowerCase()) } });
    return entries.length > 10 ? [find, list] : [list];
  }

  rangeControls(key) {
    const scale = key.endsWith("confidence") ? 100 : 1;
    const numbers = state.fields.get(key).values.filter((value) => value !== null);
    const [least, most] = [numbers.reduce((a, b) => Math.min(a, b)), numbers.reduce((a, b) => Math.max(a, b))];
    const filter = state.filters.get(key) ?? { low: least, high: most };
    const edge = (name, edgeValue) => {
      const value = String(Number((scale * edgeValue).toPrecision(4)));
      return make("input", { type: "number", step: "any", value, "aria-label": name });
    };
    const [low, high] = [edge("From", filter.low), edge("To", filter.high)];
    const apply = () => {
      const number = (input, otherwise) => (input.value === "" ? otherwise : Number(input.value) / scale);
      state.filters.set(key, { low: number(low, least), high: number(high, most) });
      applyFilters();
    };
    for (const input of [low, high]) input.addEventListener("change", apply);
    const reset = button("Any", () => {
      state.filters.delete(key);
      applyFilters();
      byId("facet-popover").hidePopover();
    });
    return [make("p", { class: "range" }, "from ", low, " to ", high, scale === 100 ? " %" : ""), reset];
  }

  fillSort() {
    const options = [["", state.results ? "Nearest first" : "Catalog order"]];
    if (state.videos.predictions.some((value) => value !== null)) options.push(["mistakes", "Mistakes first"]);
    for (const [key, { title, kind }] of state.fields) {
      if (kind === "number") options.push([key, `${title}, low first`], ["-" + key, `${title}, high first`]);
      else options.push([key, title]);
    }
    this.sort.replaceChildren(...options.map(([value, text]) => make("option", { value, text })));
    this.sort.value = state.sort;
  }

  update() {
    const { items, results, run } = state;
    const whole = results ? results.length : run.num_videos;
    this.total.textContent = items.length === whole
      ? plural(whole, results ? "result" : "video") : `${count(items.length)} of ${count(whole)}`;
    this.fillFacets();
  }
}

function setPanes(value) {
  byId("videos").dataset.panes = value;
}

