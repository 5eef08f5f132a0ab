"""A ledger that is none of ours, or no longer whole, is refused in one line."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from tests.conftest import SMALL, write_video

from clipset.data.catalog import read_catalog
from clipset.errors import StoreError
from clipset.features.extract import extract
from clipset.features.ledger import Ledger
from clipset.features.store import FeatureStore
from clipset.features.verify import verify_store


@pytest.fixture
def folder(small_store: FeatureStore, tmp_path: Path) -> Path:
    return Path(shutil.copytree(small_store.folder, tmp_path / "store"))


def refusal(folder: Path, catalog_of: FeatureStore) -> str:
    """What reading, verifying and going on all say about a store's ledger."""
    said = set()
    for use in (
        lambda: FeatureStore(folder),
        lambda: verify_store(folder),
        lambda: extract(catalog_of.catalog, folder, SMALL),
    ):
        with pytest.raises(StoreError) as caught:
            use()
        said.add(str(caught.value))
    [one] = said
    assert "\n" not in one
    return one


def test_a_file_that_is_no_database_is_refused(folder: Path, small_store: FeatureStore) -> None:
    path = folder / "ledger.sqlite"
    path.write_text("not a database\n" * 1000)
    expected = f"the ledger {path} cannot be used: file is not a database"
    assert refusal(folder, small_store) == expected


def test_the_ledger_of_an_older_version_is_refused(folder: Path, small_store: FeatureStore) -> None:
    path = folder / "ledger.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("ALTER TABLE videos DROP COLUMN frames_missing")
    connection.close()
    assert refusal(folder, small_store) == (
        f"the ledger {path} is of another version or program (its videos have no frames_missing); "
        f"use another folder and extract again"
    )


def test_the_ledger_of_a_newer_version_is_refused(folder: Path, small_store: FeatureStore) -> None:
    with sqlite3.connect(folder / "ledger.sqlite") as connection:
        connection.execute("ALTER TABLE videos ADD COLUMN mood TEXT")
    connection.close()
    assert "(its videos have also mood)" in refusal(folder, small_store)


def test_a_database_of_another_program_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE friends (name TEXT)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match=re.escape("(it has no table of videos)")):
        Ledger(path)
    assert path.read_bytes() == before


def test_a_damaged_ledger_is_refused(folder: Path) -> None:
    path = folder / "ledger.sqlite"
    content = bytearray(path.read_bytes())
    content[100:] = b"\xff" * (len(content) - 100)
    path.write_bytes(content)
    with pytest.raises(StoreError, match=re.escape(f"the ledger {path} cannot be used: ")):
        FeatureStore(folder)


def test_a_file_name_that_is_not_utf8_is_stored(tmp_path: Path) -> None:
    folder = tmp_path / "videos"
    whole = write_video(folder / "a.mp4", seed=1)
    whole.rename(Path(os.fsdecode(os.fsencode(folder) + b"/caf\xe9.mp4")))
    store = extract(read_catalog(folder), tmp_path / "store", SMALL)
    assert store.ids == ("caf\\xe9.mp4",)
    assert verify_store(tmp_path / "store", videos=True) == []


def test_a_ledger_that_does_not_count_repairs_is_read_and_learns_to(folder: Path) -> None:
    path = folder / "ledger.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("ALTER TABLE videos DROP COLUMN num_repairs")
    connection.close()
    entries = FeatureStore(folder).entries
    assert {entry.num_repairs for entry in entries} == {0}
    assert verify_store(folder) == []
    with closing(Ledger(path, create=True)) as ledger:
        ledger.write([replace(entries[0], num_repairs=2)])
    assert FeatureStore(folder).entries[0].num_repairs == 2
