"""Text that is not UTF-8: names of files, tables, terminals; streams that are closed or full."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from tests.attacks.conftest import COMMAND, TINY, Clipset, one_line, write_videos
from tests.conftest import write_video
from tests.miniatures import run, write_backbone

from clipset.data.catalog import read_catalog, read_catalog_table
from clipset.errors import ConfigError
from clipset.recipe import read_recipe

C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
TERMINALS = ({"PYTHONIOENCODING": "ascii"}, {"PYTHONIOENCODING": "cp1252"}, C_LOCALE)


def bytes_path(folder: Path, name: bytes) -> Path:
    return Path(os.fsdecode(os.fsencode(folder) + b"/" + name))


@pytest.fixture(scope="module")
def odd_videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes with names in Latin-1, in UTF-8, and with what looks like an escaped byte."""
    folder = tmp_path_factory.mktemp("odd") / "videos"
    names = [b"caf\xe9/n\xff1.mp4", b"caf\xe9/n\\xff1.mp4", b"caf\xe9/3.mp4", b"caf\xe9/4.mp4"]
    names += ["ж/→.mp4".encode(), "ж/2.mp4".encode(), "ж/3.mp4".encode(), "ж/4.mp4".encode()]
    plain = write_videos(tmp_path_factory.mktemp("plain"))
    for source, name in zip(sorted(plain.rglob("*.mp4")), names, strict=True):
        path = bytes_path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        source.rename(path)
    return folder


def test_names_of_any_bytes_are_unique_text_and_still_open(odd_videos: Path) -> None:
    catalog = read_catalog(odd_videos)
    ids = {video.id for video in catalog}
    assert {"caf\\xe9/n\\xff1.mp4", "caf\\xe9/n\\xff1.mp4#2", "ж/→.mp4"} <= ids
    assert catalog.classes == ("caf\\xe9", "ж")
    assert all(video.path.is_file() for video in catalog)
    json.dumps([video.id for video in catalog]).encode("utf-8")


