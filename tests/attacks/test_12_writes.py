"""A disk that is full, read-only or not there costs one line, and no finished work."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.attacks.conftest import COMMAND, TINY, Clipset, tree_digest
from tests.miniatures import run

from clipset.errors import OutputError
from clipset.files import check_output, write_atomic, write_together
from clipset.training import trainer

PRETRAIN = tuple(word for word in TINY if word.startswith("--set=pretrain."))
PROBE = tuple(word for word in TINY if word.startswith("--set=evaluate."))


class Disk:
    """A disk of its own, which can be filled and made read-only."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fill(self) -> None:
        with (self.folder / "filler").open("wb", buffering=0) as file, suppress(OSError):
            while file.write(bytes(4096)):
                pass

    def make_room(self) -> None:
        (self.folder / "filler").unlink()

    def remount(self, option: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{option}", self.folder], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """A small disk; needs the right to mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder]
    if shutil.which("mount") is None or subprocess.run(words, capture_output=True).returncode:
        pytest.skip("only the superuser may mount a small disk")
    yield Disk(folder)
    subprocess.run(["umount", "-l", folder], check=True)


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[str, str]]:
    """What a refused command prints, and the one line with which it ends."""

    def call(*words: object) -> tuple[str, str]:
        capsys.readouterr()
        assert run(*words, "--quiet") == 2, words
        shown = capsys.readouterr()
        lines = [line for line in shown.err.splitlines() if line]
        assert len(lines) == 1, shown.err
        assert lines[0].startswith("clipset: cannot write "), lines[0]
        return shown.out, lines[0]

    return call


def commands(videos: Path, done: Path, out: Path) -> dict[str, tuple[object, ...]]:
    """Every command that writes a result, with its result in `out`."""
    store, model, video = done / "store", done / "model", videos / "red" / "0.mp4"
    return {
        "catalog": ("catalog", videos, "--out", out / "catalog.csv"),
        "pretrain": ("pretrain", store, "--out", out / "model", *PRETRAIN),
        "evaluate": ("evaluate", store, "--model", model, "--out", out / "results.json", *PROBE),
        "embed store": ("embed", store, "--model", model, "--out", out / "vectors"),
        "embed": ("embed", video, "--run", done, "--workers", 0, "--out", out / "vectors"),
        "predict": ("predict", video, "--run", done, "--workers", 0, "--csv", out / "rows.csv"),
    }


def test_a_file_where_a_folder_is_needed_is_refused_before_any_work(
    videos: Path, session_run: Path, tmp_path: Path, refused: Callable[..., tuple[str, str]]
) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("mine")
    for words in commands(videos, session_run, blocked).values():
        out, line = refused(*words)
        assert f"{blocked} is a file, not a folder" in line
        assert out == ""  # nothing was worked on
    (tmp_path / "folder").mkdir()
    for words in (
        ("catalog", videos, "--out", tmp_path / "folder"),
        ("evaluate", session_run / "store", "--out", tmp_path / "folder", *PROBE),
        ("predict", videos, "--run", session_run, "--csv", tmp_path / "folder"),
    ):
        assert "it is a folder, not a file" in refused(*words)[1]
    assert blocked.read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["blocked", "folder"]


def test_a_read_only_disk_is_refused_before_any_work(
    videos: Path, session_run: Path, disk: Disk, refused: Callable[..., tuple[str, str]]
) -> None:
    disk.remount("ro")
    for words in commands(videos, session_run, disk.folder / "new").values():
        out, line = refused(*words)
        assert f"{disk.folder} is read-only" in line
        assert out == ""


def test_on_a_full_disk_what_is_known_is_said_and_what_was_there_stays(
    videos: Path, finished_run: Path, disk: Disk, refused: Callable[..., tuple[str, str]]
) -> None:
    old = disk.folder / "vectors"
    shutil.copytree(finished_run / "vectors", old)
    for name in ("results.json", "comparisons.json", "predictions.safetensors"):
        shutil.copy(finished_run / name, disk.folder)
    disk.fill()
    before = tree_digest(disk.folder)
    said = {}
    for name, words in commands(videos, finished_run, disk.folder).items():
        out, line = refused(*words)
        assert "No space left on device" in line, name
        assert "free disk space and run the same command again" in line, name
        said[name] = out
    assert "SCALE linear" in said["evaluate"]  # finished probes are not lost
    assert "%" in said["predict"]
    after = tree_digest(disk.folder)
    assert {name: after[name] for name in before} == before
    assert not [name for name in after if name.endswith(".part")]


def test_a_report_that_cannot_be_written_leaves_the_old_one(
    session_run: Path, disk: Disk, refused: Callable[..., tuple[str, str]]
) -> None:
    there = Path(shutil.copytree(session_run, disk.folder / "run", symlinks=True))
    disk.fill()
    before = tree_digest(there)
    assert "No space left on device" in refused("report", there)[1]
    disk.make_room()
    disk.remount("ro")
    assert "read-only" in refused("report", there)[1]
    assert tree_digest(there) == before


