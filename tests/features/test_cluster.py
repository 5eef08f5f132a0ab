"""Ray gives the same bytes as one machine."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import SMALL

from clipset.data.catalog import Catalog, Video, read_catalog
from clipset.errors import ClipsetError, VideoError
from clipset.features import cluster
from clipset.features.cluster import extract_on_ray
from clipset.features.extract import extract
from clipset.features.maintenance import repair_store
from clipset.features.store import FeatureStore, store_digest

pytest.importorskip("ray")
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]  # Ray takes its time


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """One small cluster for all tests of this file."""
    import ray

    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield ray
    ray.shutdown()


@pytest.mark.usefixtures("ray")
def test_ray_gives_the_same_bytes_as_one_machine(small_store: FeatureStore, tmp_path: Path) -> None:
    store = extract_on_ray(small_store.catalog, tmp_path / "store", SMALL)
    assert not store.failed
    assert store_digest(store.folder) == store_digest(small_store.folder)
    assert store.manifest == small_store.manifest


OWN = """
from dataclasses import replace
from torch import nn
from clipset.backbones.registry import find_backbone

class Shades(nn.Module):
    def forward(self, clips):
        return clips.mean((2, 3, 4))

def make():
    spec = find_backbone("efficientnet_lite0").spec
    return replace(spec, name="shades", dim=2, frames=2, size=32), Shades()
"""


@pytest.mark.usefixtures("ray")
def test_a_custom_backbone_is_loaded_on_ray_and_by_repair_from_any_folder(
    small_store: FeatureStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    config = replace(SMALL, backbone="own.py:make")
    few = small_store.catalog.only(small_store.catalog.videos[:2])
    store = extract_on_ray(few, tmp_path / "ray", config)
    here = extract(few, tmp_path / "here", config)
    assert store.manifest == here.manifest
    assert store.manifest.made_by["backbone"] == f"{tmp_path / 'own.py'}:make"
    (store.folder / "random" / "features.npy").unlink()
    monkeypatch.chdir("/")
    name = f"{tmp_path / 'own.py'}:make"
    repair = repair_store(store.folder, workers=0, backbone=name)
    assert repair.restored == [video.id for video in few]
    assert store_digest(store.folder) == store_digest(here.folder)


@pytest.mark.usefixtures("ray")
def test_a_bad_file_on_ray_fails_with_the_same_reason(small_videos: Path, tmp_path: Path) -> None:
    catalog = read_catalog(small_videos)
    (tmp_path / "videos").mkdir()
    (tmp_path / "videos" / "empty.mp4").touch()
    bad = read_catalog(tmp_path / "videos").videos
    mixed = Catalog(name="mixed", videos=(*catalog.videos[:2], *bad, *catalog.videos[2:3]))
    store = extract_on_ray(mixed, tmp_path / "ray", SMALL)
    assert [(entry.id, entry.reason) for entry in store.failed] == [("empty.mp4", "empty file")]
    extract(mixed, tmp_path / "here", SMALL)
    assert store_digest(store.folder) == store_digest(tmp_path / "here")


@pytest.mark.usefixtures("ray")
def test_actors_that_are_killed_are_started_again(
    small_store: FeatureStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handed_out = cluster._encode_all

    def with_murder(ray: Any, actors: Any, videos: Any) -> Iterator[Any]:
        for number, seen in enumerate(handed_out(ray, actors, videos)):
            if number in (3, 9):
                ray.kill(actors[number % len(actors)], no_restart=False)
            yield seen

    monkeypatch.setattr(cluster, "_encode_all", with_murder)
    store = extract_on_ray(small_store.catalog, tmp_path / "store", SMALL)
    assert not store.failed
    assert store_digest(store.folder) == store_digest(small_store.folder)


class StuckActor:
    """An actor that does not finish its second video before a file is there."""

    def encode(self, video_index: int, video: Video) -> tuple[int, VideoError]:
        while video_index == 1 and not video.path.exists():
            time.sleep(0.01)
        return video_index, VideoError("encoded nothing")


def test_a_stuck_video_on_ray_does_not_let_later_ones_pile_up(
    ray: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "MAX_AHEAD", 3)
    stuck = tmp_path / "stuck"
    actors = [ray.remote(StuckActor).options(max_concurrency=2, num_cpus=0).remote()]
    videos = [Video(id=str(number), path=stuck) for number in range(12)]
    results = cluster._encode_all(ray, actors, videos)
    first = [next(results)[0] for _ in range(4)]
    assert sorted(first) == [0, 2, 3, 4]  # three after the one that is stuck, no more
    stuck.touch()
    assert next(results)[0] == 1  # nothing else was running
    assert sorted(index for index, _ in results) == [*range(5, 12)]


@pytest.mark.usefixtures("ray")
def test_an_error_on_an_actor_comes_as_it_was_raised(
    small_store: FeatureStore, tmp_path: Path
) -> None:
    with pytest.raises(ClipsetError, match="abacus"):
        extract_on_ray(small_store.catalog, tmp_path / "store", SMALL, device="abacus")
