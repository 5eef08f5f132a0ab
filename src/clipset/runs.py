"""The folder of a run: `run.json` records the settings, the machine and every step.

A step is current if it has the same inputs as recorded and its output files have the recorded
content. A current step is skipped.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import re
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from clipset.config import read_json
from clipset.errors import ConfigError, RunError
from clipset.files import write_json
from clipset.process.locks import LOCK_NAME

FORMAT = 1
ALLOWED_BEFORE = ("store", "model", LOCK_NAME)  # in a run's folder before its first step
PACKAGES = ("clipset", "torch", "numpy", "av", "openvino", "scikit-learn", "safetensors")


@dataclass(slots=True)
class StepRecord:
    """One step: when it was last done, how long it took, and what it was done from and made.

    `outputs` are content hashes by file name. `watched` are size and modification time of files
    outside the run, by path. `note` tells a reader why a step did nothing.
    """

    name: str
    seconds: Annotated[float, Meta(ge=0, le=1e12)] = 0.0
    fingerprint: str = ""
    skipped: bool = False
    outputs: dict[str, str] = field(default_factory=dict)
    watched: dict[str, tuple[int, int]] = field(default_factory=dict)
    note: str = ""

    def __post_init__(self) -> None:
        if self.name in ("", "..") or Path(self.name).name != self.name:
            raise ValueError(f"a step's name is a plain name, got {self.name!r}")

    def is_current(self, folder: Path, fingerprint: str, outputs: Iterable[str] = ()) -> bool:
        """Whether the step would only do the same again."""
        return (
            self.fingerprint == fingerprint
            and all(watch_file(Path(path)) == state for path, state in self.watched.items())
            and all(digest_file(folder / name) == self.outputs.get(name, "") for name in outputs)
        )


class _TimeLimit(msgspec.Struct):
    """What a time limit has cut."""

    fingerprint: str = ""
    cut: str = ""
    pretrain_epochs: Annotated[int, Meta(ge=1, le=2**31)] = 1
    probe_epochs: Annotated[int, Meta(ge=1, le=2**31)] = 1


class _Content(msgspec.Struct):
    """The types of `run.json`; other keys are ignored."""

    name: str = ""
    source: str = ""
    recipe: dict[str, Any] = {}
    seed: Annotated[int, Meta(ge=0, le=2**32 - 1)] = 0
    device: str = ""
    started: str = ""
    environment: dict[str, str] = {}
    decisions: dict[str, str] = {}
    time_limit: _TimeLimit = msgspec.field(default_factory=_TimeLimit)
    steps: list[StepRecord] = []


class RunFolder:
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
        check_run_folder(folder)
        self.folder, self.seed, self.steps = folder, seed, read_steps(folder)
        recorded_run = read_run(folder) if (folder / "run.json").is_file() else {}
        self.content: dict[str, Any] = {
            "format": FORMAT,
            "name": name,
            "source": source,
            "recipe": recipe,
            "seed": seed,
            "device": recorded_run.get("device", device),  # the work of before was done there
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "environment": environment(),
            "decisions": recorded_run.get("decisions", {}),
            "time_limit": recorded_run.get("time_limit", {}),
        }
        if leaks:
            self.content["allowed_leaks"] = list(leaks)
        self._write()

    def step(
        self,
        name: str,
        work: Callable[[], StepRecord | None],
        *,
        fingerprint: str,
        outputs: Sequence[str] = (),
        skip: bool | None = None,
        started_at: float | None = None,
    ) -> StepRecord:
        """Do a step unless it is current; `skip` decides that otherwise.

        `fingerprint` identifies its inputs, `outputs` are the files that it may write. `work` may
        return a record of its own, with a note, or saying that the work had been done before.
        `started_at` is when the step began (`time.perf_counter`), if that was before.
        """
        old = self.steps.get(name)
        start_time = time.perf_counter() if started_at is None else started_at
        if skip is None:
            skip = old is not None and old.is_current(self.folder, fingerprint, outputs)
        if skip and old is not None:
            record = replace(old, skipped=True)
        else:
            record = work() or StepRecord(name)
            record.fingerprint = fingerprint
            record.outputs = {
                file: digest for file in outputs if (digest := digest_file(self.folder / file))
            }
            record.seconds = time.perf_counter() - start_time
            if record.skipped and old is not None:
                record.seconds = old.seconds
        self.record(record)
        return record

    def decide(self, topic: str, line: str) -> None:
        """Record, in a line for the reader, what was decided from the data; empty: nothing."""
        decisions = {k: v for k, v in self.content["decisions"].items() if k != topic}
        self.content["decisions"] = decisions | ({topic: line} if line else {})
        self._write()

    def record(self, step: StepRecord) -> None:
        """Record a step that is done or skipped."""
        self.steps[step.name] = step
        self._write()

    @property
    def all_skipped(self) -> bool:
        """Whether every step was done before."""
        return all(step.skipped for step in self.steps.values())

    def _write(self) -> None:
        steps = [asdict(step) for step in self.steps.values()]
        write_json(self.folder / "run.json", self.content | {"steps": steps})


def digest_file(path: Path) -> str:
    """The content hash of a regular file; empty if there is none."""
    with suppress(OSError):
        if path.is_file():
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16))
            return digest.hexdigest()
    return ""


def watch_file(path: Path) -> tuple[int, int]:
    """Size and modification time of a file; both -1 if it does not exist."""
    try:
        file_status = path.stat()
    except OSError:
        return (-1, -1)
    return (file_status.st_size, file_status.st_mtime_ns)


def read_steps(folder: Path) -> dict[str, StepRecord]:
    """The recorded steps of a run's folder by name; none if there is no run."""
    content = read_run(folder) if (folder / "run.json").is_file() else {}
    steps = msgspec.convert(content.get("steps", []), type=list[StepRecord])
    return {step.name: step for step in steps}