def test_a_read_only_run_predicts_embeds_and_is_verified(
    videos: Path, session_run: Path, disk: Disk, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = Path(shutil.copytree(session_run, disk.folder / "run", symlinks=True))
    disk.remount("ro")
    video = videos / "red" / "0.mp4"
    assert run("predict", video, "--run", there, "--workers", 0) == 0
    shown = capsys.readouterr()
    assert "the classifier is fitted again next time" in shown.err
    assert "%" in shown.out
    out = tmp_path / "vectors"
    assert run("embed", video, "--run", there, "--workers", 0, "--out", out) == 0
    assert run("verify", there / "store") == 0


def test_training_goes_on_when_a_checkpoint_cannot_be_written(
    session_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(trainer, "CHECKPOINT_SECONDS", 0.0)
    model = tmp_path / "model"
    model.mkdir()
    (model / "checkpoints").write_text("a file in its place")
    assert run("pretrain", session_run / "store", "--out", model, *PRETRAIN) == 0
    said = capsys.readouterr().err
    assert said.count("training continues without a new checkpoint") == 1
    assert weights(model) == weights(session_run / "model")


def test_a_model_that_cannot_be_saved_is_not_trained_twice(
    session_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refused: Callable[..., tuple[str, str]],
) -> None:
    model, words = tmp_path / "model", ("pretrain", session_run / "store")
    (model / "model.safetensors" / "something").mkdir(parents=True)
    _, line = refused(*words, "--out", model, *PRETRAIN)
    assert "epoch 2 of 2 is saved" in line
    shutil.rmtree(model / "model.safetensors")
    with monkeypatch.context() as patch:
        patch.delattr(trainer.PretrainingRun, "_epoch")  # no epoch may be trained again
        assert run(*words, "--out", model, *PRETRAIN, "--quiet") == 0
    assert weights(model) == weights(session_run / "model")
    assert not (model / "checkpoints").exists()


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def test_temporary_files_have_unknown_names_and_follow_no_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim, target = tmp_path / "victim", tmp_path / "result.json"
    victim.write_text("precious")
    (tmp_path / f".result.json.{os.getpid()}.part").symlink_to(victim)  # its name once
    names: list[str] = []
    replace = Path.replace
    monkeypatch.setattr(Path, "replace", lambda a, b: (names.append(a.name), replace(a, b))[1])
    target.symlink_to(victim)
    for content in (b"1", b"2"):
        write_atomic(target, content)
    assert (victim.read_text(), target.read_bytes()) == ("precious", b"2")
    assert not target.is_symlink()
    assert len(set(names)) == 2


def test_a_result_keeps_the_mode_that_its_file_had(tmp_path: Path) -> None:
    private, public = tmp_path / "private", tmp_path / "public"
    private.touch(mode=0o600)
    before = os.umask(0o027)
    try:
        for path in (private, public):
            write_atomic(path, b"new")
    finally:
        os.umask(before)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (private, public)]
    assert modes == [0o600, 0o640]


def test_what_a_kill_left_is_swept_and_a_device_is_never_replaced(tmp_path: Path) -> None:
    old, new = tmp_path / ".a.json.0123.part", tmp_path / ".a.json.4567.part"
    for path in (old, new):
        path.touch()
    os.utime(old, (0, 0))
    write_atomic(tmp_path / "a.json", b"{}")
    assert [old.exists(), new.exists()] == [False, True]  # somebody may be writing the new one
    device = tmp_path / "device"
    device.symlink_to("/dev/full")
    with pytest.raises(OutputError, match="No space left on device"):
        write_atomic(device, b"x")
    assert device.is_symlink()


def test_files_that_belong_together_are_all_new_or_all_old(tmp_path: Path) -> None:
    first, last = tmp_path / "weights", tmp_path / "card"
    write_together({first: b"old", last: b"old"})
    (tmp_path / "folder").mkdir()
    with pytest.raises(OutputError, match="Is a directory"):
        write_together({first: b"new", tmp_path / "folder": b"new", last: b"new"})
    assert (first.read_bytes(), last.read_bytes()) == (b"old", b"old")
    check_output(tmp_path / "not" / "there" / "yet.csv", "file")
    check_output(tmp_path / "not" / "there", "folder")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["card", "folder", "weights"]


def test_a_full_standard_output_is_one_line(videos: Path, clipset: Clipset, tmp_path: Path) -> None:
    into = ("sh", "-c", '"$0" "$@" >/dev/full', COMMAND)
    for more in ((), ("--json",)):
        done = clipset("catalog", videos, "--out", tmp_path / "catalog.csv", *more, command=into)
        assert done.returncode == 1
        [line] = done.stderr.splitlines()
        assert "cannot write to standard output: no space left on device" in line
    assert (tmp_path / "catalog.csv").is_file()
