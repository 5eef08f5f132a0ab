"""LabelLog: every label, span, removal, skip and undo is one line of an append-only file.

A line is on the disk (fsync) before `append` returns. A last line that was cut off by a kill or a
full disk was never acknowledged; the next `append` overwrites it.
"""

from __future__ import annotations

import errno
import math
import os
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import msgspec

from clipset.config import build, parse_json, to_mapping
from clipset.data.catalog import MISSING_VALUES
from clipset.errors import ConfigError, LabelError
from clipset.files import writing
from clipset.process.locks import exclusive
from clipset.text import normal_form, visible

LOG_NAME = "log.jsonl"
MAX_LABEL_LENGTH = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelEvent:
    """One line of the log.

    `label` names the class of a whole video, `span` that of the seconds from `start` to `end`.
    `remove` takes back one of these, `skip` a video from the queue, `undo` the event before.
    `held_out` says that a video's labels are for the score, not for training.
    """

    action: Literal["label", "span", "remove", "skip", "undo"]
    video: str = ""
    label: str | None = None
    start: float | None = None
    end: float | None = None
    held_out: bool = False
    time: str = ""

    def __post_init__(self) -> None:
        needs_label = self.action in ("label", "span")
        if (self.label is not None) != needs_label:
            raise LabelError(f"a {self.action} {'needs a' if needs_label else 'has no'} label")
        if (self.video == "") != (self.action == "undo"):
            raise LabelError(f"a {self.action} {'is of no' if self.video else 'needs a'} video")
        if self.start is None and self.end is None and self.action != "span":
            return
        start, end = self.start, self.end
        if self.action not in ("span", "remove") or start is None or end is None:
            raise LabelError(f"a {self.action} has no start or end alone, got {start} and {end}")
        if not 0 <= start < end < math.inf:
            raise LabelError(f"a span is from 0 s on and ends after its start, got {start}–{end} s")

    @property
    def span(self) -> tuple[str, float, float] | None:
        """Video, start and end; None for a whole video."""
        if self.start is None or self.end is None:
            return None
        return self.video, self.start, self.end


@dataclass(slots=True)
class LabelState:
    """What a sequence of events amounts to.

    `labels` are in the order in which the videos were first labelled. `held_out` says of every
    video that was ever labelled whether its labels are for the score.
    """

    labels: dict[str, str] = field(default_factory=dict)
    spans: dict[tuple[str, float, float], str] = field(default_factory=dict)
    skipped: dict[str, None] = field(default_factory=dict)
    held_out: dict[str, bool] = field(default_factory=dict)

    def apply(self, event: LabelEvent) -> None:
        """Change the state by an event other than an undo."""
        if event.action == "skip":
            self.skipped[event.video] = None
        elif event.action == "remove":
            if event.span is not None:
                self.spans.pop(event.span, None)
            else:
                self.labels.pop(event.video, None)
        else:
            assert event.label is not None
            self.skipped.pop(event.video, None)
            if event.span is not None:
                self.spans[event.span] = event.label
            else:
                self.labels[event.video] = event.label
                self.held_out.setdefault(event.video, event.held_out)


class LabelLog:
    """The log in a folder; from the first event on, other processes cannot write to it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / LOG_NAME
        self._lock = ExitStack()
        self._is_locked = False
        self._size = self._end = 0  # of the file, and of its whole lines
        self._separator = b""  # before the next line
        self._read()

    def refresh(self) -> None:
        """Lock the log, and read it again if another process has written to it meanwhile."""
        if not self._is_locked:
            self._lock.enter_context(exclusive(self.folder))
            self._is_locked = True
        if self._size != (self.path.stat().st_size if self.path.exists() else 0):
            self._read()

    def append(self, event: LabelEvent) -> None:
        """Write an event to the disk, then apply it; after a failed write nothing has changed."""
        self.refresh()
        event = replace(event, time=datetime.now(UTC).isoformat(timespec="milliseconds"))
        line = self._separator + _encode_event(event)
        with writing(self.path):
            _write_at(self.path, line, self._end)
        self._end += len(line)
        self._size, self._separator = self._end, b""
        self._apply(event)

    def close(self) -> None:
        """Release the lock."""
        self._is_locked = False
        self._lock.close()

    def _read(self) -> None:
        """Replay the file."""
        self.state, self.history, self.num_events = LabelState(), list[LabelEvent](), 0
        try:
            content = self.path.read_bytes() if self.path.exists() else b""
        except OSError as error:
            raise LabelError(f"cannot read {self.path}: {error.strerror}") from None
        *lines, tail = content.split(b"\n")
        for number, line in enumerate(lines, start=1):
            self._apply(_decode_event(line, f"line {number} of {self.path}"))
        self._size, self._separator = len(content), b""
        try:  # the last line may lack no more than its end
            self._apply(_decode_event(tail, str(self.path)))
            self._end, self._separator = len(content), b"\n"
        except LabelError:
            self._end = len(content) - len(tail)

    def _apply(self, event: LabelEvent) -> None:
        self.num_events += 1
        if event.action != "undo":
            self.history.append(event)
            self.state.apply(event)
        elif self.history:
            self.history.pop()
            self.state = LabelState()
            for earlier in self.history:
                self.state.apply(earlier)


def clean_label(text: str) -> str:
    """A label as it is stored: without spaces around it, in one Unicode form."""
    label = normal_form(text)
    if not label or len(label) > MAX_LABEL_LENGTH:
        raise LabelError(f"a label has 1 to {MAX_LABEL_LENGTH} characters, got {len(label)}")
    if label in MISSING_VALUES:
        raise LabelError(f"the label {label!r} means that there is none; use another name")
    if visible(label) != label or not _is_encodable(label):
        raise LabelError(f"a label has no control characters, got {label!a}; use another name")
    return label


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _encode_event(event: LabelEvent) -> bytes:
    """A line of JSON without the fields that are not set."""
    unset = {item.name: item.default for item in fields(LabelEvent)}
    content = {name: value for name, value in to_mapping(event).items() if value != unset[name]}
    return msgspec.json.encode(content) + b"\n"


def _decode_event(line: bytes, source: str) -> LabelEvent:
    try:
        return build(LabelEvent, parse_json(line, source), source)
    except ConfigError as error:
        raise LabelError(f"{error}; correct this line or remove it") from None
    except LabelError as error:
        raise LabelError(f"{source}: {error}; correct this line or remove it") from None


def _write_at(path: Path, content: bytes, offset: int) -> None:
    """Replace what follows `offset` in a file, and flush it to the disk; all of it or nothing."""
    is_new = not path.exists()
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        os.ftruncate(descriptor, offset)
        if os.pwrite(descriptor, content, offset) != len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(descriptor)
        if is_new:
            _sync_folder(path.parent)
    except OSError:
        with suppress(OSError):
            os.ftruncate(descriptor, offset)
        raise
    finally:
        os.close(descriptor)


def _sync_folder(folder: Path) -> None:
    """Flush the list of a folder's files, without which a new file may be lost."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
