"""The paper's tables, from `paper.toml`, and its names of backbones, datasets and tasks."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

BACKBONES = {  # names in the paper's columns to our names
    "SVT": "svt_vitb16",
    "ρBYOL": "rbyol_slow_r50",
    "VMAE B": "videomae_b",
    "VMAE L": "videomae_l",
    "VMAE B ft": "videomae_b_k400",
    "VMAE B SSv2": "videomae_b_ssv2",
}
DATASETS = {"UCF101": "ucf101", "HMDB51": "hmdb51"}
TASKS = {  # names in the paper's columns to those of LVU's lists
    "Relation": "relationship",
    "Speak": "way_speaking",
    "Scene": "scene",
    "Director": "director",
    "Genre": "genre",
    "Writer": "writer",
    "Year": "year",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperTable:
    """One table of the paper; rows in `quoted` are from other papers."""

    name: str
    number: int
    title: str
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    quoted: tuple[str, ...]
    cells: Mapping[tuple[str, str], str]


def _read_tables() -> dict[str, PaperTable]:
    text = files("clipset.reproduce").joinpath("paper.toml").read_text(encoding="utf-8")
    tables = {}
    for name, content in tomllib.loads(text).items():
        lines = [line.split("|") for line in content["rows"].splitlines()]
        (_, *columns), *rows = [[cell.strip() for cell in line] for line in lines]
        tables[name] = PaperTable(
            name=name,
            number=content["number"],
            title=content["title"],
            columns=tuple(columns),
            rows=tuple(row.rstrip("*") for row, *_ in rows),
            quoted=tuple(row.rstrip("*") for row, *_ in rows if row.endswith("*")),
            cells={
                (row.rstrip("*"), column): cell
                for row, *cells in rows
                for column, cell in zip(columns, cells, strict=True)
            },
        )
    return tables


TABLES = _read_tables()
