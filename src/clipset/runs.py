"""A run's folder: what was run, with what, on which machine, and how long each step took."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from clipset.config import read_json, write_json
from clipset.errors import RunError
from clipset.locks import LOCK_NAME

FORMAT = 1
BEFOREHAND = ("store", "model", LOCK_NAME)  # what may be in a run's folder before its first step
PACKAGES = ("clipset", "torch", "numpy", "av", "openvino", "scikit-learn", "safetensors")


@dataclass(slots=True)
class StepRecord:
    """One step: the seconds of the run that did the work, and a mark of what it was done from."""

    name: str
    seconds: Annotated[float, Meta(ge=0, le=1e12)] = 0.0
    fingerprint: str = ""
    skipped: bool = False

    def __post_init__(self) -> None:
        if self.name in ("", "..") or Path(self.name).name != self.name:
            raise ValueError(f"a step's name is a plain name, got {self.name!r}")


class _Content(msgspec.Struct):
    """The types of what `run.json` says; keys that are not listed are left alone."""

    name: str = ""
    source: str = ""
    recipe: dict[str, Any] = {}
    seed: Annotated[int, Meta(ge=0, le=2**32 - 1)] = 0
    device: str = ""
    started: str = ""
    environment: dict[str, str] = {}
    steps: list[StepRecord] = []


class Run:
    """A folder that belongs to one run; `run.json` is rewritten after every step."""

    def __init__(
        self,
        folder: Path,
        *,
        name: str,
        recipe: dict[str, Any],
        seed: int,
        device: str,
        source: str = "",
        leaks: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        before = _claim(folder)
        self.content: dict[str, Any] = {
            "format": FORMAT,
            "name": name,
            "source": source,
            "recipe": recipe,
            "seed": seed,
            "device": device,
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "environment": environment(),
        }
        if leaks:
            self.content["allowed_leaks"] = list(leaks)
        steps = msgspec.convert(before.get("steps", []), type=list[StepRecord])
        self.steps = {step.name: step for step in steps}
        self._write()

    @contextmanager
    def step(self, name: str, *, began: float | None = None) -> Iterator[StepRecord]:
        """Time a step; one that was done before keeps the time that it took then.

        `began` is when it began (`time.perf_counter`), if that was before.
        """
        old = self.steps.get(name)
        record = StepRecord(name, fingerprint=old.fingerprint if old else "")
        began = time.perf_counter() if began is None else began
        yield record
        record.seconds = time.perf_counter() - began
        if record.skipped and old is not None:
            record.seconds = old.seconds
        self.steps[name] = record
        self._write()

    def _write(self) -> None:
        steps = [asdict(step) for step in self.steps.values()]
        write_json(self.folder / "run.json", self.content | {"steps": steps})


def _claim(folder: Path) -> dict[str, Any]:
    """Make the folder, or go on with a run that is there; anything else in it is left alone.

    A store or a model may lie there beforehand (or a link to one): both are checked when used.
    """
    check_run_folder(folder)
    marker = folder / "run.json"
    if marker.is_file():
        return read_run(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(marker, {"format": FORMAT})
    except OSError as error:
        raise RunError(f"cannot write to {folder}: {error.strerror}") from None
    return {}


def check_run_folder(folder: Path) -> None:
    """Refuse a folder that is neither a run nor empty; nothing is written."""
    try:
        if (folder / "run.json").is_file():
            read_run(folder)
        elif folder.exists() and any(path.name not in BEFOREHAND for path in folder.iterdir()):
            raise RunError(f"{folder} holds something that is no clipset run; use another folder")
    except OSError as error:
        raise RunError(f"cannot use {folder}: {error.strerror}") from None


def read_run(folder: Path) -> dict[str, Any]:
    """What `run.json` of a folder says."""
    path = folder / "run.json"
    if not path.is_file():
        raise RunError(f"{folder} is no clipset run (no run.json); run `clipset run` first")
    content = read_json(path)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise RunError(f"{path} is not of format {FORMAT}; another clipset wrote it")
    try:
        msgspec.convert(content, type=_Content)
    except msgspec.ValidationError as error:
        raise RunError(f"{path} is not what clipset wrote: {error}") from None
    return content


def environment() -> dict[str, str]:
    """The machine and the versions that a number depends on."""
    found = {"python": platform.python_version(), "system": platform.platform(terse=True)}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    found |= {"processor": _processor(), "cores": str(os.cpu_count()), "memory": _memory()}
    found["threads"] = os.environ.get("OMP_NUM_THREADS", found["cores"])  # sums depend on it
    commit = _commit()
    return found | ({"commit": commit} if commit else {})


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _memory() -> str:
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return "unknown"
    return f"{total / 2**30:.0f} GiB"


def _commit() -> str | None:
    """The commit of the source tree that clipset runs from, if it runs from one."""
    here = Path(__file__).resolve().parents[2]
    if not (here / ".git").exists():
        return None
    try:
        found = subprocess.run(
            ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()
