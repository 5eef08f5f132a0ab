"""The steps of a run after extraction, for one task: pretrain, embed, evaluate, report.

Heavy modules are imported where they are used: a step that is current loads nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clipset.config import fingerprint, to_mapping
from clipset.data.tasks import Task
from clipset.devices import find_device
from clipset.errors import OutputError, ProbeError, RunError
from clipset.features.store import FeatureStore
from clipset.files import write_json
from clipset.planning.time_budget import RunClock
from clipset.progress import log
from clipset.recipe import Recipe
from clipset.runs import RunFolder, StepRecord, digest_file, read_steps
from clipset.training.config import weight_settings

if TYPE_CHECKING:
    from clipset.training.checkpoint import ScaleModel

MODEL_FILES = ("model.safetensors", "model.json")
VECTOR_FILES = ("vectors/vectors.safetensors", "vectors/videos.csv")
RESULT_FILES = (
    "results.json", "comparisons.json", "predictions.safetensors", "retrieval.json",
)  # fmt: skip
REPORT_INPUTS = (
    *(f"model/{name}" for name in (*MODEL_FILES, "metrics.jsonl")), *VECTOR_FILES, *RESULT_FILES,
    "low_shot.json",
)  # fmt: skip


class TaskRun:
    """The steps of one task after extraction: pretrain, embed, evaluate, report."""

    def __init__(
        self, folder: RunFolder, store: FeatureStore, recipe: Recipe, device: str, clock: RunClock
    ) -> None:
        self.run_folder, self.store, self.recipe = folder, store, recipe
        self.device, self.clock = device, clock
        self.folder, self.seed = folder.folder, folder.seed
        self.model_names = model_names(recipe, folder.seed)

    def run(self) -> str:
        """Do the steps that are not current; returns why a step did nothing, if one did not."""
        step, recipe, names = self.run_folder.step, self.recipe, self.model_names
        inputs = _pretrain_fingerprint(self.store, recipe, names.values())
        model_files = _model_files(names)
        pretrain_step = step("pretrain", self.pretrain, fingerprint=inputs, outputs=model_files)
        inputs = fingerprint(inputs, pretrain_step.outputs)
        first_model = {file: pretrain_step.outputs.get(file) for file in _model_files(["model"])}
        first_inputs = _pretrain_fingerprint(self.store, recipe, [self.seed])
        embed_step = step(
            "embed", self.embed, fingerprint=fingerprint(first_inputs, first_model),
            outputs=VECTOR_FILES,
        )  # fmt: skip
        settings = {k: v for k, v in to_mapping(recipe.evaluate).items() if k != "preset"}
        limit = [] if self.clock.minutes is None else [self.clock.minutes]
        inputs = fingerprint(inputs, embed_step.outputs, settings, recipe.data.test_split, *limit)
        evaluate_step = step("evaluate", self.evaluate, fingerprint=inputs, outputs=RESULT_FILES)
        self.clock.begin("report")
        write_run_report(self.run_folder)
        return "; ".join(filter(None, (pretrain_step.note, evaluate_step.note)))

    @cached_property
    def models(self) -> list[ScaleModel]:
        """The pre-trained models; none if there are fewer than two videos to contrast."""
        from clipset.training.pretrain import pretrain, remove_outdated_checkpoints, ssl_videos

        config = self.recipe.pretrain
        if len(ssl_videos(self.store, config.ssl_split)) < 2:
            return []
        self._record_device()
        models = []
        for number, (model_name, seed) in enumerate(self.model_names.items(), start=1):
            if config.seeds > 1:
                log(f"pre-training {number} of {config.seeds}, seed {seed}")
            model_folder = self.folder / model_name
            remove_outdated_checkpoints(self.store, model_folder)
            models.append(pretrain(self.store, model_folder, config, seed=seed, device=self.device))
        return models

    def pretrain(self) -> StepRecord:
        """Train the models, or load those that are trained already."""
        from clipset.training.pretrain import is_trained

        self.clock.begin("pretrain")
        store, config = self.store, self.recipe.pretrain
        are_trained = []
        for model_name, seed in self.model_names.items():
            model_folder = self.folder / model_name
            _refuse_other_link(store, model_folder, self.recipe, seed)
            are_trained.append(is_trained(store, model_folder, config, seed=seed))
        if self.models:
            self.run_folder.decide("batches", f"batches of {self.models[0].card.batch_note}")
            return StepRecord("pretrain", skipped=all(are_trained))
        return StepRecord("pretrain", note="not pre-trained: contrast needs at least two videos")

    def embed(self) -> None:
        """Write the vectors of all videos."""
        from clipset.representation import embed_store, write_vectors

        self.clock.begin("embed")
        self._record_device()
        encoder = self.models[0].encoder if self.models else None
        vector_table = embed_store(self.store, encoder, device=find_device(self.device))
        write_vectors(vector_table, self.folder / "vectors")

    def evaluate(self) -> StepRecord:
        """Score the features if the videos have at least two labels to tell apart."""
        from clipset.evaluation.retrieval import score_retrieval
        from clipset.evaluation.suite import run_suite
        from clipset.probes.task import make_task

        self.clock.begin("evaluate")
        try:
            task = make_task(self.store, self.store.catalog, training=self.recipe.pretrain)
        except ProbeError as reason:
            for name in ("results.json", "comparisons.json", "retrieval.json"):
                write_json(self.folder / name, [])
            return StepRecord("evaluate", note=f"not evaluated: {reason}")
        self.run_folder.decide("not scored", task.not_scored)
        model = self.models[0] if self.models else None
        suite = run_suite(
            task, model, self.recipe.evaluate, seed=self.seed, more_models=self.models[1:],
            deadline=self.clock.deadline,
        )  # fmt: skip
        suite = replace(suite, retrieval=score_retrieval(task, self.models))
        try:
            suite.write(self.folder / "results.json", protocol_facts(self.recipe))
        except OutputError:
            from clipset.report.wording import row_name

            for score in suite.results:  # finished probes are printed if they cannot be written
                log(f"{row_name(*score.key)}: {score.metric} {score.value:.4f}")
            raise
        left_out = ", ".join(suite.left_out)
        return StepRecord("evaluate", note=left_out and f"no time left for probes: {left_out}")

    def _record_device(self) -> None:
        """Record the device that the work is done on, once it is known."""
        self.run_folder.content["device"] = str(find_device(self.device))


def protocol_facts(recipe: Recipe) -> dict[str, Any]:
    """What a score depends on beside the probe itself."""
    label_fraction = recipe.evaluate.label_fraction
    facts: dict[str, Any] = {"ssl_split": recipe.pretrain.ssl_split}
    return facts if label_fraction is None else facts | {"label_fraction": label_fraction}


def check_task_pretraining(
    out: Path, tasks: Sequence[Task], recipe: Recipe, *, seed: int, device: str
) -> None:
    """Refuse what would fail in pre-training, before a file of a finished run is touched."""
    for task in tasks:
        folder, store = out / task.name, FeatureStore(out / "store", task.catalog)
        step_record, models = read_steps(folder).get("pretrain"), model_names(recipe, seed)
        inputs = _pretrain_fingerprint(store, recipe, models.values())
        if step_record is not None and step_record.is_current(folder, inputs, _model_files(models)):
            continue
        from clipset.training.pretrain import check_pretraining, ssl_videos

        if len(ssl_videos(store, recipe.pretrain.ssl_split)) >= 2:
            for model_name, own_seed in models.items():
                _refuse_other_link(store, folder / model_name, recipe, own_seed)
                check_pretraining(
                    store, folder / model_name, recipe.pretrain, seed=own_seed, device=device
                )


def model_names(recipe: Recipe, seed: int) -> dict[str, int]:
    """The folders of a run's models with their seeds: `model`, then `model-seed1`, …"""
    model_seeds = range(seed, seed + recipe.pretrain.seeds)
    return {"model" if own == seed else f"model-seed{own}": own for own in model_seeds}


