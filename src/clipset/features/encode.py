"""Shows the clips of videos to a backbone."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from clipset.backbones.runtime import MAX_CHUNK, Engine, PendingFeatures
from clipset.errors import BackboneError
from clipset.features.child import Outcome
from clipset.features.cutting import CutFacts
from clipset.features.ledger import Entry
from clipset.features.pieces import join_rows

Named = tuple[str, UInt8[Tensor, "_ T 3 S S"]]
"""A video's id and the pixels of its clips."""


@dataclass(frozen=True, slots=True)
class ClipRows:
    """What is kept of one video, random clips first."""

    features: Float[np.ndarray, "V D"]
    boxes: Float[np.ndarray, "V 7"]
    times: Float[np.ndarray, "V T"]


@dataclass(frozen=True, slots=True)
class Seen:
    """A video that the backbone saw, or the reason why it did not."""

    place: int
    facts: CutFacts | None = None
    rows: ClipRows | None = None
    reason: str | None = None
    seconds: float | None = None
    transient: bool = False  # whether what failed may go well at the next try

    def note(self, entry: Entry) -> Entry:
        """The video's entry with what is now known of it, but for its rows' place."""
        if self.facts is None:
            return replace(entry, status="failed", reason=self.reason, transient=self.transient)
        return replace(
            entry,
            status="done",
            reason=None,
            transient=False,
            file=self.facts.file,
            random_count=self.facts.random_clips,
            regular_count=self.facts.regular_clips,
            duration=self.facts.duration,
            width=self.facts.width,
            height=self.facts.height,
            frames_expected=self.facts.frames_expected,
            frames_found=self.facts.frames_found,
            frames_missing=self.facts.frames_missing,
            seconds=self.seconds,
            frames_needed=self.facts.frames_needed,
            claimed_duration=self.facts.claimed_duration,
        )


Finish = Callable[[float], list[Seen]]
"""Waits for the features of some videos; given when the videos before were finished."""


def look(
    engine: Engine,
    outcomes: Iterable[Outcome],
    ids: Sequence[str],
    *,
    isolate: bool = False,
) -> Iterator[Seen]:
    """Encode the clips; the pieces of a video are joined."""
    return join_pieces(look_at_pieces(engine, outcomes, ids, isolate=isolate))


def look_at_pieces(
    engine: Engine,
    outcomes: Iterable[Outcome],
    ids: Sequence[str],
    *,
    isolate: bool = False,
) -> Iterator[Seen]:
    """Encode the clips; a card gets those of several videos at once.

    With `isolate`, a video that the backbone cannot encode fails alone; otherwise it ends the work.
    """
    waiting: list[Outcome] = []
    begun: deque[Finish] = deque()
    clips, finished = 0, 0.0
    for outcome in outcomes:
        if outcome.cut is None:
            yield Seen(outcome.place, reason=outcome.reason, transient=outcome.transient)
            continue
        waiting.append(outcome)
        clips += len(outcome.cut.pixels)
        if engine.device == "cpu" or clips >= MAX_CHUNK:
            begun.append(_begin(engine, waiting, ids, isolate))
            waiting, clips = [], 0
        if len(begun) > 1:  # the next one keeps the cores busy while this one is finished
            seen, finished = begun.popleft()(finished), time.perf_counter()
            yield from seen
    if waiting:
        begun.append(_begin(engine, waiting, ids, isolate))
    while begun:
        seen, finished = begun.popleft()(finished), time.perf_counter()
        yield from seen


def join_pieces(pieces: Iterable[Seen]) -> Iterator[Seen]:
    """Videos of their pieces; one piece that failed stands for its whole video."""
    waiting: dict[int, list[Seen]] = {}
    failed: set[int] = set()
    for seen in pieces:
        if seen.facts is None:
            failed.add(seen.place)
            waiting.pop(seen.place, None)
            yield seen
        elif seen.facts.pieces == 1:
            yield seen
        elif seen.place not in failed:
            parts = waiting.setdefault(seen.place, [])
            parts.append(seen)
            if len(parts) == seen.facts.pieces:
                yield _join(waiting.pop(seen.place))


def _join(parts: Sequence[Seen]) -> Seen:
    facts = [part.facts for part in parts if part.facts is not None]
    clips = [clip for each in facts for clip in each.clips or ()]
    whole = replace(
        facts[0],
        frames_missing=max(each.frames_missing for each in facts),
        frames_needed=max(each.frames_needed for each in facts),
        piece=0,
        pieces=1,
        clips=None,
    )
    rows = join_rows([part.rows for part in parts if part.rows is not None], clips)
    seconds = sum(part.seconds or 0.0 for part in parts)
    return Seen(parts[0].place, facts=whole, rows=rows, seconds=seconds)


def _begin(
    engine: Engine, outcomes: Sequence[Outcome], ids: Sequence[str], isolate: bool
) -> Finish:
    """Give some videos to the backbone."""
    cuts = [(outcome.place, outcome.cut) for outcome in outcomes if outcome.cut is not None]
    videos = [(ids[place], cut.pixels) for place, cut in cuts]
    began = time.perf_counter()
    answer = engine.start(_join_clips(videos))

    def finish(before: float) -> list[Seen]:
        try:
            features = _features(engine, videos, answer)
        except BackboneError as error:
            if not isolate:
                raise
            if len(outcomes) > 1:
                alone = [_begin(engine, [each], ids, isolate)(before) for each in outcomes]
                return [seen for [seen] in alone]
            [(place, _)] = cuts
            return [Seen(place, reason=str(error).removeprefix(f"{ids[place]}: "))]
        seconds = (time.perf_counter() - max(began, before)) / len(cuts)
        found = []
        for (place, cut), rows in zip(cuts, features, strict=True):
            kept = ClipRows(rows.numpy(), cut.boxes, cut.times)
            found.append(Seen(place, facts=cut.facts, rows=kept, seconds=seconds))
        return found

    return finish


def _features(
    engine: Engine, videos: Sequence[Named], answer: PendingFeatures
) -> Sequence[Float[Tensor, "_ D"]]:
    """The features of each video; an error names the video that it is about."""
    try:
        features = answer()
    except BackboneError as error:
        if len(videos) == 1:
            raise BackboneError(f"{videos[0][0]}: {error}") from None
        return [_features(engine, [each], engine.start(each[1]))[0] for each in videos]
    parts: tuple[Tensor, ...] = features.split([len(pixels) for _, pixels in videos])
    return parts


def _join_clips(videos: Sequence[Named]) -> UInt8[Tensor, "_ T 3 S S"]:
    return videos[0][1] if len(videos) == 1 else torch.cat([pixels for _, pixels in videos])
