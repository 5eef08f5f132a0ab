"""Time of each step of the demo, its scores, and the time of the finished run, run again."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch is imported

from record import make_parser, write_record

from clipset.pipeline import run_demo
from clipset.report.wording import row_name


def seconds_again(folder: Path, videos: int, seed: int) -> float:
    """How long the finished demo takes in a new process: it has nothing to do."""
    command = [sys.executable, "-m", "clipset.cli", "demo", "--out", str(folder), "--quiet"]
    began = time.perf_counter()
    subprocess.run(
        [*command, "--videos", str(videos), "--seed", str(seed)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return time.perf_counter() - began


def main() -> None:
    parser = make_parser("demo", __doc__)
    parser.add_argument("--videos", type=int, default=240)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        summary = run_demo(Path(folder), videos=options.videos, seed=options.seed)
        again = seconds_again(Path(folder), options.videos, options.seed)
    total = sum(summary.seconds.values())
    write_record(
        options.out,
        "demo",
        ratios={f"{name}_share": seconds / total for name, seconds in summary.seconds.items()},
        figures={
            "videos": summary.videos,
            "seed": options.seed,
            "total_seconds": total,
            "seconds_again": again,
            "seconds": summary.seconds,
            "top1": {
                row_name(*result.key): {
                    "value": result.value,
                    "interval": result.interval,
                }
                for result in summary.scores
            },
        },
    )


if __name__ == "__main__":
    main()
