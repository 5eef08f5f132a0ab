"""ReportContent or a table → one HTML file that works offline."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from clipset.config import flatten
from clipset.files import write_atomic
from clipset.report import charts, wording
from clipset.report.confusion import confusion_data
from clipset.report.content import Facts, Panel, ReportContent, group_results
from clipset.report.headline import describe_panel, write_headline
from clipset.report.video_map import map_data
from clipset.text import counted, visible

MANY_CLASSES = 40  # with more, only the largest gains and losses are unfolded
UNFOLDED_CLASSES = 15
SCRIPTS = ("core.js", "curves.js", "counts.js", "confusion.js", "raster.js", "map.js", "start.js")


@dataclass(frozen=True, slots=True, kw_only=True)
class PageCell:
    """A cell: its score and interval, a note below them, and whether it is marked as failed."""

    score: str = ""
    interval: str = ""
    note: str = ""
    failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePage:
    """The content of a page with one table; a row is a name and its cells.

    `links` are texts and addresses.
    """

    title: str
    subtitle: str
    lede: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[PageCell]]]
    notes: Sequence[str] = ()
    links: Sequence[tuple[str, str]] = ()
    facts: Facts = field(default_factory=dict)


def fact_rows(settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Nested settings as rows of facts."""
    return [(name, str(value)) for name, value in flatten(settings).items()]


def write_report(content: ReportContent, page_path: Path) -> None:
    """Write the report of a run to `path` atomically."""
    write_atomic(page_path, render_report(content).encode("utf-8", errors="replace"))


def write_table_page(page: TablePage, page_path: Path) -> None:
    """Write a page with one table to `path` atomically."""
    text = _render("table.html.j2", page=page, policy=_content_policy())
    write_atomic(page_path, text.encode("utf-8", errors="replace"))


def render_report(content: ReportContent) -> str:
    """The report of a run as text."""
    panels = group_results(content.results)
    script = '(() => {\n"use strict";\n' + "\n".join(map(_read_asset, SCRIPTS)) + "\n})();\n"
    joint_weights = [result.settings.get("joint_weight", 0.0) for result in content.results]
    same_label = [query.same_label(hit) for query in content.neighbours for hit in query.hits]
    return _render(
        "page.html.j2",
        content=content,
        headline=write_headline(panels[0], content.comparisons) if panels else None,
        panels=[
            (panel, describe_panel(panel), charts.panel_axis(panel), charts.chance_level(panel))
            for panel in panels
        ],
        is_regression=bool(panels) and all(panel.is_error for panel in panels),
        per_class=_class_variables(panels[0]) if panels else None,
        comparison_axis=charts.comparison_axis(content.comparisons)
        if content.comparisons
        else None,
        joint_weight=max((w for w in joint_weights if isinstance(w, float)), default=0.0),
        low_shot=charts.low_shot_chart(content.low_shot),
        matrices=wording.escape_invisible(confusion_data(panels)),
        map_data=wording.escape_invisible(map_data(content.map_points)),
        curves=[charts.curve_chart(*curve) for curve in content.curves.items() if curve[1]],
        num_compared=len(same_label) - same_label.count(None),
        num_same_label=same_label.count(True),
        script=Markup(script),
        policy=_content_policy(script),
    )


def _render(template_name: str, **variables: Any) -> str:
    """A page from a template of the package; all text is escaped."""
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
    environment.globals |= {"wording": wording, "counted": counted}
    style = Markup(_read_asset("report.css"))
    return environment.get_template(template_name).render(style=style, **variables)


def _read_asset(name: str) -> str:
    text = files("clipset.report").joinpath("assets", name).read_text(encoding="utf-8")
    return re.sub(r"^export ", "", text, flags=re.MULTILINE)  # a module of the page of a run


def _content_policy(script: str = "") -> str:
    """A content security policy without any request or script but this one."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    source = f"'sha256-{digest}'" if script else "'none'"
    return (
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src {source}; base-uri 'none'; form-action 'none'"
    )


def _class_variables(panel: Panel) -> dict[str, Any] | None:
    """Accuracy by class of the main result, next to the baseline's."""
    main_result = panel.main_result
    if not main_result.class_accuracy():
        return None
    baseline = panel.baseline if panel.baseline is not main_result else None
    class_rows = charts.class_rows(main_result, baseline)
    has_baseline = any(class_row.baseline is not None for class_row in class_rows)
    has_many = has_baseline and len(class_rows) > MANY_CLASSES
    compared_rows = [class_row for class_row in class_rows if class_row.gain]
    return {
        "name": wording.row_name(*main_result.key),
        "is_scale": main_result.is_scale,
        "baseline": wording.row_name(*baseline.key) if baseline and has_baseline else "",
        "rows": class_rows,
        "gains": class_rows[:UNFOLDED_CLASSES] if has_many else (),
        "losses": compared_rows[: -UNFOLDED_CLASSES - 1 : -1] if has_many else (),
    }


def _keep_intervals_together(text: str) -> Markup:
    """The text, escaped, without line breaks inside intervals."""
    interval_span = r'<span class="unbroken">\g<0></span>'
    return Markup(re.sub(r"\(?[\d.]+–[\d.]+\)?[.,:]?", interval_span, str(escape(visible(text)))))


def _jpeg_source(image: bytes) -> str:
    return f"data:image/jpeg;base64,{base64.b64encode(image).decode('ascii')}"
