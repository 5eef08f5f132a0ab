"""ReportContent → one HTML file that works offline."""

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

from clipset.evaluation.results import ProbeResult
from clipset.files import write_atomic
from clipset.report import charts, wording
from clipset.report.confusion import confusion_data
from clipset.report.content import Counts, ReportContent
from clipset.report.headline import describe_panel, write_headline
from clipset.report.map_data import list_splits, make_legend, map_data
from clipset.report.records import Panel, group_results
from clipset.text import visible

MANY_CLASSES = 40  # with more, only the largest gains and losses are unfolded
UNFOLDED_CLASSES = 15
SCRIPTS = ("core.js", "curves.js", "counts.js", "confusion.js", "map.js", "start.js")


def write_report(content: ReportContent, path: Path) -> None:
    """Write the page to `path` atomically."""
    write_atomic(path, render_report(content).encode("utf-8", errors="replace"))


def render_report(content: ReportContent) -> str:
    """The page as text."""
    return template_environment().get_template("page.html.j2").render(**_page_variables(content))


def template_environment() -> Environment:
    """Jinja with the package's templates; all text is escaped."""
    environment = Environment(
        loader=PackageLoader("clipset.report", "templates"),
        autoescape=True,
        finalize=wording.escape_invisible,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["jpeg"] = _jpeg_source
    environment.filters["unbroken"] = _keep_intervals_together
    environment.filters["sentence_case"] = wording.sentence_case
    environment.globals["plural"] = wording.plural
    return environment


def read_asset(name: str) -> str:
    """The text of a style sheet or script."""
    return files("clipset.report").joinpath("assets", name).read_text(encoding="utf-8")


def content_policy(scripts: Iterable[str] = ()) -> str:
    """A content security policy without any request or script but these."""
    hashes = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
    return (
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"{f'script-src {hashes}; ' if hashes else ''}base-uri 'none'; form-action 'none'"
    )


def _page_variables(content: ReportContent) -> dict[str, Any]:
    """All variables of the templates."""
    panels = group_results(content.results)
    guard, script = read_asset("guard.js"), _combine_scripts()
    legend = make_legend(content.map_points)
    return {
        "content": content,
        "tiles": _tiles(content.counts),
        "headline": write_headline(panels[0]) if panels else None,
        "panels": [_panel_variables(panel) for panel in panels],
        "is_regression": bool(panels) and all(panel.is_error for panel in panels),
        "per_class": _class_variables(panels[0]) if panels else None,
        "comparisons": charts.comparison_chart(content.comparisons),
        "joint_weight": _joint_weight(content.results),
        "reliability": charts.reliability_plots(content.calibration),
        "low_shot": charts.low_shot_chart(content.low_shot),
        "matrices": wording.escape_invisible(confusion_data(panels)),
        "legend": legend,
        "map_splits": list_splits(content.map_points),
        "map_data": wording.escape_invisible(map_data(content.map_points, legend)),
        "curves": charts.curve_charts(content.curves),
        "steps": charts.step_bars(content.steps),
        "total_time": wording.format_duration(sum(step.seconds for step in content.steps)),
        "same_label": _count_same_label(content),
        "style": Markup(read_asset("report.css")),
        "guard": Markup(guard),
        "script": Markup(script),
        "policy": content_policy([guard, script]),
    }


def _joint_weight(results: Iterable[ProbeResult]) -> float:
    """The weight of pre-training beside fine-tuning: baselines have none."""
    weights = [result.settings.get("joint_weight", 0.0) for result in results]
    return max((weight for weight in weights if isinstance(weight, float)), default=0.0)


def _panel_variables(panel: Panel) -> dict[str, Any]:
    return {
        "metric": wording.metric_name(panel.metric),
        "unit": "" if panel.is_error else ",\u202f%",
        "axis": charts.axis_ticks(panel),
        "caption": describe_panel(panel),
        "rows": charts.probe_rows(panel),
        "chance": charts.chance_tick(panel),
    }


def _class_variables(panel: Panel) -> dict[str, Any] | None:
    """Accuracy by class of the main result, next to the baseline's."""
    result = panel.main_result or panel.strongest_backbone
    if result is None or not result.class_accuracy():
        return None
    baseline = panel.baseline if panel.baseline is not result else None
    rows = charts.class_rows(result, baseline)
    compared = baseline is not None and any(row.baseline is not None for row in rows)
    many = compared and len(rows) > MANY_CLASSES
    return {
        "name": wording.row_name(*result.key),
        "is_scale": result.is_scale,
        "baseline": wording.row_name(*baseline.key) if baseline and compared else "",
        "rows": rows,
        "gains": rows[:UNFOLDED_CLASSES] if many else (),
        "losses": charts.largest_losses(rows, UNFOLDED_CLASSES) if many else (),
    }


def _tiles(counts: Counts) -> list[tuple[str, str]]:
    """The known counts as (number, name)."""
    tiles = [
        (wording.format_count(number), many if number != 1 else one)
        for number, one, many in (
            (counts.videos, "video", "videos"),
            (counts.classes, "class", "classes"),
            (counts.clips, "clip", "clips"),
        )
        if number is not None
    ]
    if counts.hours is not None:
        tiles.append((wording.format_hours(counts.hours), "hours of video"))
    return tiles


def _count_same_label(content: ReportContent) -> tuple[int, int]:
    """Hits with the label of their query, and all hits with a label."""
    matches = [
        same
        for neighbours in content.neighbours
        for hit in neighbours.hits
        if (same := neighbours.same_label(hit)) is not None
    ]
    return sum(matches), len(matches)


def _combine_scripts() -> str:
    """All scripts as one, in a scope of its own."""
    return '(() => {\n"use strict";\n' + "\n".join(map(read_asset, SCRIPTS)) + "\n})();\n"


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")


def _keep_intervals_together(text: str) -> Markup:
    """The text, escaped, without line breaks inside intervals."""
    span = r'<span class="unbroken">\g<0></span>'
    return Markup(re.sub(r"\(?[\d.]+–[\d.]+\)?[.,:]?", span, str(escape(visible(text)))))


def _jpeg_source(image: bytes) -> str:
    return f"data:image/jpeg;base64,{base64.b64encode(image).decode('ascii')}"
