/* Draw all charts of the page, then set <html data-charts>. */
if (byId("curve-data")) startCurves();
if (byId("confusion-data")) startConfusion();
if (byId("map-data")) startMap();
addEventListener("scroll", () => tip.follow(), { passive: true });
addEventListener("pointerdown", (event) => {
  if (!event.target.closest(".area, #confusion-box, #map-box")) tip.hide();
});
addEventListener("resize", drawAll);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
document.documentElement.dataset.charts = "drawn";
