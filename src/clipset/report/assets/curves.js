/* Read the value of a curve under the pointer. */
function enliven(figure, readings) {
  const area = figure.querySelector(".area");
  const dot = figure.querySelector(".pointer");
  const read = (event) => {
    const box = area.getBoundingClientRect();
    const target = (100 * (event.clientX - box.left)) / box.width;
    let best = readings[0];
    for (const reading of readings) {
      if (Math.abs(reading[0] - target) < Math.abs(best[0] - target)) best = reading;
    }
    const [x, y, text] = best;
    dot.setAttribute("cx", x + "%");
    dot.setAttribute("cy", y + "%");
    dot.setAttribute("visibility", "visible");
    tip.show(box.left + (x * box.width) / 100, box.top + (y * box.height) / 100, [element("span", text)]);
  };
  area.addEventListener("pointermove", read);
  area.addEventListener("pointerdown", read);
  area.addEventListener("pointerleave", (event) => {
    if (event.pointerType !== "mouse") return;
    dot.setAttribute("visibility", "hidden");
    tip.hide();
  });
}

function startCurves() {
  const readings = readData("curve-data");
  document.querySelectorAll("figure.curve").forEach((figure, index) => {
    if (readings[index].length) enliven(figure, readings[index]);
  });
}
