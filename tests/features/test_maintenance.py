"""Stores that were damaged, and stores that become one."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.conftest import SMALL, write_video

from clipset.cli import main
from clipset.data.catalog import Catalog, read_catalog, write_catalog
from clipset.errors import StoreError
from clipset.features.extract import extract
from clipset.features.maintenance import merge_stores, repair_store
from clipset.features.store import FeatureStore, open_store, store_digest
from clipset.features.verify import verify_store
from clipset.probes.task import make_task
from clipset.representation import embed_store
from clipset.training.pretrain import pretrain


@pytest.fixture(scope="module")
def few(small_videos: Path) -> Catalog:
    catalog = read_catalog(small_videos)
    return catalog.only(catalog.videos[:6])


@pytest.fixture(scope="module")
def whole(few: Catalog, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "store"
    extract(few, folder, SMALL)
    return folder


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "copy"))


def flip_bits(folder: Path) -> None:
    path = folder / "random" / "features.npy"
    content = bytearray(path.read_bytes())
    content[256 + 7] ^= 16  # in the first video
    content[-1] ^= 1  # in the last one
    path.write_bytes(content)


def zero_a_range(folder: Path) -> None:
    path = folder / "regular" / "boxes.npy"
    content = bytearray(path.read_bytes())
    content[300:600] = bytes(300)
    path.write_bytes(content)


def cut_off(folder: Path) -> None:
    path = folder / "random" / "times.npy"
    path.write_bytes(path.read_bytes()[:-200])


def remove(folder: Path) -> None:
    (folder / "regular" / "features.npy").unlink()


def spoil_the_header(folder: Path) -> None:
    path = folder / "random" / "boxes.npy"
    path.write_bytes(b"\x00" * 64 + path.read_bytes()[64:])


@pytest.mark.parametrize(
    ("spoil", "wrong"),
    [(flip_bits, 2), (zero_a_range, 4), (cut_off, 4), (remove, 7), (spoil_the_header, 1)],
)
def test_a_damaged_store_is_repaired_to_the_same_bytes(
    spoil: Callable[[Path], None], wrong: int, copy: Path, whole: Path
) -> None:
    spoil(copy)
    problems = verify_store(copy)
    assert len(problems) == wrong
    repair = repair_store(copy, workers=0)
    assert repair.restored == [id for id, _ in problems if not id.endswith(".npy")]
    assert not repair.changed
    assert not repair.failed
    assert verify_store(copy) == []
    assert store_digest(copy) == store_digest(whole)


def test_a_whole_store_is_left_as_it_is(copy: Path, whole: Path) -> None:
    repair = repair_store(copy, workers=0)
    assert (repair.restored, repair.changed, repair.failed) == ([], [], {})
    assert store_digest(copy) == store_digest(whole)


def test_a_damaged_video_that_is_gone_is_recorded_as_failed_and_comes_back(tmp_path: Path) -> None:
    for number in range(3):
        write_video(tmp_path / "videos" / f"{number}.mp4", seed=number)
    catalog = read_catalog(tmp_path / "videos")
    extract(catalog, tmp_path / "store", SMALL)
    before = open_store(tmp_path / "store").random.features[8:16].copy()
    flip_bits(tmp_path / "store")
    (tmp_path / "videos" / "0.mp4").rename(tmp_path / "away.mp4")
    assert repair_store(tmp_path / "store", workers=0).failed == {"0.mp4": "no such file"}
    store = open_store(tmp_path / "store")
    assert store.ids == ("1.mp4", "2.mp4")
    assert store.failed[0].reason == (
        "its rows were damaged and could not be extracted again: no such file"
    )
    np.testing.assert_array_equal(
        store.random.features[store.random.row_indices(np.array([0]))[0]], before
    )
    (tmp_path / "away.mp4").rename(tmp_path / "videos" / "0.mp4")
    assert len(extract(catalog, tmp_path / "store", replace(SMALL, retry_failed=True))) == 3
    assert verify_store(tmp_path / "store") == []


def test_a_damaged_video_whose_file_was_replaced_says_so(tmp_path: Path) -> None:
    for number in range(2):
        write_video(tmp_path / "videos" / f"{number}.mp4", seed=number)
    extract(read_catalog(tmp_path / "videos"), tmp_path / "store", SMALL)
    flip_bits(tmp_path / "store")
    write_video(tmp_path / "videos" / "0.mp4", seed=9)
    repair = repair_store(tmp_path / "store", workers=0)
    assert (repair.restored, repair.changed, repair.failed) == (["1.mp4"], ["0.mp4"], {})
    assert verify_store(tmp_path / "store") == []


def test_halves_of_two_machines_become_the_store_of_one(
    few: Catalog, whole: Path, tmp_path: Path
) -> None:
    halves = [tmp_path / "a", tmp_path / "b"]
    for folder, videos in zip(halves, (few.videos[:4], few.videos[3:]), strict=True):
        extract(few.only(videos), folder, SMALL)  # one video is in both
    merged = merge_stores(halves, tmp_path / "merged")
    assert merged.ids == open_store(whole).ids
    assert verify_store(merged.folder) == []
    assert store_digest(merged.folder) == store_digest(whole)
    assert merged.manifest == open_store(whole).manifest


def test_merging_in_another_order_keeps_the_rows_of_each_video(
    few: Catalog, whole: Path, tmp_path: Path
) -> None:
    halves = [tmp_path / "a", tmp_path / "b"]
    for folder, videos in zip(halves, (few.videos[:2], few.videos[2:]), strict=True):
        extract(few.only(videos), folder, SMALL)
    merged, at_once = merge_stores(halves[::-1], tmp_path / "merged"), open_store(whole)
    assert merged.ids == at_once.ids[2:] + at_once.ids[:2]
    for place, id in enumerate(merged.ids):
        other = at_once.ids.index(id)
        for kind in ("random", "regular"):
            ours, theirs = getattr(merged, kind), getattr(at_once, kind)
            rows, expected = (
                ours.row_indices(np.array([place]))[0],
                theirs.row_indices(np.array([other]))[0],
            )
            for name in ("features", "boxes", "times"):
                np.testing.assert_array_equal(
                    getattr(ours, name)[rows], getattr(theirs, name)[expected]
                )


@pytest.mark.slow
def test_parts_of_an_array_of_jobs_become_one_store_with_the_same_clips(
    few: Catalog, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_catalog(few, tmp_path / "all.csv")
    words = ["extract", str(tmp_path / "all.csv"), "--set=extract.size=32", "--quiet"]
    for part in ("1/2", "2/2"):
        with pytest.raises(SystemExit, match="0"):
            main([*words, "--out", str(tmp_path / part[0]), "--part", part])
    merged = merge_stores([tmp_path / "1", tmp_path / "2"], tmp_path / "merged")
    assert sorted(merged.ids) == sorted(video.id for video in few)
    with pytest.raises(SystemExit, match="2"):
        main([*words, "--out", str(tmp_path / "3"), "--part", "5/4"])
    assert "--part must be I/N" in capsys.readouterr().err


def test_a_merge_can_be_done_again_and_extended(few: Catalog, whole: Path, tmp_path: Path) -> None:
    extract(few.only(few.videos[:2]), tmp_path / "a", SMALL)
    merge_stores([tmp_path / "a"], tmp_path / "merged")
    merge_stores([tmp_path / "a", whole], tmp_path / "merged")
    assert store_digest(tmp_path / "merged") == store_digest(whole)


def test_what_failed_in_one_store_is_taken_from_the_other(
    few: Catalog, whole: Path, tmp_path: Path
) -> None:
    gone = [replace(video, path=tmp_path / "gone" / video.id) for video in few]
    extract(few.only(gone), tmp_path / "without", SMALL)
    assert len(FeatureStore(tmp_path / "without").failed) == 6
    merged = merge_stores([tmp_path / "without", whole], tmp_path / "merged")
    assert store_digest(merged.folder) == store_digest(whole)


def test_stores_that_do_not_fit_are_not_merged(
    few: Catalog, whole: Path, copy: Path, tmp_path: Path
) -> None:
    extract(few.only(few.videos[:1]), tmp_path / "other", replace(SMALL, size=40))
    with pytest.raises(StoreError, match="size 40, not 32"):
        merge_stores([whole, tmp_path / "other"], tmp_path / "merged")
    flip_bits(copy)
    with pytest.raises(StoreError, match="damaged"):
        merge_stores([copy], tmp_path / "damaged")
    with pytest.raises(StoreError, match="into itself"):
        merge_stores([whole], whole)
    with pytest.raises(StoreError, match="at least one"):
        merge_stores([], tmp_path / "merged")


def test_a_video_with_different_rows_in_two_stores_is_refused(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 1)):
        write_video(tmp_path / name / "x.mp4", seed=seed)
        extract(read_catalog(tmp_path / name), tmp_path / f"store-{name}", SMALL)
    with pytest.raises(StoreError, match=r"x\.mp4 has other rows"):
        merge_stores([tmp_path / "store-a", tmp_path / "store-b"], tmp_path / "merged")


def test_the_verbs_repair_and_merge(
    copy: Path, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flip_bits(copy)
    with pytest.raises(SystemExit, match="0"):
        main(["repair", str(copy), "--workers", "0", "--quiet"])
    assert "2 restored" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="0"):
        main(["merge", str(copy), str(whole), "--out", str(tmp_path / "merged"), "--quiet"])
    assert "6 videos, 0 failed" in capsys.readouterr().out
    assert store_digest(tmp_path / "merged") == store_digest(whole)


def test_nothing_is_computed_from_damaged_rows(copy: Path, tmp_path: Path) -> None:
    flip_bits(copy)
    for compute in (
        lambda store: pretrain(store, tmp_path / "model"),
        make_task,
        lambda store: embed_store(store, None),
    ):
        with pytest.raises(StoreError) as caught:
            compute(FeatureStore(copy))
        assert f"2 videos of {copy} cannot be used (" in str(caught.value)
        assert f"`clipset repair {copy}` extracts it again" in str(caught.value)
    assert not (tmp_path / "model").exists()


def test_repaired_rows_count_as_others_also_if_they_are_the_same_bytes(copy: Path) -> None:
    before = FeatureStore(copy).entries
    flip_bits(copy)
    repair_store(copy, workers=0)
    after = FeatureStore(copy).entries
    assert [entry.checksum for entry in after] == [entry.checksum for entry in before]
    assert [entry.num_repairs for entry in after] == [1, 0, 0, 0, 0, 1]
    same = [new.fingerprint == old.fingerprint for new, old in zip(after, before, strict=True)]
    assert same == [False, True, True, True, True, False]
