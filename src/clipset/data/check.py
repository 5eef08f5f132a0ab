"""Checks of a catalog before extraction: missing files, and files that are not intact videos."""

from __future__ import annotations

import os
from collections import Counter

from clipset.data.catalog import Catalog, Video
from clipset.decoding.damage import describe_damage
from clipset.decoding.reader import open_video
from clipset.errors import VideoError


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


def find_missing(catalog: Catalog) -> tuple[list[str], list[str]]:
    """The ids of videos whose files do not exist, and a line of text for each split."""
    missing = [v for v in catalog if not os.path.isfile(v.path)]  # noqa: PTH113 (never raises)
    num_listed = Counter(video.split or "no split" for video in catalog)
    num_missing = Counter(video.split or "no split" for video in missing)
    lines = [
        f"{split}: {count - num_missing[split]} of {count} videos found"
        for split, count in sorted(num_listed.items())
    ]
    return [video.id for video in missing], lines
