"""One small finished run that the tests of the server share, and a client for it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pytest
from fastapi.testclient import TestClient
from tests.conftest import SMALL

from clipset.data.catalog import Catalog, Video
from clipset.features.store import FeatureStore
from clipset.model.config import ModelConfig
from clipset.pipeline import run
from clipset.probes.config import EvaluateConfig, ProbeTraining
from clipset.recipe import Recipe
from clipset.training.config import PretrainConfig
from clipset.web.app import create_app
from clipset.web.state import ServerState

HOSTILE = "<img src=x onerror=alert(1)>"
RECIPE = Recipe(
    extract=SMALL,
    pretrain=PretrainConfig(
        epochs=2,
        clips_per_set=4,
        model=ModelConfig(width=32, num_layers=1, projection_hidden=(16, 16), projection_dim=8),
    ),
    evaluate=EvaluateConfig(
        probes=("knn", "linear"),
        num_seeds=1,
        training=ProbeTraining(epochs=4, num_clips=4, head_learning_rates=(0.03,)),
    ),
)


def write_avi(path: Path) -> Path:
    """MPEG-4 Part 2 in an AVI, which browsers do not play."""
    rng = np.random.default_rng(0)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=12)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for _ in range(24):
            pixels = rng.integers(0, 255, (48, 64, 3), dtype=np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
    return path


@pytest.fixture(scope="session")
def served_folder(small_store: FeatureStore, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run: the small videos, an AVI, a copy, a label that looks like HTML."""
    folder = tmp_path_factory.mktemp("served")
    shutil.copytree(small_store.folder, folder / "run" / "store")
    labels = {"blue": HOSTILE}
    videos = [
        replace(video, label=labels.get(video.label or "", video.label))
        for video in small_store.catalog
    ]
    original = next(video for video in videos if video.label == "red" and video.split == "train")
    copy = Path(shutil.copy(original.path, folder / "copy.mp4"))
    videos += [
        Video(id="noise.avi", path=write_avi(folder / "noise.avi"), label="red", split="train"),
        Video(id="copy.mp4", path=copy, label="red", split="train"),
    ]
    run(Catalog(name="served", videos=tuple(videos)), folder / "run", RECIPE)
    return folder / "run"


@pytest.fixture
def copied_folder(served_folder: Path, tmp_path: Path) -> Path:
    """A copy of the run without labels, for tests that write to it."""
    ignored = shutil.ignore_patterns("cache", "labels", ".lock")
    return Path(shutil.copytree(served_folder, tmp_path / "run", ignore=ignored))


@pytest.fixture
def label_client(copied_folder: Path) -> Iterator[TestClient]:
    """A client of the copy, without background work."""
    state = ServerState(copied_folder)
    app = create_app(state, hosts=frozenset({"localhost", "testserver"}))
    yield TestClient(app, base_url="http://localhost:8000")
    state.close()


@pytest.fixture(scope="session")
def state(served_folder: Path) -> ServerState:
    """The opened run; the client closes it."""
    return ServerState(served_folder)


@pytest.fixture(scope="session")
def client(state: ServerState) -> Iterator[TestClient]:
    """A client of the server, after its background work."""
    app = create_app(state)
    with TestClient(app, base_url="http://localhost:8000") as client:
        deadline = time.monotonic() + 60
        while "pending" in state.background.values() and time.monotonic() < deadline:
            time.sleep(0.02)
        yield client
