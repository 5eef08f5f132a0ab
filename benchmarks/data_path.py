"""The data path of pre-training beyond memory: random batches streamed from a large store.

A store of Kinetics-400's shape (31 clips of 768 channels, half precision) is written by the real
writer, and one epoch of batches is drawn as in pre-training: two disjoint sets of 8 clips of each
video, read through the memory map. Printed are samples a second, against the 9,225 samples a second
that the paper's GPU trains, and the growth of memory while streaming.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch is imported

import torch
from probe_memory import make_store
from record import make_parser, write_record

from clipset.features.store import open_store
from clipset.progress import set_quiet
from clipset.recipe import load_settings
from clipset.training.config import PretrainConfig
from clipset.training.distributed import SINGLE_PROCESS
from clipset.training.pretrain import open_clip_source, ssl_videos

PAPER_SPEED = 9224.65  # samples of SCALE a second, table 1


def anonymous_bytes() -> int:
    """The memory that this process has allocated; mapped pages of the store do not count."""
    text = Path("/proc/self/status").read_text()
    return 1024 * int(text.split("RssAnon:")[1].split()[0])


def main() -> None:
    """Write the store, stream an epoch, print the record."""
    parser = make_parser("data_path", __doc__)
    parser.add_argument("--videos", type=int, default=60_000)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--folder", type=Path, help="where the store is written (3 GB)")
    options = parser.parse_args()
    set_quiet(True)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        make_store(Path(folder) / "store", options.videos, options.seed)
        store = open_store(Path(folder) / "store")
        config = load_settings(PretrainConfig, "paper", batch_size=2048)
        videos = ssl_videos(store, config.ssl_split)
        source = open_clip_source(store, videos, config, in_memory=False)
        generator = torch.Generator().manual_seed(options.seed)
        before, started, num_samples = anonymous_bytes(), time.perf_counter(), 0
        for index, (size, _) in enumerate(source.batches(config, generator, SINGLE_PROCESS)):
            num_samples += size
            if index + 1 == options.batches:
                break
        seconds, grown = time.perf_counter() - started, anonymous_bytes() - before
    write_record(
        options.out,
        "data_path",
        ratios={"streamed_over_paper_gpu": num_samples / seconds / PAPER_SPEED},
        figures={
            "videos": options.videos,
            "samples_per_second": round(num_samples / seconds),
            "grown_mb": round(grown / 1e6, 1),
        },
    )


if __name__ == "__main__":
    main()
