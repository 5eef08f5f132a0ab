"""Kills an extraction again and again, each time while there is work left.

python killer.py CATALOG STORE BACKBONE WORKERS KILLS SEED [RAY ADDRESS]

The last video is white: the watched backbone waits at it as long as there is a file `hold`, so that
an extraction cannot end before it is killed. Moments are drawn by the clips that were seen since
the start, and some milliseconds after that.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch
from tests.conftest import SMALL

from clipset.features import writer
from clipset.features.extract import extract
from clipset.progress import set_quiet
from clipset.videos.catalog import read_catalog

CLIPS = 12  # of each video
MOMENTS = (0, 0, 1, CLIPS // 2, CLIPS, CLIPS + 3, 2 * CLIPS)  # clips after which it is killed


def main() -> None:
    catalog, folder, backbone, workers, kills, seed, *address = sys.argv[1:]
    set_quiet(True)
    torch.set_num_threads(1)
    writer.COMMIT_SECONDS = 0.0
    videos = read_catalog(Path(catalog))
    config = replace(SMALL, backbone=backbone, workers=int(workers))
    chance = random.Random(int(seed))
    seen = Path(backbone.partition(":")[0]).with_name("seen")
    for _ in range(int(kills)):
        seen.write_text("")
        seen.with_name("waiting").unlink(missing_ok=True)
        child = os.fork()
        if child == 0:
            os.setsid()
            if address:
                from clipset.features.cluster import extract_on_ray

                extract_on_ray(videos, Path(folder), config, address=address[0])
            else:
                extract(videos, Path(folder), config)
            os._exit(0)
        kill(child, seen, chance)


def kill(child: int, seen: Path, chance: random.Random) -> None:
    """Wait for a random moment, make sure that the extraction still runs, and kill it."""
    clips, pause = chance.choice(MOMENTS), chance.uniform(0.0, 0.05)
    waiting, last = seen.with_name("waiting"), time.monotonic() + 60.0
    while seen.stat().st_size < clips and not waiting.exists() and time.monotonic() < last:
        time.sleep(0.001)
    time.sleep(pause)
    assert os.waitpid(child, os.WNOHANG) == (0, 0), "the extraction ended before it was killed"
    os.killpg(child, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    sys.stdout.write(f"killed after {seen.stat().st_size} clips\n")


if __name__ == "__main__":
    main()
