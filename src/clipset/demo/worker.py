"""`python -m clipset.demo.worker FOLDER SEED INDEX…`: a process that renders some of the videos.

It writes a line for each one that is done.
"""

from __future__ import annotations

import sys
from pathlib import Path

from clipset.config import write_atomic
from clipset.demo.film import render_video
from clipset.demo.story import video_id


def render_file(folder: Path, seed: int, index: int) -> None:
    """Render one video into the folder; a file under its final name is always whole."""
    write_atomic(folder / video_id(index), render_video(seed, index))


def main(folder: str, seed: str, *indices: str) -> None:
    """Render these videos, one after the other."""
    for index in indices:
        render_file(Path(folder), int(seed), int(index))
        sys.stdout.write(f"{index}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:
        sys.exit(str(error))
