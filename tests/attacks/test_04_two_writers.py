"""One writer at a time: the second one is told who the first is, and a kill leaves no lock."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.attacks import lock_holder
from tests.attacks.conftest import TINY, Clipset, one_line, tree_digest, write_videos
from tests.conftest import SMALL

from clipset.data.catalog import read_catalog
from clipset.errors import LockError, StoreError
from clipset.features.extract import extract
from clipset.features.ledger import Ledger, LedgerEntry
from clipset.features.store import open_store, store_digest
from clipset.features.verify import verify_store
from clipset.process.locks import exclusive


@contextmanager
def held_by_another(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock of a folder."""
    process = subprocess.Popen(
        [sys.executable, lock_holder.__file__, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "locked\n"
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


@pytest.mark.slow
def test_two_extractions_of_different_catalogs_into_one_store_never_mix(
    clipset: Clipset, tmp_path: Path
) -> None:
    """Both begin at once; whoever is second is refused or goes on after the first."""
    words = (
        "--frames",
        2,
        "--size",
        32,
        "--set=extract.engine=torch",
        "--set=extract.sampling.num_clips=4",
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "clipset.cli", "extract", folder, "--out", tmp_path / "store"]
            + [str(word) for word in words],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        for folder in (
            write_videos(tmp_path / "one", per_class=6),
            write_videos(tmp_path / "two", per_class=6, seed=90),
        )
    ]
    messages = [process.communicate()[1] for process in processes]
    codes = [process.returncode for process in processes]
    refused = [text for code, text in zip(codes, messages, strict=True) if code == 2]
    assert set(codes) <= {0, 2}
    assert len(refused) < 2
    assert all("is being written by process" in text for text in refused)
    assert verify_store(tmp_path / "store", videos=True) == []
    assert len(open_store(tmp_path / "store")) == 12
    fresh = tmp_path / "fresh"
    done = clipset("extract", tmp_path / "store" / "catalog.csv", "--out", fresh, *words)
    assert done.returncode == 0
    assert store_digest(fresh) == store_digest(tmp_path / "store")


@pytest.mark.parametrize("part", ["", "store", "model"])
def test_a_run_in_a_folder_that_is_being_written_names_the_writer_and_touches_nothing(
    part: str, clipset: Clipset, finished_run: Path, videos: Path
) -> None:
    before = tree_digest(finished_run)
    with held_by_another(finished_run / part) as process:
        done = clipset("run", videos, "--out", finished_run, *TINY, "--set=pretrain.epochs=3")
        assert f"is being written by process {process.pid} on " in one_line(done)
    lock = str(Path(part) / ".lock")
    assert {
        name: content for name, content in tree_digest(finished_run).items() if name != lock
    } == (before)


@pytest.mark.parametrize("verb", ["repair", "pretrain", "merge", "import"])
def test_every_verb_that_writes_waits_for_its_turn(
    verb: str, clipset: Clipset, session_run: Path, tmp_path: Path
) -> None:
    store = Path(shutil.copytree(session_run / "store", tmp_path / "store"))
    out = store if verb == "repair" else tmp_path / "out"
    words = {
        "repair": (store,),
        "pretrain": (store, "--out", out, "--epochs", 2, "--set=pretrain.clips_per_set=2"),
        "merge": (store, "--out", out),
        "import": (tmp_path / "features", "--out", out),
    }[verb]
    (tmp_path / "features").mkdir()
    import numpy as np

    np.save(tmp_path / "features" / "a.npy", np.ones((3, 4), np.float32))
    out.mkdir(exist_ok=True)
    with held_by_another(out):
        assert "is being written by process" in one_line(clipset(verb, *words))


def test_a_killed_writer_leaves_no_lock(tmp_path: Path) -> None:
    with held_by_another(tmp_path) as process:
        with pytest.raises(LockError, match=f"process {process.pid}"), exclusive(tmp_path):
            pass
        process.kill()
        process.wait()
        with exclusive(tmp_path):
            assert (tmp_path / ".lock").is_file()
    assert not (tmp_path / ".lock").exists()


def test_a_link_in_place_of_the_lock_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("precious")
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / ".lock").symlink_to(target)
    with pytest.raises(LockError, match="cannot write to"), exclusive(tmp_path / "store"):
        pass
    assert target.read_text() == "precious"


@pytest.mark.skipif(not Path("/dev/shm").is_dir() or os.name != "posix", reason="no /dev/shm")
def test_many_writers_in_turn_never_overlap(tmp_path: Path) -> None:
    """Each process adds 1 to a number a few times under the lock; no addition is lost."""
    program = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from clipset.errors import LockError\n"
        "from clipset.process.locks import exclusive\n"
        "folder = Path(sys.argv[1])\n"
        "for _ in range(20):\n"
        "    while True:\n"
        "        try:\n"
        "            with exclusive(folder):\n"
        "                number = int((folder / 'number').read_text())\n"
        "                time.sleep(0.0005)\n"
        "                (folder / 'number').write_text(str(number + 1))\n"
        "            break\n"
        "        except LockError:\n"
        "            time.sleep(0.001)\n"
    )
    (tmp_path / "number").write_text("0")
    command = [sys.executable, "-c", program, str(tmp_path)]
    processes = [subprocess.Popen(command) for _ in range(4)]
    assert [process.wait() for process in processes] == [0] * 4
    assert (tmp_path / "number").read_text() == "80"


def test_an_ordinal_is_never_given_twice_and_a_deleted_row_is_noticed(tmp_path: Path) -> None:
    write_videos(tmp_path / "videos", per_class=2)
    catalog = read_catalog(tmp_path / "videos")
    extract(catalog, tmp_path / "store", SMALL)
    with sqlite3.connect(tmp_path / "store" / "ledger.sqlite") as connection:
        connection.execute("DELETE FROM videos WHERE ordinal = 1")
    connection.close()
    with pytest.raises(StoreError, match="1 video was deleted from the ledger"):
        open_store(tmp_path / "store")
    assert ("ledger.sqlite", "1 video was deleted from it") in verify_store(tmp_path / "store")
    assert len(extract(catalog, tmp_path / "store", SMALL)) == 4
    entries = open_store(tmp_path / "store").all_entries
    assert [entry.ordinal for entry in entries] == [0, 2, 3, 4]
    assert verify_store(tmp_path / "store") == []


def test_a_ledger_does_not_overwrite_a_video_by_another(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite", create=True)
    ledger.append(["a", "b"])
    with pytest.raises(StoreError, match="lost videos"):
        ledger.write([LedgerEntry(ordinal=0, id="b", status="failed")])
    assert [(entry.id, entry.status) for entry in ledger.entries()] == [
        ("a", "pending"),
        ("b", "pending"),
    ]
    ledger.close()
