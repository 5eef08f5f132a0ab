"""`clipset estimate` against real runs: the seconds of each step, estimated and measured.

Each case is a part of a catalog: evenly spaced videos of its first labels. Estimate and run are
processes of their own, one after the other. A step that takes less than a second is not compared.
`at_most` marks a pre-training that may end earlier; `epochs` are those that it had.

Example: python benchmarks/estimate.py --case "signs" lsa64/labels.csv 120 6 --case ...
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from record import make_parser, write_record

from clipset.data.catalog import Catalog, read_catalog, write_catalog

MIN_SECONDS = 1.0  # of a step that is compared


@dataclass(frozen=True)
class Case:
    """A part of a catalog, and the settings of its run."""

    name: str
    data: Path
    num_videos: int
    num_labels: int
    settings: tuple[str, ...]

    @classmethod
    def parse(cls, words: list[str]) -> Case:
        """NAME CATALOG VIDEOS LABELS SETTING…"""
        name, data, num_videos, num_labels, *settings = words
        return cls(name, Path(data), int(num_videos), int(num_labels), tuple(settings))

    def catalog(self) -> Catalog:
        """The videos."""
        catalog = read_catalog(self.data)
        labels = catalog.classes[: self.num_labels]
        videos = [video for video in catalog if video.label in labels]
        indices = np.linspace(0, len(videos) - 1, min(self.num_videos, len(videos))).astype(int)
        chosen = [videos[index] for index in indices.tolist()]
        return catalog.only(replace(video, path=video.path.absolute()) for video in chosen)


def run_clipset(*words: str | Path) -> dict[str, Any]:
    """The result of a verb."""
    command = [Path(sys.executable).with_name("clipset"), *words, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout))


def compare(case: Case, folder: Path) -> dict[str, Any]:
    """The estimated and the measured seconds of each step."""
    catalog_file = folder / "videos.csv"
    write_catalog(case.catalog(), catalog_file)
    changes = [f"--set={setting}" for setting in case.settings]
    estimate = run_clipset("estimate", catalog_file, *changes)
    seconds = run_clipset("run", catalog_file, "--out", folder / "run", *changes)["seconds"]
    metrics = (folder / "run" / "model" / "metrics.jsonl").read_text().splitlines()
    return {
        "videos": estimate["videos"],
        "clips": estimate["clips"],
        "settings": list(case.settings),
        "epochs": len(metrics),
        "at_most": any(step["at_most"] for step in estimate["steps"]),
        "estimated": {step["name"]: round(step["seconds"], 1) for step in estimate["steps"]},
        "measured": {step["name"]: round(seconds[step["name"]], 1) for step in estimate["steps"]},
    }


def main() -> None:
    parser = make_parser("estimate", __doc__)
    parser.add_argument(
        "--case", nargs="+", action="append", required=True, metavar="WORD",
        help="name, catalog, number of videos, number of labels, settings",
    )  # fmt: skip
    options = parser.parse_args()
    figures: dict[str, object] = {}
    ratios = {}
    for case in map(Case.parse, options.case):
        with tempfile.TemporaryDirectory() as folder:
            comparison = compare(case, Path(folder))
        figures[case.name] = comparison
        for step, measured in comparison["measured"].items():
            if measured >= MIN_SECONDS:
                ratios[f"{case.name}, {step}"] = comparison["estimated"][step] / measured
        print(case.name, comparison, flush=True)
    write_record(options.out, "estimate", ratios=ratios, figures=figures)


if __name__ == "__main__":
    main()
