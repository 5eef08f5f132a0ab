"""Self-supervised pre-training of a model on the random clips of a store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from clipset.config import build, fingerprint, flatten, to_mapping
from clipset.data.catalog import Video
from clipset.devices import find_device
from clipset.errors import ClipsetError, ModelError, TrainingError
from clipset.features.store import FeatureStore
from clipset.features.verify import check_rows
from clipset.files import check_output
from clipset.process.locks import exclusive
from clipset.progress import log
from clipset.training.batches import (
    BatchChoice,
    check_batches,
    choose_batches,
    group_batches,
    stored_members,
)
from clipset.training.budget import hold_out
from clipset.training.card import ModelCard
from clipset.training.checkpoint import (
    RunState,
    ScaleModel,
    check_model,
    find_checkpoint,
    load_model,
    newest_checkpoint,
    read_card,
    remove_checkpoints,
)
from clipset.training.config import PretrainConfig, weight_settings
from clipset.training.data import BatchSource, ClipSource
from clipset.training.distributed import ProcessGroup, join_process_group
from clipset.training.optim import choose_precision
from clipset.training.trainer import PretrainingRun
from clipset.training.validation import HeldOutLoss, Validation


def ssl_videos(store: FeatureStore, ssl_split: Literal["train", "all"]) -> np.ndarray:
    """The indices of the training videos: all, or those of the train split if there is one."""
    splits = {video.id: video.split for video in store.catalog}
    indices = np.arange(len(store))
    if ssl_split == "all" or "train" not in store.catalog.splits:
        return indices
    return indices[[splits.get(id) == "train" for id in store.ids]]


def pretrain(
    store: FeatureStore,
    folder: Path,
    config: PretrainConfig | None = None,
    *,
    seed: int = 0,
    device: str = "auto",
) -> ScaleModel:
    """Train a model on a store and save it in a folder; an interrupted training is resumed.

    Under torchrun, or with an initialised torch.distributed, all processes train one model.
    """
    config = config or PretrainConfig()
    with join_process_group(device) as processes:
        data = processes.run(lambda: StoredVideos(store, config, processes, seed=seed))
        return run_pretraining(data, folder, config, processes)


class TrainingVideos(ABC):
    """The videos that a model is trained on, and how they are read."""

    members: Sequence[Video | None]  # as the catalog lists them
    is_train: Bool[np.ndarray, " N"]  # of the train split, if there is one
    card: ModelCard

    @abstractmethod
    def open(self, videos: Int[np.ndarray, " W"], groups: Int[Tensor, " W"] | None) -> BatchSource:
        """Some of the videos, by their indices, to draw batches from."""

    def choose_batches(self, config: PretrainConfig) -> BatchChoice:
        """Which videos form a batch."""
        return group_batches(self.members, config)

    def open_validation(self) -> Validation | None:
        """The videos of the k-NN score."""
        return None

    def is_complete(self, folder: Path) -> bool:  # noqa: ARG002 (there is nothing else)
        """Whether all files beside a finished model are there."""
        return True

    def start(self, source: BatchSource, **options: Any) -> PretrainingRun:
        """The training itself."""
        return PretrainingRun(source, **options)


class StoredVideos(TrainingVideos):
    """The training videos of a store."""

    def __init__(
        self, store: FeatureStore, config: PretrainConfig, processes: ProcessGroup, *, seed: int
    ) -> None:
        self.store, self.config = store, config
        if processes.is_main:
            check_rows(store)
        self.indices = training_videos(store, config, processes)
        self.members = stored_members(store, self.indices)
        self.is_train = np.isin(self.indices, ssl_videos(store, "train"))
        self.choice = choose_batches(store, self.indices, config)
        self.card = _card(store, self.indices, config, self.choice, seed)

    def open(self, videos: Int[np.ndarray, " W"], groups: Int[Tensor, " W"] | None) -> ClipSource:
        """The stored random clips of some of the videos."""
        return ClipSource(self.store, self.indices[videos], self.config.model, groups=groups)

    def choose_batches(self, config: PretrainConfig) -> BatchChoice:  # noqa: ARG002
        """By the catalog's groups or by the stored features."""
        return self.choice

    def open_validation(self) -> Validation:
        """Labelled videos with their stored regular clips."""
        return Validation(self.store, self.config.model, seed=self.card.seed)


