"""A run takes a finished store and a model that were moved or linked into its folder."""

import json
import shutil
from pathlib import Path

import pytest
from tests.miniatures import TINY, run, write_backbone

from clipset.data.catalog import read_catalog
from clipset.features.store import store_digest


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"--set=extract.backbone={write_backbone(tmp_path_factory.mktemp('backbone'))}"


@pytest.fixture(scope="module")
def first(small_videos: Path, backbone: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "first"
    assert run("run", small_videos, "--out", out, *TINY, backbone, "--quiet") == 0
    return out


def link(out: Path, first: Path, *names: str) -> Path:
    out.mkdir()
    for name in names:
        (out / name).symlink_to(first / name)
    return out


def steps(out: Path) -> dict[str, bool]:
    """Which steps there were, and whether they were skipped."""
    return {
        step["name"]: step["skipped"]
        for step in json.loads((out / "run.json").read_text())["steps"]
    }


def test_a_store_that_lies_in_the_folder_is_not_made_again(
    small_videos: Path, first: Path, backbone: str, tmp_path: Path
) -> None:
    out = tmp_path / "second"
    shutil.copytree(first / "store", out / "store")
    before = store_digest(out / "store")
    assert run("run", small_videos, "--out", out, *TINY, backbone, "--quiet") == 0
    assert steps(out)["extract"]
    assert store_digest(out / "store") == before
    assert (
        json.loads((out / "results.json").read_text())[0]["value"]
        == json.loads((first / "results.json").read_text())[0]["value"]
    )


def test_a_linked_store_and_model_are_only_read(
    small_videos: Path, first: Path, backbone: str, tmp_path: Path
) -> None:
    out = link(tmp_path / "few", first, "store", "model")
    files = [path for name in ("store", "model") for path in (first / name).rglob("*")]
    before = {path: path.stat().st_mtime_ns for path in files if path.is_file()}
    few = ("--set=evaluate.label_fraction=0.5", '--set=evaluate.probes=["linear", "finetune"]')
    assert run("run", small_videos, "--out", out, *TINY, backbone, *few, "--quiet") == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert steps(out)["extract"]
    assert steps(out)["pretrain"]
    records = json.loads((out / "results.json").read_text())
    assert [record["label_fraction"] for record in records] == [0.5, 0.5]


def test_a_linked_store_keeps_its_own_labels_and_splits(
    small_videos: Path, first: Path, backbone: str, tmp_path: Path
) -> None:
    out = link(tmp_path / "others", first, "store")
    table = tmp_path / "labels.csv"
    lines = [
        f"{v.id},{v.path},{v.label},{'val' if n % 4 == 0 else 'train'}"
        for n, v in enumerate(read_catalog(small_videos))
    ]
    table.write_text("\n".join(["id,path,label,split", *lines]) + "\n")
    before = (first / "store" / "catalog.csv").read_bytes()
    rows = '--set=evaluate.probes=["knn"]'
    words = (
        "run",
        table,
        "--out",
        out,
        *TINY,
        backbone,
        rows,
        "--set=data.test_split=val",
        "--quiet",
    )
    assert run(*words) == 0
    assert (first / "store" / "catalog.csv").read_bytes() == before
    [record] = json.loads((out / "results.json").read_text())
    assert (record["split"], record["n"]) == ("val", 6)


def test_what_was_made_in_another_way_is_refused(
    small_videos: Path,
    first: Path,
    backbone: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    out = link(tmp_path / "one", first, "store")
    words = ("run", small_videos, "--out", out, *TINY, backbone, "--quiet")
    assert run(*words, "--set=extract.sampling.num_clips=5") == 2
    assert "was made with sampling num_clips 4, not 5" in capfd.readouterr().err
    out = link(tmp_path / "two", first, "store", "model")
    words = ("run", small_videos, "--out", out, *TINY, backbone, "--quiet")
    assert run(*words, "--set=pretrain.epochs=3") == 2
    assert "with other settings" in capfd.readouterr().err


def test_anything_else_in_the_folder_is_still_refused(
    small_videos: Path, tmp_path: Path, backbone: str, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    assert run("run", small_videos, "--out", tmp_path, *TINY, backbone, "--quiet") == 2
    assert "not a clipset run" in capfd.readouterr().err
    (tmp_path / "store").mkdir()
    (tmp_path / "run.json").write_text("{")
    assert run("run", small_videos, "--out", tmp_path, *TINY, backbone, "--quiet") == 2
    line = capfd.readouterr().err
    assert "run.json is not valid JSON" in line
    assert "to keep its work, move store into a new folder and run there" in line
