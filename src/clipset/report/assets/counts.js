/* The counts of a confusion matrix. */

/* The dense matrix with row sums, in the selected order. */
function unfold(record, ordering) {
  const size = record.classes.length;
  const counts = new Float64Array(size * size);
  for (let i = 0; i < record.cells.length; i += 3) {
    counts[record.cells[i] * size + record.cells[i + 1]] = record.cells[i + 2];
  }
  const sums = record.classes.map((_, row) =>
    counts.subarray(row * size, (row + 1) * size).reduce((sum, count) => sum + count, 0));
  const order = ordering === "similar" ? [...record.similar] : record.classes.map((_, index) => index);
  const accuracy = (index) => (sums[index] ? counts[index * size + index] / sums[index] : 2);
  if (ordering === "accuracy") order.sort((a, b) => accuracy(a) - accuracy(b));
  const at = (row, column) => counts[order[row] * size + order[column]];
  return { size, at, sum: (row) => sums[order[row]], name: (row) => record.classes[order[row]] };
}

/* The filled cells with their colours, the faintest first: blue on the diagonal, orange beside it.
   The square root keeps small fractions visible. */
function colourCells(matrix) {
  const [card, correct, wrong] = ["card", "good", "wrong"].map((name) => channels(colour(name)));
  const filled = [];
  for (let row = 0; row < matrix.size; row += 1) {
    for (let column = 0; column < matrix.size; column += 1) {
      const count = matrix.at(row, column);
      if (!count) continue;
      const strength = 0.2 + 0.8 * Math.sqrt(count / matrix.sum(row));
      const full = row === column ? correct : wrong;
      const [r, g, b] = card.map((base, i) => Math.round(base + (full[i] - base) * strength));
      const dark = 0.299 * r + 0.587 * g + 0.114 * b < 140;
      filled.push({ row, column, count, strength, dark, fill: `rgb(${r} ${g} ${b})` });
    }
  }
  return filled.sort((a, b) => a.strength - b.strength);
}
