"""A timeout is kept or refused; the Ray cluster within a process is for this machine alone."""

from __future__ import annotations

import os
import subprocess
import time
import tomllib
from ipaddress import IPv6Address
from pathlib import Path

import pytest
from tests.attacks.conftest import COMMAND, write_videos
from tests.attacks.hostile import THIRD, hostile_folder, imported
from tests.miniatures import run

LISTEN = "0A"  # the state of a socket in /proc/net/tcp


@pytest.mark.parametrize("seconds", ["5", "300"])
def test_a_timeout_without_workers_is_refused_in_one_line(
    seconds: str, videos: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    given = ["--workers", "0", f"--set=extract.timeout={seconds}"]
    settings = ["--set=extract.workers=0", f"--set=extract.timeout={seconds}"]
    for words in (
        ["extract", videos, "--out", tmp_path / "out", *given],
        ["extract", videos, "--out", tmp_path / "out", *settings],
        ["run", videos, "--out", tmp_path / "out", *settings],
        ["repair", tmp_path / "out", "--workers", "0", "--timeout", seconds],
    ):
        assert run(*words, "--quiet") == 2
        [line] = capfd.readouterr().err.splitlines()
        assert f"a timeout of {seconds} s needs worker processes" in line
    assert not (tmp_path / "out").exists()


def test_the_oldest_ray_that_is_installed_is_the_one_that_was_looked_at() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["optional-dependencies"]["ray"] == ["ray>=2.60"]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs /proc")
def test_the_embedded_ray_cluster_listens_to_this_machine_and_imports_nothing_from_its_folder(
    tmp_path: Path,
) -> None:
    """Every process of the cluster is looked at while it works, in a folder of hostile modules."""
    pytest.importorskip("ray")
    marker = tmp_path / "imported"
    cwd = hostile_folder(tmp_path / "cwd", THIRD, marker)
    videos = write_videos(tmp_path / "videos", per_class=1)
    words = [
        "--out",
        tmp_path / "store",
        "--frames",
        "2",
        "--size",
        "32",
        "--set=extract.engine=torch",
    ]
    process = subprocess.Popen(
        [
            COMMAND,
            "extract",
            videos,
            *words,
            "--set=extract.sampling.num_clips=2",
            "--ray",
            "--quiet",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=cwd,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep},
        text=True,
    )
    seen: dict[str, set[str]] = {}
    while process.poll() is None:
        for name, addresses in listening(process.pid).items():
            seen.setdefault(name, set()).update(addresses)
        time.sleep(0.2)
    out, said = process.communicate()
    assert imported(marker) == ""
    assert process.returncode == 0, said
    assert ", 0 failed" in out
    assert {"raylet", "gcs_server"} <= set(seen)
    loopback = {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
    assert {name: found - loopback for name, found in seen.items() if found - loopback} == {}


def listening(pid: int) -> dict[str, set[str]]:
    """On which addresses a process and its descendants listen, by the processes' names."""
    addresses = sockets()
    found: dict[str, set[str]] = {}
    for each in family(pid):
        try:
            name = Path(f"/proc/{each}/comm").read_text().strip()
            links = [str(path.readlink()) for path in Path(f"/proc/{each}/fd").iterdir()]
        except OSError:  # it has ended
            continue
        for link in links:
            if link in addresses:
                found.setdefault(name, set()).add(addresses[link])
    return found


def sockets() -> dict[str, str]:
    """The addresses of all sockets that listen, by the name that a process knows them under."""
    found = {}
    for kind in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{kind}").read_text().splitlines()[1:]:
            columns = line.split()
            if columns[3] == LISTEN:
                found[f"socket:[{columns[9]}]"] = address(columns[1].partition(":")[0])
    return found


def address(written: str) -> str:
    """An address of /proc/net: words of four bytes, the last byte first."""
    content = b"".join(
        bytes.fromhex(written[first : first + 8])[::-1] for first in range(0, len(written), 8)
    )
    if len(content) == 4:
        return ".".join(map(str, content))
    mapped = IPv6Address(content).ipv4_mapped
    return f"::ffff:{mapped}" if mapped else str(IPv6Address(content))


def family(pid: int) -> set[int]:
    """A process and all that came of it."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = {pid}
    while more := {each for each, parent in parents.items() if parent in found} - found:
        found |= more
    return found
