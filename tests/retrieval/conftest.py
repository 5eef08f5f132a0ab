"""A small collection with vectors, made without a video."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from clipset.backbones.registry import BackboneSpec, Weights
from clipset.clips.config import Sampling
from clipset.clips.decode import VideoFacts
from clipset.data.catalog import Catalog, Video, write_catalog
from clipset.features.encode import ClipRows, EncodedVideo
from clipset.features.store import Manifest, open_store
from clipset.features.writer import StoreWriter
from clipset.model.config import ModelConfig
from clipset.model.encoder import SetEncoder
from clipset.representation import embed_store, write_vectors
from clipset.retrieval import SearchIndex, open_index

DIM, NUM_VIDEOS = 12, 40
LABELS = ("run", "jump", "swim", "climb")


def make_run(
    folder: Path,
    num_videos: int = NUM_VIDEOS,
    *,
    with_model: bool = True,
    spec: BackboneSpec | None = None,
) -> Path:
    """A run with a store and vectors: 3 to 5 clips of 1 s a video, 2 s apart, 2 crops each."""
    catalog = Catalog(
        name="small",
        videos=tuple(
            Video(
                id=f"{LABELS[index % 4]}/{index}.mp4",
                path=folder / "videos" / f"{index}.mp4",
                label=LABELS[index % 4],
                split="test" if index % 5 == 0 else "train",
                group=f"camera {index % 3}",
                columns=(("day", "=Monday"),) if index % 2 else (),
            )
            for index in range(num_videos)
        ),
    )
    spec = spec or BackboneSpec(
        name="made up", dim=DIM, frames=1, stride=30, size=1, mean=(0.0,) * 3, std=(1.0,) * 3,
        pooling="", weights=Weights(file="", licence="", source=""), paper="",
    )  # fmt: skip
    manifest = Manifest(backbone=spec, sampling=Sampling(), seed=0, dtype="float32")
    with StoreWriter(folder / "store", manifest, catalog, sources=None) as writer:
        pending = [int(Path(entry.id).stem) for entry in writer.pending]
        rows = (_rows(index, spec.dim) for index in pending)
        writer.write_all(enumerate(rows), "writing")
    write_catalog(catalog, folder / "catalog.csv")
    torch.manual_seed(0)
    encoder = SetEncoder(spec.dim, ModelConfig(width=32, num_layers=1))
    table = embed_store(open_store(folder / "store"), encoder if with_model else None)
    write_vectors(table, folder / "vectors")
    return folder


def _rows(index: int, dim: int) -> EncodedVideo:
    rng = np.random.default_rng(index)
    num_times = 3 + index % 3
    centre = np.random.default_rng(1000 + index % 4).normal(size=dim)
    features = centre + rng.normal(size=(2 * num_times, dim))
    starts = np.repeat(2.0 * np.arange(num_times), 2)
    boxes = np.stack([starts, starts + 1, *(np.full_like(starts, x) for x in (0, 0, 1, 1, 0))], 1)
    both = np.tile(np.arange(len(starts)), 2)  # random clips, regular clips
    arrays = (array[both].astype(np.float32) for array in (features, boxes, starts[:, None]))
    clips = ClipRows(*arrays)
    facts = VideoFacts(
        random_count=len(starts), regular_count=len(starts), duration=2.0 * num_times,
        width=64, height=48, frames_expected=None, frames_found=9, frames_missing=0,
    )  # fmt: skip
    return EncodedVideo(facts, clips)


@pytest.fixture(scope="session")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run whose videos have different numbers of clips."""
    return make_run(tmp_path_factory.mktemp("retrieval") / "run")


@pytest.fixture(scope="session")
def index(collection: Path) -> SearchIndex:
    """The same run, opened for searching."""
    return open_index(collection)
