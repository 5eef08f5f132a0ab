/* Views of what deserves a second look: doubtful labels, duplicates, outliers. */
import { get, media } from "./api.js";
import { button, make, message, plural, segmented } from "./dom.js";
import { openVideo, state } from "./state.js";

const VIEWS = {
  doubtful: ["Doubtful labels", "Labels that the classifier contradicts. Open one, look, and label it again.", "No doubtful label", "Every label agrees with what the vectors say, or there are too few labels to tell."],
  duplicates: ["Duplicates", "Videos with almost the same vector: copies, or cuts of one recording.", "No duplicates", "No two videos have almost the same vector."],
  outliers: ["Outliers", "Videos that are far from all others: rare events, or files that do not belong here.", "No outliers", "No video is far from all others."],
};

export class ReviewView {
  constructor(box, pane, side) {
    this.pane = pane;
    this.kind = "doubtful";
    this.lede = make("p", { class: "soft" });
    this.list = make("ul", { class: "review-list" });
    this.side = side;
    this.round = 0;
    box.append(make("div", { class: "review-main" },
      make("div", { class: "bar" }, segmented("View", Object.entries(VIEWS).map(([key, [title]]) => [key, title]), this.kind, (kind) => { this.kind = kind; this.load(); })),
      this.lede, this.list), side);
  }

  open() {
    return this.load();
  }

  async load() {
    const { kind } = this;
    this.round += 1;
    const { round } = this;
    const [, lede, none, why] = VIEWS[kind];
    this.lede.textContent = lede;
    this.list.replaceChildren(message("Looking …"));
    try {
      const { items } = await get(`/api/views/${kind}`);
      if (round !== this.round) return;
      this.list.replaceChildren(...(items.length ? items.map((item) => this.row(item)) : [message(none, why)]));
    } catch (error) {
      if (round === this.round) this.list.replaceChildren(message("This view is not available", error.message, button("Try again", () => this.load())));
    }
  }

  row({ videos, score, reason }) {
    const shots = videos.slice(0, 6).map((video) => make("button", {
      type: "button", class: "review-shot", title: state.videos.ids[video], on: { click: () => openVideo(video) }, data: { video },
    }, make("img", { alt: "", src: media(video, "thumbnail"), loading: "lazy" }), make("span", { class: "name", text: state.videos.names[video] })));
    if (videos.length > 6) shots.push(make("span", { class: "soft", text: `and ${plural(videos.length - 6, "more", "more")}` }));
    return make("li", { class: "review-row" }, make("div", { class: "shots" }, ...shots),
      make("p", {}, make("span", { text: reason }), make("span", { class: "soft", text: score === null ? "" : ` ${score.toFixed(2)}` })));
  }
}
