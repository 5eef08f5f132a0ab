"""Extract a folder of long videos and print the peak kilobytes of this process and each worker.

    python benchmarks/peak_memory.py videos store --backbone efficientnet_lite0

benchmarks/extract.py and the test with an hour of video run it as a separate process. Linux only.
"""

from __future__ import annotations

import argparse
import contextlib
import threading
import time
from pathlib import Path

from clipset.clips.config import Sampling
from clipset.data.catalog import read_catalog
from clipset.features.config import ExtractConfig
from clipset.features.extract import extract
from clipset.progress import set_quiet


def watch(peaks: dict[str, int]) -> None:
    """Record the peaks, for ever.

    `resource` is of no use: a process inherits the peak of its parent.
    """
    while True:
        workers = ""
        with contextlib.suppress(OSError):
            workers = " ".join(p.read_text() for p in Path("/proc/self/task").glob("*/children"))
        for process in ("self", *workers.split()):
            with contextlib.suppress(OSError, IndexError, ProcessLookupError):
                lines = Path(f"/proc/{process}/status").read_text().split("VmHWM:")[1]
                peaks[process] = int(lines.split()[0])
        time.sleep(0.02)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("videos", type=Path)
    parser.add_argument("store", type=Path)
    parser.add_argument("--backbone", default=ExtractConfig().backbone)
    parser.add_argument("--frames", type=int)
    parser.add_argument("--size", type=int)
    parser.add_argument("--workers", type=int)
    options = parser.parse_args()
    peaks: dict[str, int] = {}
    threading.Thread(target=watch, args=(peaks,), daemon=True).start()
    set_quiet(True)
    config = ExtractConfig(
        backbone=options.backbone,
        frames=options.frames,
        size=options.size,
        workers=options.workers,
        sampling=Sampling(clips_per_minute=2.0, times_per_minute=0.5),
    )
    store = extract(read_catalog(options.videos), options.store, config)
    if store.failed:
        parser.error(f"{store.failed[0].id}: {store.failed[0].reason}")
    print(*peaks.values())


if __name__ == "__main__":
    main()