def test_every_verb_takes_names_of_any_bytes(
    odd_videos: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = bytes_path(tmp_path, b"out\xff")
    small = ("--frames", 2, "--size", 16, "--workers", 0, "--set=extract.sampling.num_clips=4")
    backbone = write_backbone(tmp_path)
    assert run("catalog", odd_videos, "--out", out / "c.csv") == 0
    extract = ("extract", out / "c.csv", "--out", out / "store", "--backbone", backbone, *small)
    assert run(*extract, "--json") == 0
    assert json.loads(capfd.readouterr().out.splitlines()[-1])["videos"] == 8
    shape = (
        "--set=pretrain.model.width=32",
        "--set=pretrain.model.projection_hidden=[16, 16]",
        "--set=pretrain.clips_per_set=2",
    )
    pretrain = (
        "pretrain",
        out / "store",
        "--out",
        out / "model",
        *shape,
    )
    assert run(*pretrain, "--epochs", 1) == 0
    assert run(*pretrain, "--epochs", 1) == 0
    model = ("--model", out / "model")
    assert run("embed", out / "store", *model, "--out", out / "vectors") == 0
    assert run("evaluate", out / "store", *model, "--probes", "knn", "--out", out / "r.json") == 0
    assert run("merge", out / "store", "--out", out / "merged") == 0
    assert run("verify", out / "merged") == 0
    new = (odd_videos, "--backbone", backbone, "--workers", 0)
    assert run("embed", *new, "--out", out / "new", "--json") == 0
    result = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert result["vectors"].endswith("out\\xff/new")
    assert len(result["videos"]) == 8


def test_ids_are_the_same_in_every_locale(
    odd_videos: Path, tmp_path: Path, clipset: Clipset
) -> None:
    def listed(env: dict[str, str]) -> bytes:
        done = clipset("catalog", odd_videos, "--out", "c.csv", env=env)
        assert done.returncode == 0, done.stderr
        again = clipset("catalog", "c.csv", "--out", "again.csv", env=env)
        assert again.returncode == 0, again.stderr
        content = (tmp_path / "c.csv").read_bytes()
        assert (tmp_path / "again.csv").read_bytes() == content
        return content

    assert listed(C_LOCALE) == listed({"LC_ALL": "C.UTF-8"})


def test_a_table_in_latin_1_is_read_and_that_is_said(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "été.mp4").touch()
    bytes_path(tmp_path, b"h\xeatre.mp4").touch()
    rows = "path;catégorie\nété.mp4;café\nhêtre.mp4;œuf\n"
    (tmp_path / "t.csv").write_bytes(rows.encode("cp1252"))
    first, second = read_catalog_table(tmp_path / "t.csv", columns={"label": "catégorie"})
    assert (first.id, first.label) == ("été.mp4", "café")
    assert (second.id, second.label) == ("h\\xeatre.mp4", "œuf")
    assert first.path.is_file()
    assert second.path.is_file()
    said = capfd.readouterr().err
    assert "read 2 values that are not UTF-8 as Windows-1252, such as 'café'" in said
    line = '{"path": "été.mp4", "label": "café"}\n'
    (tmp_path / "t.jsonl").write_bytes(line.encode("cp1252"))
    [video] = read_catalog_table(tmp_path / "t.jsonl")
    assert (video.id, video.label, video.path.is_file()) == ("été.mp4", "café", True)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-8-sig"])
def test_a_table_with_a_byte_order_mark_is_read(encoding: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes("path,label\na.mp4,жираф\n".encode(encoding))
    [video] = read_catalog_table(tmp_path / "t.csv")
    assert video.label == "жираф"


@pytest.mark.parametrize("env", TERMINALS, ids=["ascii", "cp1252", "C"])
def test_results_use_characters_that_the_terminal_has(
    env: dict[str, str], odd_videos: Path, clipset: Clipset, tmp_path: Path
) -> None:
    out = tmp_path / "→.csv"
    done = clipset("catalog", odd_videos, "--out", out, env=env)
    assert done.returncode == 0, done.stderr
    assert re.search(r"6 train -> .*[\\/]", done.stdout)
    data = clipset("catalog", odd_videos, "--out", out, "--json", env=env)
    assert "ж" in json.loads(data.stdout)["classes"]
    wrong = clipset("catalog", tmp_path / "nö→where", env=env)
    assert "Traceback" not in one_line(wrong)


def test_a_table_is_drawn_with_characters_that_the_terminal_has(clipset: Clipset) -> None:
    table = clipset("backbones", env=C_LOCALE)
    assert "| efficientnet_lite0 |" in table.stdout


STREAMS = {
    ">&-": 0,
    "2>&-": 0,
    ">&- 2>&- <&-": 0,
    "2>/dev/full": 0,
    ">/dev/full": 1,
    ">/dev/full 2>/dev/full": 1,
    "--json >&-": 2,
    "| exec sleep 0": 0,
}


@pytest.mark.parametrize("streams", STREAMS)
def test_a_stream_that_takes_nothing_does_not_undo_the_work(
    streams: str, videos: Path, tmp_path: Path
) -> None:
    command = f'set -o pipefail; "{COMMAND}" catalog "{videos}" --out c.csv {streams}'
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True)
    if not streams.startswith("|"):  # whether a pipe breaks in time is chance
        assert done.returncode == STREAMS[streams], done.stderr
    assert (tmp_path / "c.csv").is_file() == ("--json" not in streams)
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert len(done.stderr.splitlines()) == (streams == ">/dev/full" or "--json" in streams)


@pytest.mark.slow
@pytest.mark.parametrize("streams", [">&- 2>&-", "2>&1 | head -c 1"])
def test_workers_outlive_a_terminal_that_is_gone(
    streams: str, videos: Path, tmp_path: Path, clipset: Clipset
) -> None:
    small = "--frames 2 --size 16 --workers 2 --set=extract.engine=torch "
    small += "--set=extract.sampling.num_clips=4"
    backbone = write_backbone(tmp_path)
    command = f'"{COMMAND}" extract "{videos}" --out s --backbone "{backbone}" {small} {streams}'
    subprocess.run(["bash", "-c", command], cwd=tmp_path, check=False, timeout=120)
    assert "8 videos, 0 failed, 0 pending: all as written" in clipset("verify", "s").stdout


@pytest.mark.slow
def test_a_run_is_whole_in_the_c_locale_and_found_done_in_another(
    odd_videos: Path, tmp_path: Path, clipset: Clipset
) -> None:
    first = clipset("run", odd_videos, "--out", "run", *TINY, env=C_LOCALE)
    assert first.returncode == 0, first.stderr
    again = clipset("run", odd_videos, "--out", "run", *TINY, "--json")
    assert again.returncode == 0, again.stderr
    steps = json.loads((tmp_path / "run" / "run.json").read_text())["steps"]
    assert [step["name"] for step in steps if step["skipped"]] == [
        "catalog", "extract", "pretrain", "embed", "evaluate", "report",
    ]  # fmt: skip
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "caf\\xe9" in page


def test_a_setting_that_is_not_utf8_is_refused_in_one_line(
    videos: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match="data: name contains bytes that are not UTF-8"):
        read_recipe(None, ["data.name=caf\udce9"])
    folder = bytes_path(tmp_path, b"caf\xe9")
    folder.mkdir()
    backbone = write_backbone(folder)
    assert run("extract", videos, "--out", tmp_path / "store", "--backbone", backbone) == 2
    assert "backbone contains bytes that are not UTF-8" in capfd.readouterr().err
    assert not (tmp_path / "store").exists()


def test_a_video_in_a_folder_of_any_bytes_is_predicted_by_its_text(tmp_path: Path) -> None:
    from clipset.inference.clips import list_new_videos

    folder = bytes_path(tmp_path, b"n\xff")
    write_video(folder / "a.mp4")
    [video] = list_new_videos([folder / "a.mp4"])
    [inner] = list_new_videos([folder])
    assert video.id == inner.id == f"{tmp_path}/n\\xff/a.mp4"
