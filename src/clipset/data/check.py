"""Checks of a catalog before extraction: missing files, and files that are not intact videos."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from clipset.data.catalog import Catalog, Video
from clipset.decoding.damage import describe_damage
from clipset.decoding.reader import open_video
from clipset.errors import VideoError


def check_catalog(
    catalog: Catalog, on_video: Callable[[Video], None] | None = None
) -> list[tuple[str, str]]:
    """Scan every video; the ids and problems of those with one.

    `on_video` is called after each video.
    """
    problems = []
    for video in catalog:
        problem = find_problem(video)
        if problem is not None:
            problems.append((video.id, problem))
        if on_video is not None:
            on_video(video)
    return problems


def find_problem(video: Video) -> str | None:
    """The problem of a video, or None: reads all packets and decodes one frame."""
    try:
        with open_video(video.path, end=video.end) as reader:
            return describe_damage(
                frames_found=reader.frames_in_file,
                frames_expected=reader.info.expected_frames,
                duration=reader.info.duration,
                claimed_duration=reader.info.claimed_duration,
            )
    except VideoError as error:
        return str(error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Listed and existing videos of each split, and the ids of missing ones."""

    listed: dict[str, int]
    existing: dict[str, int]
    missing: tuple[str, ...]

    @property
    def lines(self) -> tuple[str, ...]:
        """A line of text for each split."""
        return tuple(
            f"{split}: {self.existing.get(split, 0)} of {count} videos found"
            for split, count in self.listed.items()
        )


def find_coverage(catalog: Catalog) -> Coverage:
    """How many videos of a catalog exist."""
    is_file = os.path.isfile  # never raises, unlike Path.is_file
    existing = [video for video in catalog if is_file(video.path)]
    existing_ids = {video.id for video in existing}
    return Coverage(
        listed=_count_by_split(catalog),
        existing=_count_by_split(existing),
        missing=tuple(video.id for video in catalog if video.id not in existing_ids),
    )


def _count_by_split(videos: Iterable[Video]) -> dict[str, int]:
    counts = Counter(video.split or "no split" for video in videos)
    return dict(sorted(counts.items()))
