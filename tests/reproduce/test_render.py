"""One table.json, four forms: nothing that a name holds can break any of them."""

import re
from pathlib import Path
from typing import Any

import pytest

from clipset.errors import ClipsetError
from clipset.evaluation.results import ProbeResult
from clipset.reproduce.paper import TABLES
from clipset.reproduce.render import (
    make_cell,
    make_page,
    render_latex,
    render_markdown,
    render_text,
    write_renderings,
)
from clipset.reproduce.table import Cell, TableFile, empty_table, open_table, read_table_file

SPLITS = ("split-1", "split-2", "split-3")
NASTY = r"a|b_c & 50% <script>alert(1)</script> $x^2$ {y} \end{table} *z* #1 ~"


def result(value: float, **more: Any) -> ProbeResult:
    fields = {
        "features": "scale", "probe": "linear", "metric": "top1", "value": value,
        "interval": (value - 0.01, value + 0.01), "n": 10, "seeds": (0, 1), "split": "test",
        "selected_on": "3 of 12 training videos", "seconds": 2.0, "ssl_split": "train",
        "chance_level": 0.1,
    }  # fmt: skip
    return ProbeResult(**(fields | more))


def done(row: str, column: str, value: float, task: str = "", **more: Any) -> Cell:
    return Cell(
        row=row, column=column, task=task, tasks=SPLITS if task else (), status="done",
        fingerprint="m", result=result(value, **more),
    )  # fmt: skip


def failed(row: str, column: str, reason: str, task: str = "") -> Cell:
    return Cell(
        row=row, column=column, task=task, tasks=SPLITS if task else (), status="failed",
        fingerprint="m", reason=reason,
    )  # fmt: skip


@pytest.fixture
def table() -> TableFile:
    found = empty_table(TABLES["ucf101"])
    found.data = "ucf"
    found.put(done("SCALE linear", "SVT", 0.912))
    found.put(failed("MLP", "SVT", "out of memory"))
    found.missing = {"rbyol_slow_r50": "a.pyth: get them from b"}
    return found


def test_text_has_ours_above_the_paper_s(table: TableFile) -> None:
    text = render_text(table)
    lines = text.splitlines()
    index = next(number for number, line in enumerate(lines) if line.startswith("SCALE linear"))
    assert "91.2 (90.2–92.2)" in lines[index]
    assert lines[index + 1].split()[:2] == ["paper", "92.65"]
    assert "Failed: MLP · SVT: out of memory" in text
    assert "Weights not found: rbyol_slow_r50: a.pyth: get them from b" in text
    assert "Not run: the columns ρBYOL; VMAE B; VMAE L; VMAE B ft" in text
    assert "ssl_split = train" in text


def test_the_score_of_three_splits_is_their_mean_once_all_are_there(table: TableFile) -> None:
    for number, split in enumerate(SPLITS):
        assert make_cell(table, "Linear", "SVT").score == ""
        table.put(done("Linear", "SVT", 0.5 + 0.1 * number, split))
    assert make_cell(table, "Linear", "SVT").score == "60.0"
    assert make_cell(table, "Linear", "SVT").interval == "(59.0–61.0)"
    table.put(failed("Linear", "SVT", "gone", "split-2"))
    assert make_cell(table, "Linear", "SVT").score == "failed"


def test_an_error_is_not_shown_in_percent(table: TableFile) -> None:
    table.put(done("Linear", "like_ratio", 1.234, metric="mse"))
    assert make_cell(table, "Linear", "like_ratio").score == "1.23"


def test_markdown_and_latex_escape_whatever_a_name_holds(table: TableFile) -> None:
    table.data = NASTY
    table.put(done("SCALE linear", NASTY, 0.5))
    table.put(failed("MLP", NASTY, NASTY))
    markdown = render_markdown(table).splitlines()
    grid = [line for line in markdown if line.startswith("| ")]
    widths = {len(re.findall(r"(?<!\\)\|", line)) for line in grid}
    assert widths == {len(table.columns) + 2}
    assert not re.search(r"(?<!\\)<script", "\n".join(markdown))
    latex = render_latex(table)
    assert latex.count(r"\end{table}") == 1
    assert latex.count(r"\begin{tabular}") == 1
    body = latex.split(r"\midrule")[1].split(r"\bottomrule")[0]
    assert {len(re.findall(r"(?<!\\)&", line)) for line in body.strip().splitlines()} == {
        len(table.columns)
    }
    assert r"$\rho$BYOL" in latex
    assert not re.search(r"(?<!\\)[%#]", latex)


def test_the_page_is_whole_escapes_and_asks_no_network(table: TableFile, tmp_path: Path) -> None:
    table.data = NASTY
    table.put(failed("MLP", NASTY, NASTY))
    table.recipes = {"r": {"pretrain": {"epochs": 3}}}
    write_renderings(table, tmp_path)
    page = (tmp_path / "table.html").read_text("utf-8")
    assert "<script" not in page
    assert not re.findall(r'(?:src|href)="(?!data:)', page)
    assert "default-src 'none'" in page.replace("&#39;", "'")
    assert "pretrain.epochs" in page
    assert "paper 92.65" in page


def test_the_file_gives_back_the_table(table: TableFile, tmp_path: Path) -> None:
    write_renderings(table, tmp_path)
    again = read_table_file(tmp_path)
    assert again == table
    assert render_text(again) == render_text(table)
    assert make_page(again) == make_page(table)
    assert {path.name for path in tmp_path.iterdir()} == {
        "table.json", "table.txt", "table.md", "table.tex", "table.html",
    }  # fmt: skip


def test_a_folder_with_something_else_is_left_alone(table: TableFile, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ClipsetError, match=r"is not empty and has no table\.json"):
        open_table(tmp_path, TABLES["ucf101"])
    (tmp_path / "thesis.txt").unlink()
    write_renderings(table, tmp_path)
    with pytest.raises(ClipsetError, match="holds the table ucf101, not hmdb51"):
        open_table(tmp_path, TABLES["hmdb51"])
