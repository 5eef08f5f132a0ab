"""Damaged videos: how many frames may be missing before a video is reported, or has failed."""

from __future__ import annotations

MIN_INTACT_FRACTION = 0.95  # with this fraction of its frames, a video is not reported
MIN_USABLE_FRACTION = 0.5  # with a smaller fraction of the needed frames, a video has failed


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
    num_needed, num_missing = frames_needed or 0, frames_missing or 0
    if num_missing > (1 - MIN_INTACT_FRACTION) * num_needed:
        problems.append(describe_missing(num_needed, num_missing))
    if frames_found is not None and frames_found < MIN_INTACT_FRACTION * (frames_expected or 0):
        problems.append(f"holds {frames_found} of {frames_expected} frames")
    if claimed_duration is not None:
        problems.append(
            f"its timestamps claim {claimed_duration:,.1f} s, which cannot be true; "
            f"its frames last {duration:,.1f} s"
        )
    return "; ".join(problems) or None


def describe_missing(frames_needed: int, frames_missing: int) -> str:
    """What is wrong with a video of which some frames did not decode."""
    return f"{frames_missing} of {frames_needed} needed frames did not decode and were replaced"
