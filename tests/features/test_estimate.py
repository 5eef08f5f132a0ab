"""What an extraction will cost, before it is begun."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.conftest import SMALL

from clipset.cli import main
from clipset.data.catalog import read_catalog
from clipset.errors import StoreError
from clipset.features.estimate import estimate
from clipset.features.store import FeatureStore


def test_the_estimate_knows_the_bytes_exactly(small_store: FeatureStore) -> None:
    cost = estimate(small_store.catalog, SMALL)
    files = list(small_store.folder.rglob("*.npy"))
    assert len(files) == 6
    assert cost.disk_bytes == sum(path.stat().st_size for path in files)
    assert (cost.videos, cost.clips, cost.sampled) == (24, 24 * 12, 3)
    assert cost.seconds > 0
    assert cost.memory_bytes is None or cost.memory_bytes > 50 << 20


def test_features_of_twice_the_width_take_more(small_store: FeatureStore) -> None:
    catalog = small_store.catalog.only(small_store.catalog.videos[:2])
    cost = estimate(catalog, replace(SMALL, dtype="float32"))
    assert cost.disk_bytes == 6 * 256 + 2 * 12 * 4 * (1280 + 7 + 2)


def test_a_dry_run_writes_nothing(
    small_videos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["extract", str(small_videos), "--out", str(tmp_path / "store"), "--dry-run", "--json"]
    words += [
        "--frames",
        "2",
        "--size",
        "32",
        "--set=extract.engine=torch",
        "--set=extract.sampling.num_clips=1",
    ]
    with pytest.raises(SystemExit, match="0"):
        main(words)
    said = json.loads(capsys.readouterr().out)
    assert said["videos"] == 24
    assert said["clips"] == 24 * 9
    assert said["free_bytes"] > 0
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_without_a_readable_video_says_why(tmp_path: Path) -> None:
    (tmp_path / "x.mp4").touch()
    with pytest.raises(StoreError, match=r"none of 1 videos could be read \(empty file\)"):
        estimate(read_catalog(tmp_path), SMALL)
