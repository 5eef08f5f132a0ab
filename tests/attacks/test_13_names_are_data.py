"""Names and labels are data: no markup, no control characters, no formulas."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tests.miniatures import run

from clipset.cli.app import print_lines
from clipset.cli.predict import prediction_lines, write_rows
from clipset.data.catalog import Catalog, Video, read_catalog_table, write_catalog
from clipset.inference.run import ClassProbability, Moment, Prediction
from clipset.progress import bar, log
from clipset.report.content import Counts, MapPoint, ReportContent
from clipset.report.page import render_report
from clipset.representation import VectorTable, read_vectors, write_vectors

EVIL = "[red]x[/] :smile: \x1b[31m\x07\n\u202egpj\u2028\x9b1m"
ESCAPED = r"[red]x[/] :smile: \x1b[31m\x07\n\u202egpj\u2028\x9b1m"
FORMULAS = ("=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(1)", "\tx", "\rx", "'=1", "''@", "'plain")
HIDDEN = set(EVIL) - set(ESCAPED) - {"\n"}


def test_a_name_is_shown_as_it_is_and_never_obeyed(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    found = Prediction(
        video=EVIL,
        classes=(ClassProbability(label=EVIL, probability=0.5),),
        timeline=(Moment(start=0.0, end=1.0, label=EVIL, probability=0.5),),
    )
    card = SimpleNamespace(key=("backbone", "knn"), reason="because")
    print_lines(prediction_lines([found], card))
    log(f"skipped {EVIL}")
    with bar(EVIL, 1, "videos") as advance:
        advance(note=EVIL)
    out, err = capfd.readouterr()
    assert out.count(ESCAPED) == 4  # twice in the table, in the timeline's title and in its row
    assert err.count(ESCAPED) == 3
    assert not HIDDEN & set(out + err)


def test_an_error_about_a_name_is_one_line_without_its_control_characters(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run("catalog", tmp_path / EVIL.replace("/", "")) == 2
    said = capfd.readouterr().err
    assert not HIDDEN & set(said)
    assert said.count("\n") == 1
    (tmp_path / "t.csv").write_text(f'path,label\n"{EVIL}",a\n', encoding="utf-8")
    assert run("catalog", "check", tmp_path / "t.csv", "--quiet") == 1
    out = capfd.readouterr().out
    assert f"{ESCAPED}: " in out
    assert not HIDDEN & set(out)


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_a_bar_on_a_terminal_obeys_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    import os
    import pty
    import select

    above, below = pty.openpty()
    with os.fdopen(below, "w", encoding="utf-8") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", "200")
        with bar(EVIL, 2, "videos") as advance:
            log(f"skipped {EVIL}")
            advance(note="[bold]:smile:")
    shown = b""
    while select.select([above], [], [], 0)[0]:
        try:
            shown += os.read(above, 65536)
        except OSError:  # the other end is closed
            break
    os.close(above)
    text = shown.decode()
    assert ESCAPED in text
    assert "[bold]:smile:" in text
    assert "\x07" not in text
    assert "\u202e" not in text


def test_no_cell_of_a_table_for_people_is_a_formula(tmp_path: Path) -> None:
    found = [
        Prediction(video=word, classes=(ClassProbability(label=word, probability=0.5),))
        for word in FORMULAS
    ]
    write_rows(tmp_path / "p.csv", found)
    table = VectorTable(
        video_ids=FORMULAS, labels=FORMULAS, splits=("-1",) * len(FORMULAS),
        vectors=np.zeros((len(FORMULAS), 1, 2), np.float32),
        starts=(-1.5,) * len(FORMULAS), ends=(2.0,) * len(FORMULAS),
        windows=(None,) * len(FORMULAS),
    )  # fmt: skip
    write_vectors(table, tmp_path / "r")
    videos = tuple(Video(id=word, path=Path(f"/{word}.mp4"), group=word) for word in FORMULAS)
    write_catalog(Catalog(name="c", videos=videos), tmp_path / "c.csv")
    for path in (tmp_path / "p.csv", tmp_path / "r" / "videos.csv", tmp_path / "c.csv"):
        with path.open(newline="", encoding="utf-8") as file:
            cells = [cell for line in csv.reader(file) for cell in line]
        assert not [cell for cell in cells if cell[:1] in "=@\t\r" and cell], path
        assert {cell for cell in cells if cell[:1] in ("+", "-")} <= {"-1", "-1.5"}, path


def test_what_keeps_formulas_out_is_taken_away_again(tmp_path: Path) -> None:
    words = (*FORMULAS, "-1", "+2.5e3", "-")
    videos = tuple(Video(id=word, path=Path(f"/{n}.mp4")) for n, word in enumerate(words))
    write_catalog(Catalog(name="c", videos=videos), tmp_path / "c.csv")
    assert tuple(video.id for video in read_catalog_table(tmp_path / "c.csv")) == words
    vectors = np.zeros((len(words), 1, 2), np.float32)
    none = (None,) * len(words)
    table = VectorTable(video_ids=words, labels=none, splits=none, vectors=vectors)
    write_vectors(table, tmp_path / "r")
    assert read_vectors(tmp_path / "r").video_ids == words
    assert "\n-1," in (tmp_path / "r" / "videos.csv").read_text()


def test_the_report_shows_what_a_name_hides() -> None:
    point = MapPoint(video_id=EVIL, label=EVIL, split="train", x=0, y=0)
    page = render_report(
        ReportContent(title=EVIL, subtitle="", counts=Counts(videos=1), map_points=[point])
    )
    assert not HIDDEN & set(page)
    assert r"\u202egpj" in page
    assert r"\\u202egpj" in page  # the same in the data that the page's script reads
