/* Views of what deserves a second look: doubtful labels, duplicates, outliers. */
import { get, thumbnail } from "./api.js";
import { button, make, message, plural, segmented, span } from "./dom.js";
import { openVideo, state } from "./state.js";

const VIEWS = {
  doubtful: {
    title: "Doubtful labels",
    lede: "Labels you gave that the vectors contradict. Open one, look, and label it again.",
    none: ["No doubtful label", "Your labels agree with the vectors, or there are too few of them to tell."],
  },
  duplicates: {
    title: "Duplicates",
    lede: "Videos with almost the same vector: copies, or cuts of one recording.",
    none: ["No duplicates", "No two videos have almost the same vector."],
  },
  outliers: {
    title: "Outliers",
    lede: "Videos far from all others: rare events, or files that do not belong here.",
    none: ["No outliers", "No video is far from all others."],
  },
};

export class ReviewView {
  constructor(box, pane, side) {
    this.pane = pane;
    this.kind = "doubtful";
    this.lede = make("p", { class: "soft" });
    this.list = make("ul", { class: "review-list" });
    this.side = side;
    this.round = 0;
    const choices = Object.entries(VIEWS).map(([key, { title }]) => [key, title]);
    const switches = segmented("View", choices, this.kind, (kind) => { this.kind = kind; this.load(); });
    const bar = make("div", { class: "bar" }, switches);
    box.append(make("div", { class: "review-main" }, bar, this.lede, this.list), side);
  }

  open() {
    return this.load();
  }

  async load() {
    const { kind } = this;
    this.round += 1;
    const { round } = this;
    this.lede.textContent = VIEWS[kind].lede;
    this.list.replaceChildren(message("Looking …"));
    try {
      const { items } = await get(`/api/views/${kind}`);
      if (round !== this.round) return;
      const rows = items.map((item) => this.row(item));
      this.list.replaceChildren(...(rows.length ? rows : [message(...VIEWS[kind].none)]));
    } catch (error) {
      const again = button("Try again", () => this.load());
      if (round === this.round) this.list.replaceChildren(message("This view is not available", error.message, again));
    }
  }

  row({ videos, score, reason }) {
    const shots = videos.slice(0, 6).map((video) => make("button", {
      type: "button", class: "review-shot", title: state.videos.ids[video], data: { video },
      on: { click: () => openVideo(video) },
    }, thumbnail(video), span("name", state.videos.names[video])));
    if (videos.length > 6) shots.push(span("soft", `and ${plural(videos.length - 6, "more", "more")}`));
    return make("li", { class: "review-row" }, make("div", { class: "shots" }, ...shots),
      make("p", {}, make("span", { text: reason }), span("soft", score === null ? "" : ` ${score.toFixed(2)}`)));
  }
}
