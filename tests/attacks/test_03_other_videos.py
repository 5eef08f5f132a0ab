"""Features of one file never stand for another: the ledger knows which file each row came from."""

from __future__ import annotations

import csv
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.attacks.conftest import TINY, Clipset, one_line, scores, write_videos
from tests.conftest import SMALL, write_video

from clipset.data.catalog import read_catalog
from clipset.errors import StoreError
from clipset.features.extract import extract
from clipset.features.store import FeatureStore, open_store, store_digest
from clipset.features.verify import verify_store
from clipset.representation import read_vectors


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four videos and the store made of them."""
    write_videos(tmp_path / "videos", per_class=2)
    extract(read_catalog(tmp_path / "videos"), tmp_path / "store", SMALL)
    return tmp_path


def extract_again(folder: Path, videos: str = "videos") -> FeatureStore:
    return extract(read_catalog(folder / videos), folder / "store", SMALL)


def fresh_digest(folder: Path, videos: str = "videos") -> str:
    """The digest of a store made of the same videos from scratch."""
    fresh = folder / f"fresh of {videos}"
    extract(read_catalog(folder / videos), fresh, SMALL)
    return store_digest(fresh)


@pytest.mark.slow
def test_a_run_over_other_videos_with_the_same_names_reports_those(
    clipset: Clipset, finished_run: Path, tmp_path: Path
) -> None:
    other = write_videos(tmp_path / "other", seed=50)
    done = clipset("run", other, "--out", finished_run, *TINY)
    assert done.returncode == 0, done.stderr
    assert "8 videos have changed and are extracted again" in done.stderr
    assert clipset("run", other, "--out", tmp_path / "new", *TINY).returncode == 0
    assert scores(finished_run) == scores(tmp_path / "new")
    old, new = (read_vectors(f / "vectors") for f in (finished_run, tmp_path / "new"))
    np.testing.assert_array_equal(old.vectors, new.vectors)


def test_a_replaced_file_is_extracted_again(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_video(folder / "videos" / "red" / "1.mp4", seed=77, seconds=0.7)
    store = extract_again(folder)
    assert "1 video has changed and is extracted again" in capfd.readouterr().err
    rows = store.random.row_indices(np.arange(len(store)))
    extract(read_catalog(folder / "videos"), folder / "fresh", SMALL)
    fresh = open_store(folder / "fresh")
    np.testing.assert_array_equal(
        store.random.features[rows], fresh.random.features[fresh.random.row_indices(np.arange(4))]
    )
    assert verify_store(folder / "store") == []


def test_a_replaced_file_of_equal_size_and_time_is_noticed(folder: Path) -> None:
    path = folder / "videos" / "red" / "0.mp4"
    before, content = path.stat(), bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert verify_store(folder / "store") == []
    changed = [("red/0.mp4", "its file has changed since it was read")]
    assert verify_store(folder / "store", videos=True) == changed


def test_a_change_within_a_long_file_changes_its_digest(tmp_path: Path) -> None:
    from clipset.data.file_state import sampled_digest

    path = tmp_path / "long.bin"
    content = bytearray(4 << 20)
    path.write_bytes(content)
    digests = {sampled_digest(path)}
    for place in (0, 400 << 10, 1 << 20, 3 << 20, len(content) - 1):
        content[place : place + (300 << 10)] = b"\1" * min(300 << 10, len(content) - place)
        path.write_bytes(content)
        digests.add(sampled_digest(path))
    path.write_bytes(bytes(content) + b"\0")
    digests.add(sampled_digest(path))
    assert len(digests) == 7


def test_other_paths_under_the_same_ids_are_extracted_again(folder: Path) -> None:
    catalog = read_catalog(folder / "videos")
    paths = [video.path for video in catalog]
    with (folder / "swapped.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "path"])
        writer.writerows(zip((v.id for v in catalog), reversed(paths), strict=True))
    extract(read_catalog(folder / "swapped.csv"), folder / "store", SMALL)
    assert store_digest(folder / "store") == fresh_digest(folder, "swapped.csv")


def test_another_end_means_another_video(folder: Path) -> None:
    paths = [str(video.path) for video in read_catalog(folder / "videos")]
    (folder / "ends.csv").write_text(
        "id,path,end\n" + "".join(f"{Path(p).parent.name}/{Path(p).name},{p},0.4\n" for p in paths)
    )
    extract(read_catalog(folder / "ends.csv"), folder / "store", SMALL)
    assert store_digest(folder / "store") == fresh_digest(folder, "ends.csv")


def test_a_moved_folder_is_recognised_and_not_extracted_again(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = store_digest(folder / "store")
    shutil.copytree(folder / "videos", folder / "elsewhere")  # other times, too
    shutil.rmtree(folder / "videos")
    capfd.readouterr()
    extract_again(folder, "elsewhere")
    assert "extracting" not in capfd.readouterr().err
    assert store_digest(folder / "store") == before
    assert verify_store(folder / "store", videos=True) == []


def test_videos_that_were_deleted_after_extraction_keep_their_features(folder: Path) -> None:
    catalog = read_catalog(folder / "videos")
    before = store_digest(folder / "store")
    shutil.rmtree(folder / "videos")
    assert len(extract(catalog, folder / "store", SMALL)) == 4
    assert store_digest(folder / "store") == before
    assert len(verify_store(folder / "store", videos=True)) == 4


def test_features_are_not_kept_for_other_files_that_cannot_be_read(folder: Path) -> None:
    ids = [video.id for video in read_catalog(folder / "videos")]
    lines = [f"{id},{folder / 'gone' / id}" for id in ids]
    (folder / "gone.csv").write_text("\n".join(["id,path", *lines]) + "\n")
    before = store_digest(folder / "store"), (folder / "store" / "catalog.csv").read_bytes()
    with pytest.raises(StoreError, match="4 videos that were read from other files"):
        extract(read_catalog(folder / "gone.csv"), folder / "store", SMALL)
    assert before == (
        store_digest(folder / "store"),
        (folder / "store" / "catalog.csv").read_bytes(),
    )


@pytest.mark.slow
def test_a_linked_store_of_other_files_is_refused(
    clipset: Clipset, session_run: Path, tmp_path: Path
) -> None:
    other = write_videos(tmp_path / "other", seed=50)
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "store").symlink_to(session_run / "store")
    done = clipset("run", other, "--out", tmp_path / "linked", *TINY)
    assert "made of other files: 8 of 8 videos differ" in one_line(done)


def test_a_pipe_among_the_videos_is_not_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "videos" / "red" / "pipe.mp4")
    store = extract_again(folder)
    assert {entry.id: entry.reason for entry in store.failed} == {
        "red/pipe.mp4": "is not a regular file"
    }
    assert len(extract_again(folder)) == 4
