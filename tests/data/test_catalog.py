"""Catalog files: what is written is read back, and what is wrong is said in one line."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clipset.data.catalog import (
    MAX_TARGET,
    MISSING_VALUES,
    Catalog,
    Video,
    read_catalog,
    read_catalog_table,
    split_name,
    write_catalog,
)
from clipset.errors import CatalogError
from clipset.text import normal_form

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
AWKWARD = st.sampled_from(
    [
        "a b",
        "it's",
        '"quoted"',
        "a,b;c\td",
        "two\nlines",
        "cr\rlf\r\n",
        "жираф",
        "🦒",
        " pad ",
        "\ufeff",
    ]
)
IDS = TEXT | AWKWARD | st.sampled_from(["=1+1", "'=1+1", "-2.5", "'-2.5", "@x", "+a", "\t", "''@"])
WORDS = IDS.map(normal_form).filter(lambda word: word not in MISSING_VALUES)
NAMES = IDS.map(lambda text: text.replace("/", "_")).filter(lambda text: text not in (".", ".."))
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
VIDEOS = st.fixed_dictionaries(  # the fields of a Video
    {
        "id": IDS,
        "path": NAMES.map(lambda name: Path("/videos") / name),
        "label": st.none() | WORDS,
        "split": st.none() | WORDS.map(split_name),
        "group": st.none() | WORDS,
        "target": st.none() | st.floats(-MAX_TARGET, MAX_TARGET),
        "end": st.none() | NUMBERS.filter(lambda number: number > 0),
    }
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(videos=st.lists(VIDEOS, min_size=1, max_size=5, unique_by=lambda video: video["id"]))
def test_a_catalog_is_read_back_as_it_was_written(
    videos: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "catalog.csv"
    catalog = Catalog(name="catalog", videos=tuple(Video(**fields) for fields in videos))
    write_catalog(catalog, path)
    assert read_catalog_table(path) == catalog
    assert read_catalog_table(path).fingerprint == catalog.fingerprint


@settings(max_examples=40, deadline=None, derandomize=True)
@given(cells=st.dictionaries(st.sampled_from(["camera", "=1+1", "день", "Video"]), IDS, min_size=1))
def test_other_columns_are_read_back_as_they_were_written(
    cells: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "columns.csv"
    video = Video(id="a", path=Path("/videos/a"), columns=tuple(cells.items()))
    catalog = Catalog(name="columns", videos=(video, Video(id="b", path=Path("/videos/b"))))
    write_catalog(catalog, path)
    assert read_catalog_table(path) == catalog
    assert catalog.fingerprint == catalog.only(replace(v, columns=()) for v in catalog).fingerprint


def test_other_columns_are_kept_for_searching(tmp_path: Path) -> None:
    """But no vectors, no long texts, and no names that would change how the table is read."""
    rows = [
        {"path": "a.mp4", "camera": 2, "day": "Mon", "a;b": "x", "text": "t" * 1001, "box": [1, 2]},
        {"path": "b.mp4", "camera": None, "day": "", "Label": "walk", "night": True},
    ]
    (tmp_path / "v.jsonl").write_text("\n".join(map(json.dumps, rows)))
    catalog = read_catalog(tmp_path / "v.jsonl")
    assert catalog.columns == ("camera", "day", "night")
    assert [video.columns for video in catalog] == [
        (("camera", "2"), ("day", "Mon")), (("night", "True"),),
    ]  # fmt: skip
    assert [video.label for video in catalog] == [None, "walk"]
    with pytest.raises(CatalogError, match="another column called 'label'"):
        Video(id="a", path=Path("a"), columns=(("label", "x"),))


def test_a_file_name_that_is_no_utf8_is_read_back(tmp_path: Path) -> None:
    video = Video(id="caf\\xe9.mp4", path=Path("/videos/caf\udce9.mp4"))
    write_catalog(Catalog(name="c", videos=(video,)), tmp_path / "c.csv")
    assert read_catalog_table(tmp_path / "c.csv").videos == (video,)


def test_relative_paths_start_at_the_folder_of_the_catalog(tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text("path\nsub/a.mp4\n/else/b.mp4\n")
    first, second = read_catalog_table(tmp_path / "c.csv")
    assert (first.id, first.path) == ("sub/a.mp4", tmp_path / "sub/a.mp4")
    assert (second.id, second.path) == ("/else/b.mp4", Path("/else/b.mp4"))


def test_a_relative_path_is_written_so_that_it_is_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    write_catalog(Catalog(name="c", videos=(Video(id="a", path=Path("a.mp4")),)), Path("out/c.csv"))
    assert read_catalog_table(Path("out/c.csv")).videos[0].path == tmp_path / "a.mp4"


@pytest.mark.parametrize("column", ["path", "file", "filename", "video", "Path", " path "])
def test_the_column_of_the_paths_may_have_its_usual_names(column: str, tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text(f"{column},Class,extra\na.mp4,cat,1\n")
    [video] = read_catalog_table(tmp_path / "c.csv")
    columns = (("extra", "1"),)
    assert video == Video(id="a.mp4", path=tmp_path / "a.mp4", label="cat", columns=columns)


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_tables_of_other_programs_are_read(delimiter: str, tmp_path: Path) -> None:
    rows = [["path", "label", "split"], ["a b.mp4", "cat", "train"], ["c.mp4", "", ""]]
    text = "\r\n".join(delimiter.join(row) for row in rows)
    (tmp_path / "c.csv").write_bytes(b"\xef\xbb\xbf" + text.encode())
    first, second = read_catalog_table(tmp_path / "c.csv")
    assert (first.label, first.split) == ("cat", "train")
    assert (second.label, second.split) == (None, None)


ROWS = [
    {"clip": "a.mp4", "what": "cat", "who": 7, "score": 1.5, "extra": None},
    {"clip": "b.mp4", "what": "dog", "who": 8, "score": 2, "extra": [1]},
]
COLUMNS = {"path": "clip", "label": "what", "group": "who", "target": "score"}


def check_rows(catalog: Catalog) -> None:
    assert [video.id for video in catalog] == ["a.mp4", "b.mp4"]
    assert [video.label for video in catalog] == ["cat", "dog"]
    assert [video.group for video in catalog] == ["7", "8"]
    assert [video.target for video in catalog] == [1.5, 2.0]


def test_json_lines_with_any_column_names_are_read(tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_text("\n".join(json.dumps(row) for row in ROWS) + "\n\n")
    check_rows(read_catalog_table(tmp_path / "c.jsonl", columns=COLUMNS))


def test_parquet_with_any_column_names_is_read(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [{key: value for key, value in row.items() if key != "extra"} for row in ROWS]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "c.parquet")
    check_rows(read_catalog_table(tmp_path / "c.parquet", columns=COLUMNS))


def test_parquet_without_pyarrow_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "c.parquet").write_bytes(b"PAR1")
    with pytest.raises(CatalogError, match=r"needs pyarrow; run `pip install 'clipset\[tables\]'`"):
        read_catalog_table(tmp_path / "c.parquet")


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("c.csv", "", "is empty; its first line must name the columns"),
        ("c.csv", "\n\n", "is empty"),
        (
            "c.csv",
            "name,label\na.mp4,cat\n",
            "needs a column 'path'; its columns: name, label",
        ),
        ("c.csv", "path,label\n", "has a header but lists no videos"),
        ("c.csv", "path,label\n,cat\n", "row 2 of .* has an empty path"),
        ("c.csv", "path,label\na.mp4\n", "row 2 of .* has 1 fields; the header has 2"),
        ("c.csv", "path\na.mp4\na.mp4\n", "lists 'a.mp4' more than once"),
        ("c.csv", "id,path\n1,a.mp4\n1,b.mp4\n", "lists '1' more than once"),
        ("c.csv", 'path\n"a.mp4\n', "is not a valid table"),
        ("c.csv", "path,end\na.mp4,soon\n", "the end of 'a.mp4' must be a number, got 'soon'"),
        ("c.csv", "path,end\na.mp4,-1\n", "the end of 'a.mp4' must be after 0 s, got -1.0"),
        ("c.csv", "path,target\na.mp4,inf\n", r"must be a number from -1e\+15 to 1e\+15, got inf"),
        ("c.csv", "path,target\na.mp4,-2e15\n", r"got -2000000000000000.0; use another unit"),
        ("c.csv", "path,label,label\na.mp4,x,y\n", "has several columns 'label'; remove all but"),
        (
            "c.jsonl",
            '{"path": "a", "label": "x"}\n\n{"path": "b", "label": ["x"]}\n',
            "'label' in line 3 of .* must be a single value, got a list",
        ),
        ("c.jsonl", '{"path": {"a": 1}}', "'path' in line 1 of .* must be .* got an object"),
        ("c.jsonl", '{"path": "a"}\n{"path"', "line 2 of .* is not valid JSON"),
        ("c.jsonl", "[1]", "line 1 of .* is not a JSON object"),
        ("c.jsonl", "", "needs a column 'path'; its columns: none"),
        ("c.parquet", "text", "is not a readable parquet file"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(
    name: str, content: str, expected: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(CatalogError, match=expected) as caught:
        read_catalog(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_a_column_that_is_not_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text("path,label\na.mp4,cat\n")
    with pytest.raises(CatalogError, match="no column 'clip'; its columns: path, label"):
        read_catalog_table(tmp_path / "c.csv", columns={"path": "clip"})
    with pytest.raises(CatalogError, match="unknown catalog column 'colour'; available: id, path"):
        read_catalog_table(tmp_path / "c.csv", columns={"colour": "label"})


def test_a_catalog_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match="not found; give a folder of videos or a catalog file"):
        read_catalog(tmp_path / "nothing")
    with pytest.raises(CatalogError, match=r"cannot read .*: no such file or directory"):
        read_catalog_table(tmp_path / "c.csv")
    (tmp_path / "a.docx").touch()
    with pytest.raises(CatalogError, match="neither a folder nor a catalog; a catalog ends in"):
        read_catalog(tmp_path / "a.docx")


def test_a_catalog_of_file_names_that_are_not_utf8_has_a_fingerprint(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for name in (b"caf\xe9.mp4", b"caf\xea.mp4"):
        Path(os.fsdecode(os.fsencode(tmp_path / "a") + b"/" + name)).touch()
    catalog = read_catalog(tmp_path)
    assert [video.id for video in catalog] == ["a/caf\\xe9.mp4", "a/caf\\xea.mp4"]
    assert all(video.path.exists() for video in catalog)
    write_catalog(catalog, tmp_path / "catalog.csv")
    assert read_catalog(tmp_path / "catalog.csv").fingerprint == catalog.fingerprint


@pytest.mark.parametrize("text", ["caf\udce9", "a\0b"])
@pytest.mark.parametrize("field", ["id", "label", "split", "group"])
def test_text_that_no_file_can_hold_is_refused_by_a_video(field: str, text: str) -> None:
    facts: dict[str, Any] = {"id": "a", field: text}
    with pytest.raises(CatalogError, match=f"the {field} .* has a NUL or bytes that are not UTF-8"):
        Video(path=Path("a.mp4"), **facts)


def test_the_fingerprint_follows_the_content_and_not_the_place() -> None:
    here = Catalog(name="a", videos=(Video(id="a", path=Path("/here/a.mp4"), label="x"),))
    there = Catalog(name="b", videos=(Video(id="a", path=Path("/there/a.mp4"), label="x"),))
    other = Catalog(name="a", videos=(Video(id="a", path=Path("/here/a.mp4"), label="x", end=9.0),))
    assert here.fingerprint == there.fingerprint != other.fingerprint


def test_an_empty_word_is_refused() -> None:
    for field in ("id", "label", "split", "group"):
        with pytest.raises(CatalogError, match=f"has an empty {field}"):
            Video(**{"id": "a", "path": Path("a.mp4"), field: ""})
