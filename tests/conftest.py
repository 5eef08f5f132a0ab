"""Small real videos and a small real store that many tests look at."""

import os
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tests run side by side, each on one core
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import av
import numpy as np
import pytest

from clipset.clips.config import Sampling
from clipset.data.catalog import read_catalog
from clipset.data.splits import assign_splits
from clipset.features.config import ExtractConfig
from clipset.features.extract import extract
from clipset.features.ledger import Ledger
from clipset.features.store import FeatureStore, open_store, row_checksum
from clipset.features.verify import open_arrays, rows_of
from clipset.progress import set_quiet

SMALL = ExtractConfig(
    frames=2,
    stride=4,
    size=32,
    sampling=Sampling(num_clips=8, num_times=2, num_crops=2, flip=False),
    engine="torch",
    workers=0,
)


@pytest.fixture(autouse=True)
def _not_quiet() -> None:
    """A test that called a verb with --quiet does not silence those after it."""
    set_quiet(False)


def write_video(
    path: Path, *, seed: int = 0, seconds: float = 1.0, rate: int = 12, colour: int = 0
) -> Path:
    """A real MP4: a bright square that wanders over a tinted, noisy ground."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    ground = rng.integers(0, 60, (48, 64, 3), dtype=np.uint8)
    ground[..., colour % 3] += 120
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=rate)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        stream.codec_context.thread_count = 1  # with several, x264's bytes vary now and then
        for number in range(round(seconds * rate)):
            picture = ground.copy()
            left = (number * 3 + seed * 5) % 48
            picture[10:26, left : left + 16] = 250
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
    return path


def record_rows(folder: Path, changes: Mapping[int, Mapping[str, int]] | None = None) -> None:
    """Change some entries of a store's ledger, and record the rows as they are now."""
    store = FeatureStore(folder)
    arrays = open_arrays(store)
    with closing(Ledger(folder / "ledger.sqlite")) as ledger:
        for entry in store.entries:
            entry = replace(entry, **(changes or {}).get(entry.ordinal, {}))
            checksum = row_checksum(rows_of(entry, arrays).values())
            ledger.write([replace(entry, checksum=checksum)])


@pytest.fixture(scope="session")
def small_videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 videos of 3 classes (their tint), in sub-folders."""
    folder = tmp_path_factory.mktemp("videos")
    for number in range(24):
        colour = number % 3
        name = folder / ("red", "green", "blue")[colour] / f"video {number}.mp4"
        write_video(name, seed=number, seconds=0.8 + 0.05 * number, colour=colour)
    return folder


@pytest.fixture(scope="session")
def small_store(small_videos: Path, tmp_path_factory: pytest.TempPathFactory) -> FeatureStore:
    """The features of the small videos, by the real default backbone on tiny clips."""
    folder = tmp_path_factory.mktemp("store") / "store"
    catalog = assign_splits(read_catalog(small_videos), test_fraction=0.25, seed=0)
    extract(catalog, folder, SMALL)
    return open_store(folder)
