"""`clipset.demo.worker FOLDER SEED INDEX…`: a process that renders some of the videos.

It writes a line for each one that is done.
"""

from __future__ import annotations

import sys
from pathlib import Path

from clipset.demo.film import render_file


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
