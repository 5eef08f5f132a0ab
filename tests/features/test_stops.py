"""An extraction that is killed goes on and ends with the bytes of one that ran through."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pytest
from tests.conftest import SMALL, write_video
from tests.features import stopper, tiny_backbone

from clipset.data.catalog import Catalog, read_catalog, write_catalog
from clipset.features.extract import extract
from clipset.features.store import FeatureStore, store_digest
from clipset.features.verify import verify_store

ROOT = Path(__file__).parents[2]
VIDEOS = 24
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")


def write_white_video(path: Path) -> None:
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=12)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for _ in range(12):
            white = np.full((48, 64, 3), 255, dtype=np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(white, format="rgb24")))
        container.mux(stream.encode())


class Scene:
    """Videos, the last of them white, a watched backbone, and the store made of them at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for number in range(VIDEOS - 1):
            write_video(folder / "videos" / f"{number:02d}.mp4", seed=number, colour=number)
        write_white_video(folder / "videos" / "white.mp4")
        self.catalog: Catalog = read_catalog(folder / "videos")
        write_catalog(self.catalog, folder / "catalog.csv")
        shutil.copy(tiny_backbone.__file__, folder / "watched.py")
        self.config = replace(SMALL, backbone=f"{folder / 'watched.py'}:make_watched")
        self.whole = extract(self.catalog, folder / "whole", self.config).folder

    def stop(self, how: str, store: Path, workers: int, times: int, address: str = "") -> int:
        """Stop an extraction so often, each time before its end; the stops that landed."""
        (self.folder / "hold").touch()
        words = [how, self.folder / "catalog.csv", store, self.config.backbone, workers, times, 0]
        program = [sys.executable, stopper.__file__, *map(str, words), *([address] * bool(address))]
        path = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
        done = subprocess.run(
            program, env=os.environ | {"PYTHONPATH": path}, stdout=subprocess.PIPE, text=True,
            check=True,
        )  # fmt: skip
        (self.folder / "hold").unlink()
        return done.stdout.count("stopped after")

    def resume(self, store: Path) -> None:
        """Go on to the end; it must be as if nothing had happened."""
        assert "white.mp4" in [entry.id for entry in FeatureStore(store).pending]
        extract(self.catalog, store, self.config)
        assert verify_store(store) == []
        assert store_digest(store) == store_digest(self.whole)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return Scene(tmp_path_factory.mktemp("scene"))


@pytest.mark.parametrize(("workers", "kills"), [(0, 8), (2, 2)])
def test_kills_at_random_moments_change_no_byte(
    workers: int, kills: int, scene: Scene, tmp_path: Path
) -> None:
    assert scene.stop("kill", tmp_path / "store", workers, kills) == kills
    scene.resume(tmp_path / "store")


@pytest.mark.parametrize(("workers", "times"), [(0, 6), (2, 2)])
def test_ctrl_c_at_random_moments_always_ends_with_130_and_changes_no_byte(
    workers: int, times: int, scene: Scene, tmp_path: Path
) -> None:
    assert scene.stop("interrupt", tmp_path / "store", workers, times) == times
    scene.resume(tmp_path / "store")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A small Ray cluster that outlives the extractions."""
    ray = pytest.importorskip("ray")
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield ray.get_runtime_context().gcs_address
    ray.shutdown()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_kills_at_random_moments_change_no_byte_on_ray(
    scene: Scene, address: str, tmp_path: Path
) -> None:
    assert scene.stop("kill", tmp_path / "store", 0, 3, address) == 3
    scene.resume(tmp_path / "store")