def _model_files(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"{name}/{file}" for name in names for file in MODEL_FILES)


def _pretrain_fingerprint(store: FeatureStore, recipe: Recipe, seeds: Iterable[int]) -> str:
    """The inputs of pre-training: settings, features, and the catalog with its splits."""
    rows = [(entry.id, entry.fingerprint) for entry in store.entries]
    settings, catalog = weight_settings(recipe.pretrain), store.catalog.fingerprint
    return fingerprint(settings, *seeds, store.manifest.fingerprint, rows, catalog)


def _refuse_other_link(store: FeatureStore, model: Path, recipe: Recipe, seed: int) -> None:
    from clipset.training.pretrain import is_trained

    if model.is_symlink() and not is_trained(store, model, recipe.pretrain, seed=seed):
        raise RunError(f"{model} is a link to a model with other settings; remove the link")


def write_run_report(folder: RunFolder) -> None:
    """The step `report`: write the page if anything on it has changed."""
    run_facts = {k: v for k, v in folder.content.items() if k not in ("started", "environment")}
    file_hashes = {name: digest_file(folder.folder / name) for name in REPORT_INPUTS}
    steps = [(step.name, step.fingerprint, step.outputs) for step in folder.steps.values()]
    inputs = fingerprint(run_facts, file_hashes, [step for step in steps if step[0] != "report"])

    def write() -> None:
        from clipset.report.run_page import report_run

        report_run(folder.folder)

    folder.step("report", write, fingerprint=inputs, outputs=("report.html",))
