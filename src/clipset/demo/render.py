"""Render the demo's videos into a folder, and go on where an earlier try stopped."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

from clipset.config import read_json, write_json
from clipset.data.catalog import Catalog, Video
from clipset.demo.film import render_file
from clipset.demo.story import class_of, video_id
from clipset.errors import ConfigError, RunError
from clipset.isolation import python_command

VERSION = 1  # of what is drawn: another version, other pixels
MARKER = "demo.json"
FEW = 8  # so few videos for each process are not worth starting one


def render_demo(
    folder: Path,
    *,
    seed: int = 0,
    videos: int = 240,
    workers: int | None = None,
    on_video: Callable[[], None] | None = None,
) -> Catalog:
    """Render the demo's videos as `folder/<class>/<number>.mp4`; those that are there are kept.

    `on_video` is called once for each video that is there or has been rendered.
    """
    if videos < 1 or seed < 0:
        raise ConfigError(
            f"the demo needs at least 1 video and a seed of 0 or more, got {videos} and {seed}"
        )
    marker = {"made_by": "clipset demo", "version": VERSION, "seed": seed, "videos": videos}
    try:
        _claim(folder, marker)
        for _ in _render_missing(folder, seed, videos, workers or os.cpu_count() or 1):
            if on_video is not None:
                on_video()
        write_json(folder / MARKER, marker | {"whole": True})
    except OSError as error:
        reason = error.strerror or str(error)
        raise RunError(
            f"cannot write the demo's videos to {folder} ({reason}); give another folder"
        ) from None
    return _catalog(folder, videos)


def _catalog(folder: Path, videos: int) -> Catalog:
    found = [
        Video(id=video_id(index), path=folder / video_id(index), label=class_of(index))
        for index in range(videos)
    ]
    return Catalog(name="demo", videos=tuple(sorted(found, key=lambda video: video.id)))


def _claim(folder: Path, marker: dict[str, Any]) -> None:
    """Mark an empty folder as this rendering's; refuse one that holds something else."""
    folder.mkdir(parents=True, exist_ok=True)
    if not any(folder.iterdir()):
        write_json(folder / MARKER, marker | {"whole": False})
    if not (folder / MARKER).is_file():
        raise RunError(
            f"{folder} holds something else than demo videos (no {MARKER}); give an empty folder"
        )
    found = read_json(folder / MARKER)
    found = found if isinstance(found, dict) else {}
    for key, wanted in marker.items():
        if found.get(key) != wanted:
            raise RunError(
                f"{folder} holds another rendering ({key} {found.get(key)!r}, wanted {wanted!r}); "
                "give another folder, or delete this one"
            )


def _render_missing(folder: Path, seed: int, videos: int, workers: int) -> Iterator[None]:
    """Render what is not there yet; yields once for each video, there or new."""
    missing = []
    for index in range(videos):
        path = folder / video_id(index)
        path.parent.mkdir(exist_ok=True)
        if path.is_file():
            yield
        else:
            missing.append(index)
    workers = min(workers, len(missing) // FEW)
    if workers > 1:
        yield from _render_apart(folder, seed, missing, workers)
        return
    for index in missing:
        render_file(folder, seed, index)
        yield


def _render_apart(folder: Path, seed: int, missing: list[int], workers: int) -> Iterator[None]:
    """Render over processes, each with its share of the videos and a line for each one done."""
    command = python_command("clipset.demo.worker", str(folder.absolute()), str(seed))
    children = [
        subprocess.Popen([*command, *map(str, missing[first::workers])], stdout=subprocess.PIPE)
        for first in range(workers)
    ]
    try:
        for lines in zip_longest(*(child.stdout or () for child in children)):
            yield from (None for line in lines if line is not None)
        codes = [child.wait() for child in children]
    finally:
        for child in children:
            child.terminate()  # does nothing to one that has ended
            child.communicate()
    if any(codes):
        raise RunError(
            f"a process that renders the demo ended with exit code {max(codes, key=abs)}; "
            "run it again, it goes on where it stopped"
        )