def run_pretraining(
    data: TrainingVideos, folder: Path, config: PretrainConfig, processes: ProcessGroup
) -> ScaleModel:
    """Train a model on videos and save it in a folder; an interrupted training is resumed."""
    card, seed = data.card, data.card.seed
    with ExitStack() as locks:
        found = processes.run(lambda: _find_trained(folder, card))
        if found is not None and processes.run(lambda: data.is_complete(folder)):
            return processes.run(lambda: load_model(folder))
        choice = _agree_on_batches(data, config, processes)
        card = replace(card, batches=choice.kind, batches_reason=choice.reason)
        if processes.is_main and config.batch_from in ("auto", "similar"):
            log(str(choice))
        held_out_mask = _hold_out(data, config, choice, seed)
        num_held_out = int(held_out_mask.sum())
        card = replace(card, videos=len(held_out_mask) - num_held_out, held_out=num_held_out)

        def open_part(mask: Bool[np.ndarray, " N"]) -> BatchSource:
            groups = None if choice.groups is None else choice.groups[torch.from_numpy(mask)]
            return data.open(np.flatnonzero(mask), groups)

        source = processes.run(lambda: open_part(~held_out_mask))
        if processes.is_main and choice.groups is None and config.batch_size > len(source):
            log(f"batch_size {config.batch_size} is reduced to the {len(source)} training videos")
        held_out = None
        if num_held_out:
            held_out_source = processes.run(lambda: open_part(held_out_mask))
            held_out = HeldOutLoss(held_out_source, config, seed=seed)
        validation = None
        if config.validate_every:
            validation = processes.run(
                lambda: data.open_validation() if processes.is_main else None
            )
        processes.run(lambda: check_output(folder, "folder") if processes.is_main else None)
        processes.run(lambda: locks.enter_context(exclusive(folder)) if processes.is_main else None)
        run = data.start(
            source,
            config=config,
            folder=folder,
            card=card,
            processes=processes,
            validation=validation,
            held_out=held_out,
        )
        run.resume()
        run.train()
        if processes.is_main and run.num_epochs < run.max_epochs:
            log(
                f"pre-training ends after {run.num_epochs} of up to {run.max_epochs} epochs: the "
                f"loss of {num_held_out} held-out training videos was flat"
            )
        processes.run(lambda: run.save() if processes.is_main else None)
        return run.scale.to("cpu").eval()


def is_trained(store: FeatureStore, folder: Path, config: PretrainConfig, *, seed: int) -> bool:
    """Whether a folder holds the model that `pretrain` would train; no network is loaded."""
    videos = ssl_videos(store, config.ssl_split)
    card = _card(store, videos, config, choose_batches(store, videos, config), seed)
    return _find_trained(folder, card) is not None


def check_pretraining(
    store: FeatureStore, folder: Path, config: PretrainConfig, *, seed: int, device: str
) -> None:
    """Raise what `pretrain` would raise before its first step; nothing is written.

    Checkpoints on other videos are no reason: `remove_outdated_checkpoints` removes them.
    """
    check_rows(store)
    videos = training_videos(store, config, ProcessGroup(0, 1, find_device(device)))
    card = _card(store, videos, config, choose_batches(store, videos, config), seed)
    state = RunState(
        fingerprint=card.fingerprint,
        epoch=0,
        settings=weight_settings(config),
        dim=card.dim,
        seed=seed,
    )
    if _find_trained(folder, card) is None and not _is_outdated(store, folder):
        find_checkpoint(folder / "checkpoints", state)


def remove_outdated_checkpoints(store: FeatureStore, folder: Path) -> None:
    """Delete the checkpoints of a training on other videos or features: it cannot be resumed."""
    if _is_outdated(store, folder):
        log(f"the checkpoints of {folder} are removed: other videos or features")
        remove_checkpoints(folder / "checkpoints")


