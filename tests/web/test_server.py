"""`clipset serve`: what is refused, in one line, before anything is served."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import shutil
import socket
import sys
from pathlib import Path

import pytest
from tests.miniatures import run

from clipset.errors import LockError, StoreError
from clipset.web.server import is_worth_a_line, open_listener
from clipset.web.state import ServerState


def test_a_port_in_use_and_a_missing_package_are_one_line(
    served_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_listener("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        assert run("serve", served_folder, "--port", port, "--no-browser") == 2
    error = capsys.readouterr().err
    assert error == (
        f"clipset: cannot listen on 127.0.0.1:{port}: address already in use; "
        "give another --port (0: any free one) or --host\n"
    )
    assert run("serve", served_folder, "--port", 99_999) == 2
    assert run("serve", served_folder, "--host", "no such host") == 2
    assert run("serve", served_folder, "--cache-gb", "nan") == 2
    capsys.readouterr()
    monkeypatch.setitem(sys.modules, "fastapi", None)
    assert run("serve", served_folder) == 2
    expected = "clipset: the page needs FastAPI and uvicorn; pip install 'clipset[web]'\n"
    assert capsys.readouterr().err == expected


def test_what_is_no_finished_run_is_refused(
    copied_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in (tmp_path / "nothing", tmp_path):
        assert run("serve", folder, "--port", 0, "--no-browser") == 2
    errors = capsys.readouterr().err.splitlines()
    assert "nothing not found; give the folder of a finished run" in errors[0]
    assert "is not a clipset run" in errors[1]
    assert len(errors) == 2
    shutil.rmtree(copied_folder / "vectors")
    with pytest.raises(StoreError, match="holds no vectors"):
        ServerState(copied_folder)


def test_a_run_that_is_being_written_or_served_is_refused(copied_folder: Path) -> None:
    with (copied_folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write("process 1 on here (clipset serve, since today)")
        file.flush()
        with pytest.raises(LockError, match=r"is being written by process 1 .*clipset serve"):
            ServerState(copied_folder)


def test_a_free_port_is_found() -> None:
    with open_listener("127.0.0.1", 0) as listener:
        assert listener.getsockname()[1] > 0
        assert listener.family == socket.AF_INET


def test_a_request_that_ctrl_c_cuts_off_is_not_reported_as_a_bug() -> None:
    def record(error: BaseException) -> logging.LogRecord:
        about = (type(error), error, None)
        return logging.LogRecord("uvicorn.error", logging.ERROR, "", 0, "", (), about)

    assert not is_worth_a_line(record(asyncio.CancelledError()))
    assert is_worth_a_line(record(ValueError()))
    assert is_worth_a_line(logging.LogRecord("uvicorn.error", logging.ERROR, "", 0, "", (), None))
