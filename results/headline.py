"""Accuracy against minutes: more pre-training of a backbone, or SCALE on an earlier checkpoint.

    clipset pretrain-backbone lsa64/labels.csv --out vit --vit mini --minutes 60 --set flip=false
    python results/headline.py vit --catalog lsa64/labels.csv --classes 20 --out DIR

The backbones of a quarter, of half and of the whole training are each run with the same settings:
features, SCALE, then k-NN and linear probes on both. Run again, it resumes. Writes headline.json,
headline.md and headline.svg.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import clipset
from clipset.backbones.trained import read_header
from clipset.data.catalog import Catalog
from clipset.files import write_atomic, write_json
from clipset.pipeline import RunResult
from clipset.recipe import resolve_recipe
from clipset.report.charts import Axis, round_ticks
from clipset.report.wording import row_name
from clipset.runs import environment

CHECKPOINTS = ("quarter", "half", "backbone")
PROBES = ("knn", "scale_knn", "linear", "scale_linear")
COLOURS = {"k-NN": "#888", "SCALE k-NN": "#0a66c2", "Linear": "#444", "SCALE linear": "#c2410c"}


def select_classes(path: Path, num_classes: int | None) -> Catalog:
    """The labelled videos of the first classes, in the order of the catalog."""
    catalog = clipset.read_catalog(path)
    labels = list(dict.fromkeys(video.label for video in catalog if video.label is not None))
    selected = set(labels[:num_classes])
    return catalog.only(video for video in catalog if video.label in selected)


def run_checkpoint(backbone: Path, catalog: Catalog, out: Path, seeds: int, seed: int) -> RunResult:
    """Features of the backbone, `seeds` trainings of SCALE, and the probes."""
    spec = read_header(backbone).spec
    recipe = resolve_recipe(
        {
            "extract": {"backbone": str(backbone), "stride": spec.stride},
            "pretrain": {"seeds": seeds},
            "evaluate": {"probes": list(PROBES), "num_seeds": 1},
        }
    )
    return clipset.run(catalog, out, recipe, seed=seed)


def describe_checkpoint(backbone: Path, result: RunResult, seeds: int) -> dict[str, Any]:
    """Minutes until each row could be had, and its accuracy."""
    training = read_header(backbone).training
    minutes = float(training["minutes"])
    scale_minutes = result.seconds["pretrain"] / 60 / seeds
    return {
        "checkpoint": backbone.stem,
        "steps": training["steps"],
        "backbone_minutes": minutes,
        "extract_minutes": result.seconds["extract"] / 60,
        "scale_minutes": scale_minutes,
        "rows": {
            row_name(*score.key): {
                "minutes": minutes + (scale_minutes if score.features == "scale" else 0.0),
                "value": score.value,
                "interval": score.interval,
            }
            for score in result.scores
        },
        "differences": {
            f"{row_name(*own.key)} − {row_name(*own.baseline)}": {
                "difference": own.difference, "interval": own.interval, "p": own.p,
            }
            for own in result.comparisons
        },
    }  # fmt: skip


def render_table(points: Sequence[dict[str, Any]]) -> str:
    """A row for each checkpoint; minutes are those of one core of this machine."""
    names = list(points[0]["rows"])
    header = ["minutes of pre-training", *names, "minutes of SCALE"]
    lines = [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    for point in points:
        cells = [f"{point['backbone_minutes']:.1f}"]
        for name in names:
            row = point["rows"][name]
            low, high = row["interval"]
            cells.append(f"{100 * row['value']:.1f} ({100 * low:.1f}–{100 * high:.1f})")
        cells.append(f"{point['scale_minutes']:.1f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def draw_figure(points: Sequence[dict[str, Any]]) -> str:
    """An SVG: accuracy with its interval by minutes, a line for each row."""
    rows = [row for point in points for row in point["rows"].values()]
    ticks = round_ticks(0, max(row["minutes"] for row in rows), 5)
    x_axis = Axis(start=0, end=ticks[-1], ticks=tuple((tick, f"{tick:g}") for tick in ticks))
    highest = max(100 * row["interval"][1] for row in rows)
    levels = round_ticks(0, highest, 5)
    y_axis = Axis(start=levels[-1], end=0, ticks=tuple((level, f"{level:g}") for level in levels))

    def point_at(minutes: float, value: float) -> tuple[float, float]:
        return 60 + 5.2 * x_axis.position(minutes), 20 + 2.8 * y_axis.position(value)

    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 360" font-family="sans-serif" '
        'font-size="13">',
        '<rect width="760" height="360" fill="#fff"/>',
    ]
    for value, text in y_axis.ticks:
        left, top = point_at(0, value)
        parts.append(f'<path d="M{left} {top:.1f}h520" stroke="#ddd"/>')
        parts.append(f'<text x="52" y="{top + 4:.1f}" text-anchor="end">{text}</text>')
    for value, text in x_axis.ticks:
        left, top = point_at(value, 0)
        parts.append(f'<text x="{left:.1f}" y="{top + 20:.1f}" text-anchor="middle">{text}</text>')
    parts.append('<text x="320" y="350" text-anchor="middle">minutes of training</text>')
    parts.append('<text x="60" y="13">top-1 accuracy in %, with 95 % intervals</text>')
    for index, (name, colour) in enumerate(COLOURS.items()):
        own = [point["rows"][name] for point in points]
        points_at = [point_at(row["minutes"], 100 * row["value"]) for row in own]
        line = " ".join(f"{left:.1f},{top:.1f}" for left, top in points_at)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for row, (left, top) in zip(own, points_at, strict=True):
            low, high = (point_at(0, 100 * end)[1] for end in row["interval"])
            parts.append(f'<path d="M{left:.1f} {low:.1f}V{high:.1f}" stroke="{colour}"/>')
            parts.append(f'<circle cx="{left:.1f}" cy="{top:.1f}" r="4" fill="{colour}"/>')
        parts.append(f'<circle cx="610" cy="{40 + 24 * index}" r="4" fill="{colour}"/>')
        parts.append(f'<text x="622" y="{44 + 24 * index}">{name}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> None:
    """Run all checkpoints, write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("backbones", type=Path, help="folder of `clipset pretrain-backbone`")
    parser.add_argument("--catalog", type=Path, required=True)
    parser.add_argument("--classes", type=int, help="only the first classes of the catalog")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--seeds", type=int, default=2, help="trainings of SCALE")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    catalog = select_classes(options.catalog, options.classes)
    points = []
    for name in CHECKPOINTS:
        backbone = options.backbones / f"{name}.safetensors"
        result = run_checkpoint(backbone, catalog, options.out / name, options.seeds, options.seed)
        points.append(describe_checkpoint(backbone, result, options.seeds))
    record = {"videos": len(catalog), "seeds": options.seeds, "environment": environment()}
    write_json(options.out / "headline.json", record | {"points": points})
    table = render_table(points)
    write_atomic(options.out / "headline.md", table.encode())
    write_atomic(options.out / "headline.svg", draw_figure(points).encode())
    print(table)


if __name__ == "__main__":
    main()
