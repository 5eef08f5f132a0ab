"""How much of a video may be missing before it is named, and before it counts as failed."""

from __future__ import annotations

from clipset.errors import VideoError

INTACT = 0.95  # a video with this fraction of its frames is not worth a word
USABLE = 0.5  # with a smaller fraction of the frames that its clips need, a video has failed


def refuse_unusable(*, frames_needed: int, frames_missing: int) -> None:
    """Raise VideoError if most of the frames that clips show had to be replaced by others."""
    if frames_needed - frames_missing < USABLE * frames_needed:
        raise VideoError(_replaced(frames_needed, frames_missing))


def describe_damage(
    *,
    frames_needed: int | None = None,
    frames_missing: int | None = None,
    frames_found: int | None = None,
    frames_expected: int | None = None,
    duration: float = 0.0,
    claimed_duration: float | None = None,
) -> str | None:
    """What is wrong with a video that can be used nevertheless; None if there is nothing to say."""
    problems = []
    if frames_needed and frames_missing and frames_missing > (1 - INTACT) * frames_needed:
        problems.append(_replaced(frames_needed, frames_missing))
    if frames_expected and frames_found is not None and frames_found < INTACT * frames_expected:
        problems.append(f"holds {frames_found} of {frames_expected} frames")
    if claimed_duration is not None:
        problems.append(
            f"its timestamps claim {claimed_duration:,.1f} s, which cannot be true; "
            f"its frames last {duration:,.1f} s"
        )
    return "; ".join(problems) or None


def _replaced(frames_needed: int, frames_missing: int) -> str:
    return f"{frames_missing} of {frames_needed} needed frames did not decode and were replaced"
