"""What is wrong with the videos of a catalog, found out before hours are spent on them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from clipset.data.catalog import Catalog, Video
from clipset.decoding.damage import describe_damage
from clipset.decoding.reader import open_video
from clipset.errors import VideoError


def check_catalog(
    catalog: Catalog, on_video: Callable[[Video], None] | None = None
) -> list[tuple[str, str]]:
    """Scan every video; the ids of those with a problem, and the problem.

    `on_video` is called with each video when it has been checked.
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
    """What is wrong with one video, if anything: all packets are read, one frame is decoded."""
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
    """Which of the listed videos are there; the counts are by split."""

    listed: dict[str, int]
    present: dict[str, int]
    missing: tuple[str, ...]

    @property
    def lines(self) -> tuple[str, ...]:
        """The same in words, a line for each split."""
        return tuple(
            f"{split}: {self.present.get(split, 0)} of {count} videos are there"
            for split, count in self.listed.items()
        )


def find_coverage(catalog: Catalog) -> Coverage:
    """How much of a catalog is on the disk."""
    present = {video.id for video in only_present(catalog)}
    return Coverage(
        listed=_by_split(list(catalog)),
        present=_by_split([video for video in catalog if video.id in present]),
        missing=tuple(video.id for video in catalog if video.id not in present),
    )


def only_present(catalog: Catalog) -> Catalog:
    """The catalog without the videos whose files are missing."""
    return catalog.only(
        video
        for video in catalog
        if os.path.isfile(video.path)  # noqa: PTH113 (never raises)
    )


def _by_split(videos: list[Video]) -> dict[str, int]:
    counts = Counter(video.split or "no split" for video in videos)
    return dict(sorted(counts.items()))
