"""Failures are tried again when their cause may be gone, and kept when it cannot."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.attacks.conftest import TINY, write_videos
from tests.conftest import SMALL, write_video
from tests.miniatures import run

from clipset.data.catalog import read_catalog
from clipset.features.extract import extract
from clipset.features.store import FeatureStore


def failures(store: FeatureStore) -> dict[str, bool]:
    """Which videos failed, and whether that may change by itself."""
    return {entry.id: entry.transient for entry in store.failed}


def test_a_missing_file_is_tried_again_and_a_file_that_is_no_video_is_not(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = write_videos(tmp_path / "videos", per_class=2)
    (folder / "red" / "text.mp4").write_text("not a video")
    (folder / "red" / "folder.mp4").mkdir()
    catalog = read_catalog(folder)
    (folder / "red" / "0.mp4").rename(tmp_path / "away.mp4")
    store = extract(catalog, tmp_path / "store", SMALL)
    assert failures(store) == {"red/0.mp4": True, "red/text.mp4": False}
    (tmp_path / "away.mp4").rename(folder / "red" / "0.mp4")
    capfd.readouterr()
    assert failures(extract(catalog, tmp_path / "store", SMALL)) == {"red/text.mp4": False}
    lines = capfd.readouterr().err
    assert "not retried: 1 video that failed before; --retry-failed does it" in lines
    assert "skipped" not in lines


def test_a_bad_file_that_was_replaced_by_a_video_is_read(tmp_path: Path) -> None:
    folder = write_videos(tmp_path / "videos", per_class=1)
    (folder / "red" / "text.mp4").write_text("not a video")
    catalog = read_catalog(folder)
    assert len(extract(catalog, tmp_path / "store", SMALL)) == 2
    write_video(folder / "red" / "text.mp4", seed=9)
    assert len(extract(catalog, tmp_path / "store", SMALL)) == 3


def test_a_timeout_is_tried_again_with_more_time(tmp_path: Path) -> None:
    folder = write_videos(tmp_path / "videos", per_class=1)
    catalog = read_catalog(folder)
    hasty = replace(SMALL, workers=1, timeout=0.001)
    assert failures(extract(catalog, tmp_path / "store", hasty)) == {
        "green/0.mp4": True,
        "red/0.mp4": True,
    }
    assert len(extract(catalog, tmp_path / "store", SMALL)) == 2


@pytest.mark.slow
def test_run_knows_retry_failed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = write_videos(tmp_path / "videos", per_class=3)
    (folder / "red" / "text.mp4").write_text("not a video")
    words = ("run", folder, "--out", tmp_path / "run", *TINY, "--set=extract.workers=0")
    assert run(*words) == 0
    capfd.readouterr()
    assert run(*words) == 0
    assert "--retry-failed does it" in capfd.readouterr().err
    assert run(*words, "--retry-failed") == 0
    assert "skipped red/text.mp4: " in capfd.readouterr().err
