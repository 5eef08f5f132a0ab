"""A run's folder with vectors of four classes, and no videos."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from clipset.representation import VectorTable, write_vectors

CLASSES = ("jump", "run", "sit", "wave")
NUM_VIDEOS = 120


def write_run(folder: Path, *, num_videos: int = NUM_VIDEOS, noise: float = 0.5) -> Path:
    """Video i is of class i % 4."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(len(CLASSES), 1, 24))
    classes = np.arange(num_videos) % len(CLASSES)
    clips = centres[classes] + noise * rng.normal(size=(num_videos, 3, 24))
    table = VectorTable(
        video_ids=tuple(f"video {index}.mp4" for index in range(num_videos)),
        labels=(None,) * num_videos,
        splits=(None,) * num_videos,
        vectors=clips.astype(np.float32),
        starts=(0.0,) * num_videos,
        ends=(8.0,) * num_videos,
        windows=(None,) * num_videos,
        parts=("clip",),
        part_widths=(24,),
    )
    write_vectors(table, folder / "vectors")
    return folder


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run")
