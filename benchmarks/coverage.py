"""How often 95 % intervals cover the truth, for few seeds and different deviations between them."""

from __future__ import annotations

from itertools import product

import numpy as np
from record import make_parser, write_record

from clipset.evaluation.statistics import compare_values, interval

SEEDS = (2, 3, 5)
DEVIATIONS = (0.0, 0.01, 0.02, 0.03, 0.04)  # of a seed's accuracy
VIDEOS = (200, 600, 2000)
AGREEMENT = 0.7  # fraction of the videos that fare alike with every seed
TRUTH = 0.6


def draw_values(
    generator: np.random.Generator, num_seeds: int, deviation: float, num_videos: int
) -> np.ndarray:
    """Correct or not: videos of different difficulty, seeds of different luck."""
    easy = generator.choice([TRUTH - 0.3, TRUTH + 0.3], num_videos)
    luck = generator.normal(0.0, deviation, (num_seeds, 1))
    same, own = generator.random(num_videos), generator.random((num_seeds, num_videos))
    agrees = generator.random((num_seeds, num_videos)) < AGREEMENT
    return (np.where(agrees, same, own) < easy + luck) * 1.0


def measure_coverage(
    generator: np.random.Generator, repeats: int, num_seeds: int, deviation: float, num_videos: int
) -> tuple[float, float, float]:
    """Coverage of scores and of differences, and the median width of the interval of a score."""
    covered, widths = [], []
    for _ in range(repeats):
        values, other = (draw_values(generator, num_seeds, deviation, num_videos) for _ in range(2))
        low, high = interval(values)
        gap = compare_values(values, other).interval
        covered.append((low <= TRUTH <= high, gap[0] <= 0 <= gap[1]))
        widths.append(high - low)
    scores, differences = np.mean(covered, axis=0).tolist()
    return scores, differences, float(np.median(widths))


def main() -> None:
    parser = make_parser("coverage", __doc__)
    parser.add_argument("--repeats", type=int, default=4000)
    options = parser.parse_args()
    generator = np.random.default_rng(options.seed)
    table = []
    print("seeds  deviation  videos   score  difference   width")
    for num_seeds, deviation, num_videos in product(SEEDS, DEVIATIONS, VIDEOS):
        score, difference, width = measure_coverage(
            generator, options.repeats, num_seeds, deviation, num_videos
        )
        row = f"{num_seeds:5}  {deviation:9.2f}  {num_videos:6}"
        print(f"{row}  {score:6.3f}  {difference:10.3f}  {width:6.3f}", flush=True)
        table.append(
            {
                "seeds": num_seeds,
                "deviation": deviation,
                "videos": num_videos,
                "score": score,
                "difference": difference,
                "width": width,
            }
        )
    rates = {
        n: [row[k] for row in table if row["seeds"] == n for k in ("score", "difference")]
        for n in SEEDS
    }
    write_record(
        options.out,
        "coverage",
        ratios={
            f"{name}_{n}_seeds": float(find(rates[n]))
            for n in SEEDS
            for name, find in (("lowest", min), ("highest", max))
        },
        figures={"repeats": options.repeats, "seed": options.seed, "table": table},
    )


if __name__ == "__main__":
    main()