def check_run_folder(folder: Path) -> None:
    """Refuse a folder that is neither a run nor empty; nothing is written.

    A store or a model may be in it beforehand (or a link to one): both are checked when used.
    """
    try:
        if (folder / "run.json").is_file():
            read_run(folder)
        elif folder.exists() and any(path.name not in ALLOWED_BEFORE for path in folder.iterdir()):
            raise RunError(
                f"{folder} is not empty and not a clipset run (no run.json); use another folder"
                f"{_rescue_advice(folder)}"
            )
    except OSError as error:
        raise RunError(f"cannot use {folder}: {error.strerror}") from None


def read_run(folder: Path) -> dict[str, Any]:
    """The content of `run.json` in a folder, checked."""
    path = folder / "run.json"
    if not path.is_file():
        problem = "no run.json" if folder.is_dir() else "no such folder"
        is_inside = (folder.parent / path.name).is_file()
        advice = f"the run is {folder.parent}" if is_inside else "run `clipset run` first"
        raise RunError(f"{folder} is not a clipset run ({problem}); {advice}")
    advice = _rescue_advice(folder)
    try:
        content = read_json(path)
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise RunError(f"{path} is not of format {FORMAT}; another clipset wrote it")
        msgspec.convert(content, type=_Content)
    except ConfigError as error:
        raise RunError(f"{error}{advice}") from None
    except msgspec.ValidationError as error:
        raise RunError(f"{path} is not what clipset wrote: {error}{advice}") from None
    return content


def _rescue_advice(folder: Path) -> str:
    """How to go on without `run.json`, if there is work to be kept."""
    parts = [name for name in ("store", "model") if (folder / name).is_dir()]
    if not parts:
        return ""
    return f"; to keep its work, move {' and '.join(parts)} into a new folder and run there"


def record_output(folder: Path, name: str) -> None:
    """Record the hash of a step's output that was written again outside of `clipset run`."""
    content, digest = read_run(folder), digest_file(folder / name)
    outputs = [step["outputs"] for step in content.get("steps", []) if step.get("outputs")]
    changed = [digests for digests in outputs if digests.get(name, digest) != digest]
    for digests in changed:
        digests[name] = digest
    if changed:
        write_json(folder / "run.json", content)


def find_damaged_outputs(folder: Path) -> dict[str, str]:
    """What is wrong with the files that the steps of a run have written, by file name."""
    try:
        steps = read_steps(folder).values()
    except RunError as error:
        return {"run.json": str(error)}
    damages = {}
    for step in steps:
        for name, recorded_digest in step.outputs.items():
            digest = digest_file(folder / name)
            if digest != recorded_digest:
                problem = "is not the file that `clipset run` wrote" if digest else "is missing"
                damages[name] = f"{problem}; run it again"
    return damages


def environment() -> dict[str, str]:
    """The machine and the versions that a number depends on."""
    facts = {"python": platform.python_version(), "system": platform.platform(terse=True)}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            facts[name] = version(name)
    processor, memory = platform.processor() or platform.machine(), "unknown"
    with suppress(OSError):
        cpu_info = Path("/proc/cpuinfo").read_text()
        processor_names = re.findall(r"^model name\s*:(.*)$", cpu_info, re.MULTILINE)
        processor = processor_names[0].strip() if processor_names else processor
    with suppress(AttributeError, ValueError, OSError):
        num_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        memory = f"{num_bytes / 2**30:.0f} GiB"
    facts |= {"processor": processor, "cores": str(os.cpu_count()), "memory": memory}
    facts["threads"] = os.environ.get("OMP_NUM_THREADS", facts["cores"])  # sums depend on it
    if commit := source_commit():
        facts["commit"] = commit
    return facts


@functools.cache  # the loaded code does not change if the source tree does
def source_commit() -> str | None:
    """The commit of clipset if it runs from its source tree."""
    source_root = Path(__file__).resolve().parents[2]
    if not (source_root / ".git").exists():
        return None
    command = ["git", "-C", str(source_root), "describe", "--always", "--dirty", "--abbrev=12"]
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.check_output(
            command, stderr=subprocess.DEVNULL, timeout=10, text=True
        ).strip()
    return None
