"""No acknowledged label is ever lost, whatever happens to the process or the disk."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clipset.errors import LabelError, LockError, OutputError
from clipset.labelling import LabelEvent, LabelLog, clean_label

VIDEOS, LABELS = st.sampled_from("abc"), st.sampled_from(["run", "=1+1", "lächeln", "跑"])
SPANS = st.sampled_from([(0.0, 1.5), (2.0, 3.0)])
EVENTS = st.one_of(
    st.builds(
        lambda v, n, h: LabelEvent(action="label", video=v, label=n, held_out=h),
        VIDEOS, LABELS, st.booleans(),
    ),
    st.builds(
        lambda v, n, s: LabelEvent(action="span", video=v, label=n, start=s[0], end=s[1]),
        VIDEOS, LABELS, SPANS,
    ),
    st.builds(lambda v: LabelEvent(action="remove", video=v), VIDEOS),
    st.builds(
        lambda v, s: LabelEvent(action="remove", video=v, start=s[0], end=s[1]), VIDEOS, SPANS
    ),
    st.builds(lambda v: LabelEvent(action="skip", video=v), VIDEOS),
    st.just(LabelEvent(action="undo")),
)  # fmt: skip
Model = tuple[dict[str, str], dict[tuple[str, float, float], str], set[str], dict[str, bool]]


def step(model: Model, event: LabelEvent) -> Model:
    """The same as the log's state, with plain dictionaries that are never changed."""
    labels, spans, skipped, roles = model
    key = (event.video, event.start, event.end)
    if event.action == "label":
        roles = {event.video: event.held_out} | roles
        return {**labels, event.video: event.label}, spans, skipped - {event.video}, roles
    if event.action == "span":
        return labels, {**spans, key: event.label}, skipped - {event.video}, roles
    if event.action == "skip":
        return labels, spans, skipped | {event.video}, roles
    if event.start is None:
        return {k: v for k, v in labels.items() if k != event.video}, spans, skipped, roles
    return labels, {k: v for k, v in spans.items() if k != key}, skipped, roles


def content(log: LabelLog) -> Model:
    state = log.state
    return dict(state.labels), dict(state.spans), set(state.skipped), dict(state.held_out)


@settings(max_examples=40, deadline=None)
@given(st.lists(EVENTS, max_size=12))
def test_replaying_any_events_gives_the_state_of_a_plain_model(events: list[LabelEvent]) -> None:
    with TemporaryDirectory() as folder:
        log, states = LabelLog(Path(folder)), [({}, {}, set(), {})]
        for event in events:
            log.append(event)
            if event.action != "undo":
                states.append(step(states[-1], event))
            elif len(states) > 1:
                states.pop()
            assert content(log) == states[-1]
        log.close()
        again = LabelLog(Path(folder))
        assert content(again) == states[-1]
        assert again.num_events == len(events)


def write_three(folder: Path) -> Path:
    log = LabelLog(folder)
    for video in "abc":
        log.append(LabelEvent(action="label", video=video, label="run"))
    log.close()
    return log.path


def test_a_log_cut_at_any_byte_keeps_every_whole_line_and_goes_on(tmp_path: Path) -> None:
    path = write_three(tmp_path)
    whole = path.read_bytes()
    for size in (*range(0, len(whole), 13), whole.index(b"\n"), len(whole) - 1):
        path.write_bytes(whole[:size])
        log = LabelLog(tmp_path)
        num_whole = whole[: size + 1].count(b"\n")  # a line without its end is whole, too
        assert list(log.state.labels) == list("abc")[:num_whole]
        log.append(LabelEvent(action="label", video="d", label="sit"))
        log.close()
        assert list(LabelLog(tmp_path).state.labels) == [*list("abc")[:num_whole], "d"]


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    path = write_three(tmp_path)
    lines = path.read_text().splitlines()
    for bad in ("{", '{"action": "fly"}', '{"action": "label", "video": "a"}'):
        path.write_text("\n".join([lines[0], bad, lines[2], ""]))
        with pytest.raises(LabelError, match=r"line 2 of .*log\.jsonl.*correct this line"):
            LabelLog(tmp_path)


@pytest.mark.parametrize("failing", ["pwrite", "fsync"])
def test_a_full_disk_loses_nothing_that_was_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    path = write_three(tmp_path)
    before, log = path.read_bytes(), LabelLog(tmp_path)
    write = os.pwrite

    def half(descriptor: int, data: bytes, offset: int) -> int:
        return write(descriptor, data[: len(data) // 2], offset)

    def fail(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, failing, half if failing == "pwrite" else fail)
        with pytest.raises(OutputError, match="No space left on device; free disk space"):
            log.append(LabelEvent(action="label", video="d", label="sit"))
    assert path.read_bytes() == before
    assert list(log.state.labels) == list("abc")
    log.append(LabelEvent(action="label", video="d", label="sit"))
    assert list(LabelLog(tmp_path).state.labels) == list("abcd")


def test_while_another_process_writes_the_log_is_read_only(tmp_path: Path) -> None:
    write_three(tmp_path)
    log = LabelLog(tmp_path)
    with (tmp_path / ".lock").open("w") as file:
        file.write("process 1 on elsewhere")
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(LockError, match="is being written by process 1 on elsewhere"):
            log.append(LabelEvent(action="undo"))
    assert len(log.state.labels) == 3
    log.append(LabelEvent(action="undo"))
    assert len(log.state.labels) == 2


def test_events_of_another_process_are_read_before_writing(tmp_path: Path) -> None:
    early = LabelLog(tmp_path)
    write_three(tmp_path)
    assert early.state.labels == {}
    early.append(LabelEvent(action="undo"))
    assert list(early.state.labels) == ["a", "b"]


def test_a_link_in_place_of_the_log_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("mine")
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels" / "log.jsonl").symlink_to(tmp_path / "other")
    log = LabelLog(tmp_path / "labels")
    with pytest.raises(OutputError):
        log.append(LabelEvent(action="skip", video="a"))
    assert (tmp_path / "other").read_text() == "mine"


@pytest.mark.parametrize("text", ["", "  ", "x" * 201, "NaN", "a\nb", "a\u202eb", "\ud800"])
def test_labels_that_no_table_could_hold_are_refused(text: str) -> None:
    with pytest.raises(LabelError):
        clean_label(text)


def test_labels_have_one_spelling() -> None:
    assert clean_label(" la\u0308cheln ") == "lächeln"


@pytest.mark.parametrize("times", [(1.0, 1.0), (-1.0, 2.0), (2.0, None), (0.0, float("inf"))])
def test_spans_that_cannot_be_are_refused(times: tuple[float, float | None]) -> None:
    with pytest.raises(LabelError):
        LabelEvent(action="span", video="a", label="run", start=times[0], end=times[1])
