"""One press of Ctrl-C is enough, wherever Python is at that moment."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from clipset import cli
from clipset.errors import StoreError
from clipset.process.interrupts import recorded_interrupts, was_interrupted
from clipset.progress import bar, set_quiet


class PressedAtTheEnd:
    """Ctrl-C comes while this object is finalised, where Python drops the exception."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


@pytest.fixture(autouse=True)
def usual_handler() -> Iterator[None]:
    """As in a terminal, also where the tests are a job in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
    with recorded_interrupts():
        pass


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("quiet", [True, False])
def test_an_interrupt_that_python_drops_stops_the_work_at_the_next_step(quiet: bool) -> None:
    set_quiet(quiet)
    steps = []
    with (  # noqa: PT012
        recorded_interrupts(),
        pytest.raises(KeyboardInterrupt),
        bar("working", 10, "steps") as advance,
    ):
        for step in range(10):
            if step == 3:
                PressedAtTheEnd()
            steps.append(step)
            advance()
    set_quiet(False)
    assert steps == [0, 1, 2, 3]


def test_an_interrupt_is_raised_at_once_and_the_handler_is_given_back() -> None:
    with pytest.raises(KeyboardInterrupt), recorded_interrupts():
        signal.raise_signal(signal.SIGINT)
    assert was_interrupted()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_job_in_the_background_goes_on_ignoring_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with recorded_interrupts():
        signal.raise_signal(signal.SIGINT)
    assert not was_interrupted()


def test_another_thread_leaves_the_handler_alone() -> None:
    found = []

    def look() -> None:
        with recorded_interrupts():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [signal.default_int_handler]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("error", [StoreError("half written"), ImportError("half imported")])
def test_what_an_interrupt_breaks_on_its_way_is_not_called_an_error(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def verb(*_: object, **__: object) -> None:
        PressedAtTheEnd()
        raise error

    monkeypatch.setattr(cli, "app", verb)
    with pytest.raises(SystemExit) as end:
        cli.main(["list"])
    assert end.value.code == 130
    assert capsys.readouterr().err == "clipset: stopped; run the same command again to resume\n"
