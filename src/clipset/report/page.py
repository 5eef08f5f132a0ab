"""ReportContent → one HTML file that asks nothing of any network."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from clipset.config import write_atomic
from clipset.report import charts, data, plots, wording
from clipset.report.content import Counts, ReportContent
from clipset.report.headline import describe, write_headline
from clipset.report.legend import read_legend
from clipset.report.records import Panel, group_records, read_record
from clipset.report.trust import read_differences, read_low_shot
from clipset.text import visible

MANY_CLASSES = 40  # with more, only the largest gains and losses are shown unfolded
SHOWN_CLASSES = 15
SCRIPTS = ("core.js", "curves.js", "counts.js", "confusion.js", "map.js", "start.js")


def write_report(content: ReportContent, path: Path) -> None:
    """Write the page to `path`, whole or not at all."""
    page = render_report(content).encode("utf-8", errors="replace")
    write_atomic(path, page)


def render_report(content: ReportContent) -> str:
    """The page as text."""
    template = _environment().get_template("page.html.j2")
    return template.render(**_describe_page(content))


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("clipset.report", "templates"),
        autoescape=True,
        finalize=wording.show_hidden,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["jpeg"] = _jpeg_source
    environment.filters["unbroken"] = _keep_intervals_whole
    environment.filters["sentence_case"] = wording.sentence_case
    environment.globals["plural"] = wording.plural
    return environment


def _describe_page(content: ReportContent) -> dict[str, Any]:
    """Everything that the templates name."""
    panels = group_records([read_record(record) for record in content.records])
    guard, script = _asset("guard.js"), _script()
    legend = read_legend(content.map_points)
    return {
        "content": content,
        "tiles": _tiles(content.counts),
        "headline": write_headline(panels[0]) if panels else None,
        "panels": [_describe_panel(panel) for panel in panels],
        "of_numbers": bool(panels) and all(panel.is_error for panel in panels),
        "per_class": _describe_classes(panels[0]) if panels else None,
        "differences": plots.place_differences(read_differences(content.comparisons)),
        "reliability": plots.place_reliability(content.calibration),
        "low_shot": plots.place_low_shot(read_low_shot(content.low_shot)),
        "matrices": wording.show_hidden(data.confusion_data(panels)),
        "legend": legend,
        "map_splits": data.map_splits(content.map_points),
        "map_data": wording.show_hidden(data.map_data(content.map_points, legend)),
        "curves": charts.place_curves(content.curves),
        "steps": charts.place_steps(content.steps),
        "total_time": wording.duration(sum(step.seconds for step in content.steps)),
        "shared": _share_of_same_label(content),
        "style": Markup(_asset("report.css")),
        "guard": Markup(guard),
        "script": Markup(script),
        "policy": _content_policy([guard, script]),
    }


def _describe_panel(panel: Panel) -> dict[str, Any]:
    return {
        "metric": wording.metric_name(panel.metric),
        "unit": "" if panel.is_error else ",\u202f%",
        "axis": charts.place_axis(panel),
        "caption": describe(panel),
        "rows": charts.place_probes(panel),
        "chance": charts.place_chance(panel),
    }


def _describe_classes(panel: Panel) -> dict[str, Any] | None:
    """Accuracy by class of the row that speaks for clipset, beside the baseline's."""
    ours = panel.flagship or panel.strongest_backbone
    if ours is None or not ours.class_accuracy():
        return None
    theirs = panel.baseline if panel.baseline is not ours else None
    rows = charts.place_classes(ours, theirs)
    compared = any(row.theirs is not None for row in rows)
    many = compared and len(rows) > MANY_CLASSES
    return {
        "ours": ours,
        "theirs": theirs if compared else None,
        "rows": rows,
        "gains": rows[:SHOWN_CLASSES] if many else (),
        "losses": charts.worst_classes(rows, SHOWN_CLASSES) if many else (),
    }


def _tiles(counts: Counts) -> list[tuple[str, str]]:
    """The counts that are known, as (figure, name)."""
    tiles = [
        (wording.count(number), name if number != 1 else one)
        for number, one, name in (
            (counts.videos, "video", "videos"),
            (counts.classes, "class", "classes"),
            (counts.clips, "clip", "clips"),
        )
        if number is not None
    ]
    if counts.hours is not None:
        tiles.append((wording.hours(counts.hours), "hours of video"))
    return tiles


def _share_of_same_label(content: ReportContent) -> tuple[int, int]:
    """How many of the shown hits share the query's label, and of how many that is known."""
    known = [
        same
        for neighbours in content.neighbours
        for hit in neighbours.hits
        if (same := neighbours.same_label(hit)) is not None
    ]
    return sum(known), len(known)


def _script() -> str:
    """All scripts as one, with names that nobody else sees."""
    return '(() => {\n"use strict";\n' + "\n".join(map(_asset, SCRIPTS)) + "\n})();\n"


def _asset(name: str) -> str:
    return files("clipset.report").joinpath("assets", name).read_text(encoding="utf-8")


def _content_policy(scripts: Iterable[str]) -> str:
    """Forbid every request, and every script but ours."""
    hashes = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
    return (
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src {hashes}; base-uri 'none'; form-action 'none'"
    )


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")


def _keep_intervals_whole(text: str) -> Markup:
    """The text, escaped, with no line break inside an interval."""
    whole = r'<span class="whole-words">\g<0></span>'
    return Markup(re.sub(r"\(?[\d.]+–[\d.]+\)?[.,:]?", whole, str(escape(visible(text)))))


def _jpeg_source(image: bytes) -> str:
    return f"data:image/jpeg;base64,{base64.b64encode(image).decode('ascii')}"
