"""An address without a Ray cluster is told from one with it at once, in one line."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from clipset import cli
from clipset.features import cluster

pytest.importorskip("ray")
pytestmark = pytest.mark.filterwarnings("ignore")


def one_line(address: str, videos: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What the command says about an address."""
    words = ["extract", str(videos), "--out", str(folder), "--ray", address, "--size", "32"]
    with pytest.raises(SystemExit) as end:
        cli.main([*words, "--set=extract.preset=paper"])
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said.strip().removeprefix("clipset: ")


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_an_address_where_nobody_is_ends_in_one_line(
    scheme: str, small_videos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]  # nobody listens there
        address = f"{scheme}127.0.0.1:{port}"
        said = one_line(address, small_videos, tmp_path / "store", capsys)
    assert said == f"no Ray cluster at {address!r}: connection refused"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [(b"HTTP/1.0 400 Bad request\r\n", "another program answers"), (None, "timed out")],
)
def test_an_address_where_another_program_is_ends_in_one_line(
    answer: bytes | None,
    reason: str,
    small_videos: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster, "CONNECT_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"

        def serve() -> None:
            visitor, _ = server.accept()
            with visitor:
                while visitor.recv(100):
                    if answer:
                        visitor.sendall(answer)
                        break

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        said = one_line(address, small_videos, tmp_path / "store", capsys)
        thread.join()
    assert said == f"no Ray cluster at {address!r}: {reason}"


@pytest.mark.parametrize("address", ["nonsense", "host.invalid:6379", "127.0.0.1:99999"])
def test_an_address_that_means_nothing_ends_in_one_line(
    address: str, small_videos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = one_line(address, small_videos, tmp_path / "store", capsys)
    assert said.startswith(f"no Ray cluster at {address!r}: ")
