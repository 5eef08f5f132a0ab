"""The demo's videos in a folder; an interrupted rendering is resumed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

from clipset.config import read_json
from clipset.data.catalog import Catalog, Video
from clipset.demo_videos.rendering import class_of, demo_video_id, render_file
from clipset.errors import ConfigError, RunError
from clipset.files import write_json
from clipset.process.isolation import python_command

VERSION = 3  # of the rendering: another version, other pixels
MARKER = "demo.json"
MIN_VIDEOS_PER_WORKER = 8  # a process is not worth starting for fewer


def render_demo(
    folder: Path,
    *,
    seed: int = 0,
    videos: int = 200,
    workers: int | None = None,
    on_video: Callable[[], None] | None = None,
) -> Catalog:
    """Render the demo's videos as `folder/<class>/<number>.mp4`; existing files are kept.

    `on_video` is called once for each video, existing or new.
    """
    if videos < 1 or seed < 0:
        raise ConfigError(
            f"the demo needs at least 1 video and a seed of 0 or more, got {videos} and {seed}"
        )
    marker = {"made_by": "clipset demo", "version": VERSION, "seed": seed, "videos": videos}
    try:
        _claim_folder(folder, marker)
        for _ in _render_pending(folder, seed, videos, workers or os.cpu_count() or 1):
            if on_video is not None:
                on_video()
        write_json(folder / MARKER, marker | {"whole": True})
    except OSError as error:
        reason = error.strerror or str(error)
        raise RunError(
            f"cannot write the demo's videos to {folder} ({reason}); give another folder"
        ) from None
    labels = {demo_video_id(index): class_of(index) for index in range(videos)}
    return Catalog(
        name="demo",
        videos=tuple(Video(id=id, path=folder / id, label=labels[id]) for id in sorted(labels)),
    )


def _claim_folder(folder: Path, marker: dict[str, Any]) -> None:
    """Mark an empty folder with this rendering; refuse one with other content."""
    folder.mkdir(parents=True, exist_ok=True)
    if not any(folder.iterdir()):
        write_json(folder / MARKER, marker | {"whole": False})
    if not (folder / MARKER).is_file():
        raise RunError(
            f"{folder} is not empty and not a folder of demo videos (no {MARKER}); "
            "give an empty folder"
        )
    content = read_json(folder / MARKER)
    content = content if isinstance(content, dict) else {}
    for key, expected in marker.items():
        if content.get(key) != expected:
            raise RunError(
                f"{folder} holds another rendering ({key} is {content.get(key)!r}, not "
                f"{expected!r}); give another folder, or delete this one"
            )


def _render_pending(folder: Path, seed: int, videos: int, workers: int) -> Iterator[None]:
    """Render the pending videos; yields once for each video, existing or new."""
    pending_indices = []
    for video_index in range(videos):
        video_path = folder / demo_video_id(video_index)
        video_path.parent.mkdir(exist_ok=True)
        if video_path.is_file():
            yield
        else:
            pending_indices.append(video_index)
    workers = min(workers, len(pending_indices) // MIN_VIDEOS_PER_WORKER)
    if workers > 1:
        yield from _render_parallel(folder, seed, pending_indices, workers)
        return
    for video_index in pending_indices:
        render_file(folder, seed, video_index)
        yield


def _render_parallel(
    folder: Path, seed: int, pending_indices: list[int], workers: int
) -> Iterator[None]:
    """Render in worker processes, which print a line after each video."""
    command = python_command("clipset.demo_videos.rendering", str(folder.absolute()), str(seed))
    processes = [
        subprocess.Popen(
            [*command, *map(str, pending_indices[first::workers])], stdout=subprocess.PIPE
        )
        for first in range(workers)
    ]
    try:
        for video_lines in zip_longest(*(process.stdout or () for process in processes)):
            yield from (None for line in video_lines if line is not None)
        exit_codes = [process.wait() for process in processes]
    finally:
        for process in processes:
            process.terminate()  # no effect on a finished process
            process.communicate()
    if any(exit_codes):
        raise RunError(
            f"a worker that renders the demo ended with exit code {max(exit_codes, key=abs)}; "
            "run the same command again to resume"
        )
