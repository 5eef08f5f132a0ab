"""A table with notes as one HTML page that asks nothing of any network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from clipset.config import write_atomic
from clipset.report.content import FactGroup
from clipset.report.wording import show_hidden

POLICY = (  # no request, no script
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
    "base-uri 'none'; form-action 'none'"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageCell:
    """A cell: its figure, what is written small beside and below it, and whether it stands out."""

    figure: str = ""
    beside: str = ""
    below: str = ""
    failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRow:
    """A row; the first one after a gap begins a group."""

    name: str
    cells: Sequence[PageCell]
    group: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePage:
    """All that a page with one table shows."""

    title: str
    subtitle: str
    lede: str
    columns: Sequence[str]
    rows: Sequence[PageRow]
    notes: Sequence[str] = ()
    links: Sequence[tuple[str, str]] = ()  # what is written, and where it leads
    facts: Sequence[FactGroup] = ()


def write_table_page(page: TablePage, path: Path) -> None:
    """Write the page to `path`, whole or not at all."""
    write_atomic(path, render_table_page(page).encode("utf-8", errors="replace"))


def render_table_page(page: TablePage) -> str:
    """The page as text; whatever it shows is escaped."""
    environment = Environment(
        loader=PackageLoader("clipset.report", "templates"),
        autoescape=True,
        finalize=show_hidden,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = files("clipset.report").joinpath("assets", "report.css").read_text(encoding="utf-8")
    template = environment.get_template("table.html.j2")
    return template.render(page=page, style=Markup(style), policy=POLICY)
