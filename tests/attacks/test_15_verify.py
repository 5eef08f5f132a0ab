"""What is wrong in a store is found, and what a run lacks is made again."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.attacks.conftest import TINY, scores, tree_digest
from tests.miniatures import run

from clipset.features.verify import verify_store


def edit_ledger(change: str) -> Callable[[Path], None]:
    def edit(store: Path) -> None:
        with sqlite3.connect(store / "ledger.sqlite") as connection:
            connection.execute(change)
        connection.close()

    return edit


def edit_text(name: str, old: str, new: str) -> Callable[[Path], None]:
    def edit(store: Path) -> None:
        text = (store / name).read_text()
        assert old in text
        (store / name).write_text(text.replace(old, new, 1))

    return edit


def lengthen(store: Path) -> None:
    with (store / "random" / "features.npy").open("ab") as file:
        file.write(b"more")


ATTACKS = {
    "another seed in the manifest": (
        edit_text("manifest.json", '"seed": 0', '"seed": 1'),
        "manifest.json",
    ),
    "another path in the catalog": (
        edit_text("catalog.csv", "red/0.mp4,", "red/0.mp4,/other"),
        "red/0.mp4",
    ),
    "another video in the catalog": (
        edit_text("catalog.csv", "red/0.mp4,", "red/9.mp4,"),
        "red/9.mp4",
    ),
    "a deleted row": (edit_ledger("DELETE FROM videos WHERE ordinal = 7"), "ledger.sqlite"),
    "rows of another video": (
        edit_ledger("UPDATE videos SET random_first = 0 WHERE ordinal = 3"),
        "green/3.mp4",
    ),
    "rows that cannot be": (
        edit_ledger("UPDATE videos SET regular_first = -5 WHERE ordinal = 2"),
        "green/2.mp4",
    ),
    "another checksum": (
        edit_ledger("UPDATE videos SET checksum = 'x' WHERE ordinal = 1"),
        "green/1.mp4",
    ),
    "a longer file": (lengthen, "random/features.npy"),
}


@pytest.mark.parametrize(("attack", "name"), ATTACKS.values(), ids=list(ATTACKS))
def test_verify_compares_catalog_ledger_manifest_and_files(
    attack: Callable[[Path], None], name: str, session_run: Path, tmp_path: Path
) -> None:
    store = Path(shutil.copytree(session_run / "store", tmp_path / "store"))
    assert verify_store(store) == []
    attack(store)
    assert name in dict(verify_store(store))


def test_whatever_a_run_lacks_is_made_again(finished_run: Path, videos: Path) -> None:
    """Deleted or damaged, it has the same content afterwards."""

    def results(folder: Path) -> tuple[dict[str, float], dict[str, bytes]]:
        same = ("model.safetensors", "vectors.safetensors", "comparisons.json", "catalog.csv")
        files = {n: c for n, c in tree_digest(folder).items() if n.endswith(same)}
        return scores(folder), dict.fromkeys(tree_digest(folder), b"") | files

    before = results(finished_run)
    words = ("run", videos, "--out", finished_run, *TINY, "--quiet")
    shutil.rmtree(finished_run / "vectors")
    (finished_run / "comparisons.json").unlink()
    (finished_run / "report.html").unlink()
    assert run(*words) == 0
    assert results(finished_run) == before
    (finished_run / "predictions.safetensors").unlink()
    (finished_run / "vectors" / "vectors.safetensors").write_bytes(b"damaged")
    assert run(*words) == 0
    assert results(finished_run) == before
    (finished_run / "model" / "model.safetensors").unlink()
    (finished_run / "catalog.csv").unlink()
    assert run(*words) == 0
    assert results(finished_run) == before
    assert (finished_run / "report.html").is_file()


def test_verify_checks_all_of_a_run(finished_run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run("verify", finished_run, "--videos") == 0
    flipped = [
        "model/model.safetensors",
        "predictions.safetensors",
        "vectors/vectors.safetensors",
    ]
    for name in flipped:
        content = bytearray((finished_run / name).read_bytes())
        content[-3] ^= 4
        (finished_run / name).write_bytes(content)
    capfd.readouterr()
    assert run("verify", finished_run) == 1
    lines = capfd.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines[:-1]] == flipped
    assert lines[-1].endswith("3 with problems")


def test_verify_names_the_outputs_that_are_not_those_that_the_run_wrote(
    finished_run: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    changed = ["report.html", "results.json"]
    for name in changed:
        (finished_run / name).write_text((finished_run / name).read_text() + " ")
    (finished_run / "comparisons.json").unlink()
    assert run("verify", finished_run) == 1
    assert capfd.readouterr().out.splitlines()[:-1] == [
        "comparisons.json: is missing; run it again",
        *(f"{name}: is not the file that `clipset run` wrote; run it again" for name in changed),
    ]


def test_a_report_that_is_written_again_is_a_file_of_the_run(finished_run: Path) -> None:
    (finished_run / "report.html").write_text("something else")
    assert run("verify", finished_run) == 1
    assert run("report", finished_run) == 0
    assert run("verify", finished_run) == 0
