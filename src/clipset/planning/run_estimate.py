"""Time, disk and memory of a planned run, from a calibration of a few seconds.

Extraction is measured on a few of the videos, training and probes on a few epochs with random
features. Given speeds replace the measured ones, for a run on another machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from clipset.data.tasks import Task, read_tasks
from clipset.errors import ConfigError
from clipset.features.store import open_store
from clipset.planning.extraction_estimate import (
    estimate_extraction,
    estimate_store,
    free_bytes,
    peak_memory,
)
from clipset.planning.time_budget import DataSize, estimate_steps
from clipset.recipe import Recipe
from clipset.sets.stored_clips import MEMORY_LIMIT


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEstimate:
    """Wall time, disk space and peak memory of a step; None where it has none of its own.

    `at_most` says that the step may take less time.
    """

    name: str
    seconds: float
    at_most: bool = False
    disk_bytes: int | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEstimate:
    """The steps of a run, and what they were estimated for; `notes` say why one may be shorter."""

    videos: int
    clips: int
    free_bytes: int
    steps: tuple[StepEstimate, ...]
    notes: tuple[str, ...]


def estimate_run(
    source: Path,
    recipe: Recipe,
    *,
    num_videos: int | None = None,
    num_machines: int = 1,
    clips_per_second: float | None = None,
    samples_per_second: float | None = None,
    device: str = "auto",
) -> RunEstimate:
    """Estimate a run on a folder of videos, a catalog, or a store that is extracted already.

    `num_videos` scales the catalog; `num_machines` share the extraction.
    """
    for name, value in (
        ("videos", num_videos), ("machines", num_machines),
        ("clips-per-second", clips_per_second), ("samples-per-second", samples_per_second),
    ):  # fmt: skip
        if value is not None and not value > 0:
            raise ConfigError(f"--{name} must be above 0, got {value:g}")
    step_estimates: list[StepEstimate] = []
    store = open_store(source) if (source / "manifest.json").is_file() else None
    if store is not None:
        tasks: tuple[Task, ...] = (Task(catalog=store.catalog),)
        cost = estimate_store(store)
    else:
        tasks = read_tasks(source, recipe.data)
        cost = estimate_extraction(
            tasks[0].catalog, recipe.extract, device=device, clips_per_second=clips_per_second
        )
    video_factor = (num_videos or cost.videos) / cost.videos
    if cost.seconds:
        step_estimates.append(
            StepEstimate(
                name="extract",
                seconds=cost.start_seconds
                + video_factor * (cost.seconds - cost.start_seconds) / num_machines,
                disk_bytes=round(video_factor * cost.disk_bytes),
                memory_bytes=cost.memory_bytes,
            )
        )
    data_size = DataSize.of(tasks, cost.dim, recipe, regular_clips=cost.regular_clips)
    if store is not None:
        data_size = data_size.decide(store, recipe.pretrain)
    data_size = data_size.scale(video_factor)
    step_seconds = estimate_steps(recipe, data_size, device, samples_per_second=samples_per_second)
    num_clips = round(video_factor * cost.clips)
    peak = peak_memory()
    memory_bytes = None if peak is None else peak + min(4 * num_clips * cost.dim, MEMORY_LIMIT)
    vector_bytes = 4 * num_clips * (cost.dim + recipe.pretrain.model.width)
    disk = {"embed": vector_bytes}
    notes = _notes(data_size)
    step_estimates += [
        StepEstimate(
            name=name,
            seconds=value,
            at_most=name == "pretrain" and bool(notes),
            disk_bytes=disk.get(name),
            memory_bytes=memory_bytes,
        )
        for name, value in step_seconds.items()
    ]
    return RunEstimate(
        videos=round(video_factor * cost.videos),
        clips=num_clips,
        free_bytes=free_bytes(source),
        steps=tuple(step_estimates),
        notes=notes,
    )


def _notes(size: DataSize) -> tuple[str, ...]:
    """Why pre-training may take less time than estimated."""
    notes = []
    if size.held_out:
        notes.append("pre-training ends earlier if the loss of held-out videos is flat")
    if size.needs_features:
        other = "any" if size.similar else "similar"
        notes.append(
            f"pre-training takes less time if its batches are of {other} videos, "
            f"which the features decide"
        )
    return tuple(notes)