def _is_outdated(store: FeatureStore, folder: Path) -> bool:
    """Whether a stopped training has seen other videos or features, whatever its settings.

    Settings that another clipset recorded do not tell; its training is left alone.
    """
    newest = newest_checkpoint(folder / "checkpoints")
    if newest is None:
        return False
    try:
        config = build(PretrainConfig, newest.settings, "the settings of the checkpoint")
    except ClipsetError:
        return False
    if flatten(weight_settings(config)).keys() != flatten(newest.settings).keys():
        return False
    videos = ssl_videos(store, config.ssl_split)
    choice = choose_batches(store, videos, config)
    identity = _fingerprint(store, videos, newest.settings, choice, newest.seed)
    return newest.fingerprint != identity


def training_videos(
    store: FeatureStore, config: PretrainConfig, processes: ProcessGroup
) -> np.ndarray:
    """The indices of the training videos; raises what would fail later."""
    if store.pending:
        raise TrainingError(
            f"{store.folder} is not finished ({len(store.pending)} pending videos); "
            f"run `clipset extract` again to resume it"
        )
    choose_precision(config.precision, processes.device)
    videos = ssl_videos(store, config.ssl_split)
    members = stored_members(store, videos)
    check_batches(members, config, processes)
    available = int(store.random.count[videos].min())
    if available < 2 * config.clips_per_set:
        raise TrainingError(
            f"two sets of {config.clips_per_set} need {2 * config.clips_per_set} clips of a video, "
            f"the store has {available}; lower clips_per_set or extract more clips"
        )
    return videos


def open_clip_source(
    store: FeatureStore, videos: np.ndarray, config: PretrainConfig, in_memory: bool | None = None
) -> ClipSource:
    """The training clips; in memory if they fit, unless `in_memory` decides."""
    groups = choose_batches(store, videos, config).groups
    return ClipSource(store, videos, config.model, in_memory=in_memory, groups=groups)


def _card(
    store: FeatureStore, videos: np.ndarray, config: PretrainConfig, choice: BatchChoice, seed: int
) -> ModelCard:
    return ModelCard(
        dim=store.manifest.backbone.dim,
        model=config.model,
        training=to_mapping(config),
        backbone=to_mapping(store.manifest.backbone),
        videos=len(videos),
        split=config.ssl_split,
        seed=seed,
        fingerprint=_fingerprint(store, videos, weight_settings(config), choice, seed),
        data=store.catalog.name,
        splits=store.catalog.splits,
    )


def _fingerprint(
    store: FeatureStore, videos: np.ndarray, settings: Any, choice: BatchChoice, seed: int
) -> str:
    """Identifies a training by its settings, its seed, and all that it learns from."""
    rows = [store.entries[index].fingerprint for index in videos]
    return fingerprint(settings, seed, store.manifest, rows, choice.identity)


def _find_trained(folder: Path, card: ModelCard) -> ModelCard | None:
    """The card of a folder's model if it has the same fingerprint and its files are intact."""
    if not (folder / "model.json").is_file() or read_card(folder).fingerprint != card.fingerprint:
        return None
    try:
        return check_model(folder)
    except ModelError as error:
        log(f"{error}; the model is trained again")
        return None


def _agree_on_batches(
    data: TrainingVideos, config: PretrainConfig, processes: ProcessGroup
) -> BatchChoice:
    """The choice of rank 0: clusters of similar videos may depend on the machine."""
    choice = processes.run(lambda: data.choose_batches(config))
    if not processes.broadcast(int(choice.groups is not None)):
        return replace(choice, groups=None)
    groups = torch.zeros(len(data.members), dtype=torch.int64)
    if choice.groups is not None:
        groups = choice.groups.long()
    return replace(choice, groups=processes.gather_rows(groups.to(processes.device))[0].cpu())


def _hold_out(
    data: TrainingVideos, config: PretrainConfig, choice: BatchChoice, seed: int
) -> Bool[np.ndarray, " N"]:
    """Which training videos decide when pre-training ends, if no number of epochs is set."""
    mask = np.zeros(len(data.members), dtype=bool)
    if config.epochs is None:
        groups = np.zeros(len(mask), int) if choice.groups is None else choice.groups.numpy()
        is_train = data.is_train  # never a video that is scored
        mask[np.flatnonzero(is_train)[hold_out(groups[is_train], seed)]] = True
    return mask
