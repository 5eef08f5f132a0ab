"""Splits, labels, leaks: one spelling for one thing, and nothing is learned from and scored by."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conftest import write_video
from tests.miniatures import TINY, run, write_backbone, write_ucf101

from clipset.data.catalog import Catalog, Video, read_catalog, read_catalog_table
from clipset.data.leaks import check_leaks, find_leaks
from clipset.data.splits import assign_splits
from clipset.data.tasks import DataConfig, read_tasks
from clipset.errors import CatalogError

Table = Callable[..., Path]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Writes a table with a path of its own in every row."""

    def write(header: str, *rows: str) -> Path:
        lines = [f"path,{header}", *(f"{number}.mp4,{row}" for number, row in enumerate(rows))]
        (tmp_path / "t.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
        return tmp_path / "t.csv"

    return write


def test_a_split_has_one_name_however_it_is_spelled(table: Table) -> None:
    catalog = read_catalog_table(
        table("split", "Train", " TRAINING", "Validation ", "test", "Testing")
    )
    assert [video.split for video in catalog] == ["train", "train", "val", "test", "test"]
    assert read_catalog_table(table("split", "Foo")).splits == ("Foo",)


def test_labels_that_differ_by_spaces_or_unicode_form_are_joined_and_named(
    table: Table, capfd: pytest.CaptureFixture[str]
) -> None:
    path = table("label", "caf\u00e9", "cafe\u0301", " caf\u00e9", "tea")
    assert read_catalog_table(path).classes == ("café", "tea")
    said = capfd.readouterr().err
    assert "merged the spellings of 1 labels that differ only by spaces or Unicode form" in said
    assert "cafe\\u0301" in said


def test_labels_that_differ_by_case_are_named_and_stay(
    table: Table, capfd: pytest.CaptureFixture[str]
) -> None:
    catalog = read_catalog_table(table("label", "Cat", "cat", "dog"))
    check_leaks([catalog])
    assert catalog.classes == ("Cat", "cat", "dog")
    assert "the labels 'Cat' and 'cat' differ only by case" in capfd.readouterr().err


def test_a_missing_value_is_no_class(table: Table, capfd: pytest.CaptureFixture[str]) -> None:
    path = table(
        "label,group,target", "nan,None,nan", "None,,NaN", "  ,NA,1", "N/A,<NA>,2", "none,g,3"
    )
    catalog = read_catalog_table(path)
    assert catalog.classes == ("none",)
    assert [video.target for video in catalog] == [None, None, 1.0, 2.0, 3.0]
    assert [video.group for video in catalog] == [None, None, None, None, "g"]
    assert "4 videos have no label" in capfd.readouterr().err


def test_a_folder_called_none_is_no_class(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("None/a.mp4", "cat/b.mp4"):
        write_video(tmp_path / name)
    assert read_catalog(tmp_path).classes == ("cat",)
    message = "1 video has no label ('None' means missing; give it another name if it is a class)"
    assert message in capfd.readouterr().err


def test_a_number_that_pandas_made_a_float_is_the_same_class(tmp_path: Path) -> None:
    rows = [{"path": "a", "label": 3}, {"path": "b", "label": 3.0}, {"path": "c", "label": 2.5}]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert read_catalog_table(tmp_path / "t.jsonl").classes == ("2.5", "3")


@pytest.fixture
def leaky(tmp_path: Path) -> Path:
    """A catalog whose test split has a link to a video of train, a copy of one, and its group."""
    for number in range(8):
        write_video(tmp_path / f"{number}.mp4", seed=number, seconds=0.5, colour=number % 2)
    (tmp_path / "link.mp4").symlink_to("0.mp4")
    shutil.copy(tmp_path / "1.mp4", tmp_path / "copy.mp4")
    shutil.copy(tmp_path / "2.mp4", tmp_path / "twin.mp4")
    names = [*range(8), "link", "copy", "twin"]
    splits = ["train"] * 4 + ["test"] * 4 + ["test", "test", "train"]
    rows = [
        f"{name}.mp4,{('a', 'b')[place % 2]},{split},{'same' if name in (3, 7) else name}"
        for place, (name, split) in enumerate(zip(names, splits, strict=True))
    ]
    path = tmp_path / "leaky.csv"
    path.write_text("\n".join(["path,label,split,group", *rows]) + "\n")
    return path


def test_a_leak_is_named_with_its_count_before_anything_is_written(
    leaky: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run("run", leaky, "--out", tmp_path / "run", *TINY) == 2
    said = capfd.readouterr().err
    assert "2 videos of test are the same files as some of train ('link.mp4' is '0.mp4')" in said
    assert "1 group is in train and test (such as 'same')" in said
    assert "pass --allow-leaks" in said
    assert "1 video is a copy of another of the same split ('twin.mp4' of" not in said
    assert "1 video is a copy of another of the same split (such as 'twin.mp4' of '2.mp4')" in said
    assert not (tmp_path / "run").exists()


def test_verbs_refuse_leaks_unless_allowed_and_the_report_says_so(
    leaky: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out, backbone = tmp_path / "run", write_backbone(tmp_path)
    rows = '--set=evaluate.probes=["knn", "scale_knn"]'
    quick = (*TINY, f"--set=extract.backbone={backbone}", rows)
    words = ("run", leaky, "--out", out, *quick)
    assert run(*words, "--allow-leaks") == 0
    assert "allowed: 1 group is in train and test (such as 'same')" in capfd.readouterr().err
    assert len(json.loads((out / "run.json").read_text())["allowed_leaks"]) == 2
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "splits share videos or groups" in page
    assert "allowed leak" in page
    store = out / "store"
    pretrain = (
        "pretrain",
        store,
        "--out",
        tmp_path / "model",
        "--set=pretrain.clips_per_set=2",
        "--epochs",
        1,
    )
    for refused in (pretrain, ("evaluate", store), ("evaluate", store, "--low-shot-curve")):
        assert run(*refused) == 2
        assert "2 videos of test are the same files" in capfd.readouterr().err
    assert run("evaluate", store, "--probes", "knn", "--allow-leaks") == 0
    capfd.readouterr()
    assert run("catalog", leaky, "--out", tmp_path / "c.csv") == 0
    assert "leak: 1 group is in train and test" in capfd.readouterr().out
    assert run("catalog", "check", leaky) == 1
    assert "leak: 1 group is in train and test" in capfd.readouterr().out
    (tmp_path / "other.csv").write_text("path,label,split\n0.mp4,a,train\nelse.mp4,b,test\n")
    assert run("evaluate", store, "--catalog", tmp_path / "other.csv") == 2
    said = capfd.readouterr().err
    assert "1 id of the catalog is not in the store (such as 'else.mp4')" in said


def test_files_that_only_look_alike_are_no_leak(tmp_path: Path) -> None:
    start, middle = bytes(300_000), bytes(40_001)
    (tmp_path / "a.mp4").write_bytes(start + middle + b"1" + middle + start)
    (tmp_path / "b.mp4").write_bytes(start + middle + b"2" + middle + start)
    videos = (
        Video(id="a", path=tmp_path / "a.mp4", split="train"),
        Video(id="b", path=tmp_path / "b.mp4", split="test"),
    )
    assert find_leaks(Catalog(name="c", videos=videos)) == []


def test_val_is_a_split_like_the_others(tmp_path: Path) -> None:
    videos = [
        Video(id=split, path=tmp_path / "a.mp4", split=split, group="g")
        for split in ("train", "val", "test")
    ]
    with pytest.raises(
        CatalogError, match=r"val is the same file as one of train.*in val and test"
    ):
        check_leaks([Catalog(name="c", videos=tuple(videos))])


def test_splits_that_clipset_makes_itself_do_not_leak(tmp_path: Path) -> None:
    for number in range(12):
        write_video(tmp_path / "ab"[number % 2] / f"{number}.mp4", seed=number // 4, seconds=0.3)
    for seed in range(5):
        catalog = assign_splits(read_catalog(tmp_path), test_fraction=0.4, seed=seed)
        assert find_leaks(catalog) == []


def test_official_splits_pass_as_they_were_published(tmp_path: Path) -> None:
    config = DataConfig(format="ucf101", task="all")
    parts = read_tasks(write_ucf101(tmp_path), config)
    assert len(parts) == 3
    assert check_leaks([part.catalog for part in parts]) == []
