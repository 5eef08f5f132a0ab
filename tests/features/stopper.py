"""Stops an extraction again and again, each time while there is work left.

python stopper.py HOW CATALOG STORE BACKBONE WORKERS TIMES SEED [RAY ADDRESS]

HOW is `kill` or `interrupt` (Ctrl-C). The last video is white: the watched backbone waits at it as
long as there is a file `hold`, so that an extraction cannot end before it is stopped. Moments are
drawn by the clips that were seen since the start, and some milliseconds after that.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from tests.conftest import SMALL

from clipset import cli
from clipset.data.catalog import read_catalog_table
from clipset.features import writer
from clipset.features.extract import extract
from clipset.progress import set_quiet

CLIPS = 12  # of each video
MOMENTS = (0, 0, 1, CLIPS // 2, CLIPS, CLIPS + 3, 2 * CLIPS)  # clips after which it is stopped
OPTIONS = "--frames 2 --size 32 --set=extract.stride=4 --set=extract.engine=torch --quiet"
OPTIONS += " --set=extract.sampling.num_clips=8"
OPTIONS += " --set=extract.sampling.num_times=2 --set=extract.sampling.num_crops=2"
ENDS = {"kill": (signal.SIGKILL, -signal.SIGKILL), "interrupt": (signal.SIGINT, 130)}


def main() -> None:
    how, catalog, folder, backbone, workers, times, seed, *address = sys.argv[1:]
    set_quiet(True)
    torch.set_num_threads(1)
    writer.COMMIT_SECONDS = 0.0
    chance = random.Random(int(seed))
    seen = Path(backbone.partition(":")[0]).with_name("seen")

    def work() -> None:
        if how == "interrupt":
            words = ["extract", catalog, "--out", folder, "--backbone", backbone]
            cli.main([*words, "--workers", workers, *OPTIONS.split()])
            return
        videos, config = read_catalog_table(Path(catalog)), replace(SMALL, backbone=backbone)
        if address:
            from clipset.features.cluster import extract_on_ray

            extract_on_ray(videos, Path(folder), config, address=address[0])
        else:
            extract(videos, Path(folder), replace(config, workers=int(workers)))

    for _ in range(int(times)):
        seen.write_text("")
        seen.with_name("waiting").unlink(missing_ok=True)
        stop(start(work), *ENDS[how], seen, chance)


def start(work: Callable[[], None]) -> int:
    """Work in a process and a session of its own."""
    child = os.fork()
    if child == 0:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        code = 0
        try:
            work()
        except SystemExit as end:
            code = int(str(end.code))
        except KeyboardInterrupt:  # before the command took over; Python ends by the signal, too
            code = 130
        finally:
            os._exit(code)
    return child


def stop(child: int, number: int, expected: int, seen: Path, chance: random.Random) -> None:
    """Wait for a random moment, make sure that the extraction still runs, and stop it."""
    clips, pause = chance.choice(MOMENTS), chance.uniform(0.0, 0.05)
    waiting, last = seen.with_name("waiting"), time.monotonic() + 60.0
    while os.getpgid(child) != child:  # until it has its own session
        time.sleep(0.001)
    while seen.stat().st_size < clips and not waiting.exists() and time.monotonic() < last:
        time.sleep(0.001)
    time.sleep(pause)
    assert os.waitpid(child, os.WNOHANG) == (0, 0), "the extraction ended before it was stopped"
    os.killpg(child, number)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code == expected, f"ended with {code}, not {expected}"
    sys.stdout.write(f"stopped after {seen.stat().st_size} clips\n")


if __name__ == "__main__":
    main()
