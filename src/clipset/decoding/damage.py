"""Damaged videos: how many frames may be missing before a video is reported, or has failed."""

from __future__ import annotations

from clipset.errors import VideoError

MIN_INTACT_FRACTION = 0.95  # with this fraction of its frames, a video is not reported
MIN_USABLE_FRACTION = 0.5  # with a smaller fraction of the needed frames, a video has failed


def check_usable(*, frames_needed: int, frames_missing: int) -> None:
    """Raise VideoError if most of the needed frames were replaced by others."""
    if frames_needed - frames_missing < MIN_USABLE_FRACTION * frames_needed:
        raise VideoError(_describe_missing(frames_needed, frames_missing))


def describe_damage(
    *,
    frames_needed: int | None = None,
    frames_missing: int | None = None,
    frames_found: int | None = None,
    frames_expected: int | None = None,
    duration: float = 0.0,
    claimed_duration: float | None = None,
) -> str | None:
    """What is wrong with a usable video; None if it is intact."""
    problems = []
    max_missing_fraction = 1 - MIN_INTACT_FRACTION
    if frames_needed and frames_missing and frames_missing > max_missing_fraction * frames_needed:
        problems.append(_describe_missing(frames_needed, frames_missing))
    if (
        frames_expected
        and frames_found is not None
        and frames_found < MIN_INTACT_FRACTION * frames_expected
    ):
        problems.append(f"holds {frames_found} of {frames_expected} frames")
    if claimed_duration is not None:
        problems.append(
            f"its timestamps claim {claimed_duration:,.1f} s, which cannot be true; "
            f"its frames last {duration:,.1f} s"
        )
    return "; ".join(problems) or None


def _describe_missing(frames_needed: int, frames_missing: int) -> str:
    return f"{frames_missing} of {frames_needed} needed frames did not decode and were replaced"
