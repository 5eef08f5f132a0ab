"""The record of a benchmark: one JSON file with results, machine, commit and date."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from pathlib import Path

from clipset.files import write_json
from clipset.runs import environment

RESULTS = Path(__file__).parent / "results"


def make_parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """A parser with the options of all benchmarks."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--out", type=Path, default=RESULTS / f"{name}.json", metavar="FILE")
    parser.add_argument("--seed", type=int, default=0)
    return parser


def write_record(
    out: Path, name: str, *, ratios: dict[str, float], figures: dict[str, object]
) -> None:
    """Write and print a record. Ratios compare measurements of the same run."""
    machine = environment()
    record = {
        "name": name,
        "commit": machine.pop("commit", "unknown"),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine,
        "ratios": {key: round(value, 4) for key, value in ratios.items()},
        "figures": figures,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    write_json(out, record)
    for key, value in {**ratios, **figures}.items():
        print(f"{key}: {value:.3f}" if isinstance(value, float) else f"{key}: {value}")
    print(f"→ {out}")
