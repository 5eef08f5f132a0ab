"""Run one probe on a large store and print its peak memory: `probe_memory.py STORE PROBE`.

benchmarks/probes.py makes the store and runs this as a separate process for each probe. Settings
are those of the preset `paper`, the largest grids, but an epoch is a single batch, and the clips in
order are solved with one penalty: the number of steps does not change the peak. The peak is that of
`RssAnon`, the memory that the process has allocated, read every few milliseconds; pages of the
store that the kernel has mapped can be dropped at any time and do not count. Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch is imported

import numpy as np
import torch
from torch import Generator, Tensor

from clipset.backbones.registry import BackboneSpec, Weights
from clipset.clips.config import Sampling
from clipset.clips.decode import VideoFacts
from clipset.data.catalog import Catalog, Video
from clipset.data.file_state import FileState
from clipset.evaluation.suite import run_suite
from clipset.features.encode import ClipRows, EncodedVideo
from clipset.features.store import FeatureStore, Manifest
from clipset.features.writer import StoreWriter
from clipset.probes import heads, ordered, transformer
from clipset.probes.config import EvaluateConfig
from clipset.probes.registry import PROBES
from clipset.probes.task import make_task
from clipset.progress import set_quiet
from clipset.recipe import load_settings
from clipset.sets.sampling import draw_batches
from clipset.training.checkpoint import ScaleModel
from clipset.training.config import PretrainConfig

RANDOM, REGULAR, DIM, CLASSES = 16, 15, 768, 400  # Kinetics-400
TEST_FRACTION = 1 / 12  # 20,000 test videos for 240,000 training videos
VALIDATION = 64  # they are read chunk by chunk: their number does not matter


def list_videos(num_videos: int) -> list[Video]:
    """Training videos, and validation and test videos after them."""
    counts = {"train": num_videos, "val": VALIDATION, "test": round(num_videos * TEST_FRACTION)}
    return [
        Video(
            id=f"{split}/{number:06d}.mp4",
            path=Path(f"/videos/{split}/{number:06d}.mp4"),
            label=f"class {number % CLASSES:03d}",
            split=split,
        )
        for split, count in counts.items()
        for number in range(count)
    ]


def make_store(folder: Path, num_videos: int, seed: int) -> None:
    """A store of random features, by the writer of the real ones."""
    rng = np.random.default_rng(seed)
    num_clips = RANDOM + REGULAR
    pool = rng.standard_normal((64 * num_clips, DIM), dtype=np.float32).astype(np.float16)
    means = (0.25 * rng.standard_normal((CLASSES, DIM))).astype(np.float16)
    start = rng.random((num_clips, 3), dtype=np.float32) / 2
    boxes = np.column_stack([start[:, 0], start[:, 0] + 0.4, start[:, 1:], start[:, 1:] + 0.5,
                             np.zeros(num_clips)]).astype(np.float32)  # fmt: skip
    weights = Weights(file="none", licence="none", source="random numbers")
    backbone = BackboneSpec(
        name="random", dim=DIM, frames=1, stride=1, size=1, mean=(0.0, 0.0, 0.0),
        std=(1.0, 1.0, 1.0), pooling="none", weights=weights, paper="none",
    )  # fmt: skip
    sampling = Sampling(num_clips=RANDOM, num_times=5, num_crops=3)
    manifest = Manifest(backbone=backbone, sampling=sampling, seed=seed, dtype="float16")
    facts = VideoFacts(
        random_count=RANDOM, regular_count=REGULAR, duration=10.0, width=340, height=256,
        frames_expected=None, frames_found=300, frames_missing=0,
    )  # fmt: skip
    videos = list_videos(num_videos)
    catalog = Catalog(name="large", videos=tuple(videos))
    with StoreWriter(folder, manifest, catalog, sources=None) as writer:
        for index, video in enumerate(videos):
            first = int(rng.integers(63)) * num_clips
            features = pool[first : first + num_clips] + means[int((video.label or "")[-3:])]
            rows = ClipRows(features, boxes, boxes[:, :1])
            file = FileState(
                path=str(video.path), size=10**6, modified_ns=index, changed_ns=index,
                digest=f"{index:032x}",
            )  # fmt: skip
            writer.put(index, EncodedVideo(replace(facts, file=file), rows))


def watch(peak: list[int]) -> None:
    """Record the largest allocated memory in bytes, for ever."""
    while True:
        status = Path("/proc/self/status").read_text()
        peak[0] = max(peak[0], int(status.split("RssAnon:")[1].split()[0]) * 1024)
        time.sleep(0.004)


def first_batch(num_videos: int, batch_size: int, generator: Generator) -> list[Tensor]:
    """The first batch of an epoch."""
    return draw_batches(num_videos, batch_size, generator)[:1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("store", type=Path)
    parser.add_argument("probe", choices=tuple(PROBES))
    options = parser.parse_args()
    peak = [0]
    threading.Thread(target=watch, args=(peak,), daemon=True).start()
    set_quiet(True)
    for module in (heads, transformer):
        vars(module)["draw_batches"] = first_batch
    vars(ordered)["PENALTIES"] = (1.0,)
    pretraining = load_settings(PretrainConfig, "paper")
    config = load_settings(EvaluateConfig, "paper", num_seeds=1)
    config = replace(config, training=replace(config.training, epochs=1))
    torch.manual_seed(0)
    model = ScaleModel(DIM, pretraining.model).eval()
    began = time.perf_counter()
    task = make_task(FeatureStore(options.store), None, pretraining.model, pretraining)
    run_suite(task, model, config, probes=(options.probe,))
    print(json.dumps({"peak": peak[0], "seconds": round(time.perf_counter() - began, 1)}))


if __name__ == "__main__":
    main()
