"""Self-supervised pre-training of a model on the random clips of a store."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from clipset.config import fingerprint, to_mapping
from clipset.devices import find_device
from clipset.errors import ModelError, TrainingError
from clipset.features.store import FeatureStore
from clipset.files import check_output
from clipset.process.locks import exclusive
from clipset.progress import log
from clipset.training.card import ModelCard
from clipset.training.checkpoint import (
    RunState,
    ScaleModel,
    check_model,
    find_checkpoint,
    load_model,
    read_card,
)
from clipset.training.config import PretrainConfig, weight_settings
from clipset.training.data import ClipSource
from clipset.training.distributed import ProcessGroup, join_process_group
from clipset.training.optim import choose_precision
from clipset.training.trainer import PretrainingRun
from clipset.training.validation import Validation


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
    with join_process_group(device) as processes, ExitStack() as locks:
        config = config or PretrainConfig()
        videos = processes.run(lambda: training_videos(store, config, processes))
        card = _card(store, videos, config, seed)
        trained = processes.run(lambda: _load_trained(folder, card))
        if trained is not None:
            return trained
        if processes.is_main and config.batch_from == "all" and config.batch_size > len(videos):
            log(f"batch_size {config.batch_size} is reduced to the {len(videos)} training videos")
        source = processes.run(lambda: open_clip_source(store, videos, config))
        validation = processes.run(lambda: _validation(store, config, seed, processes))
        processes.run(lambda: check_output(folder, "folder") if processes.is_main else None)
        processes.run(lambda: locks.enter_context(exclusive(folder)) if processes.is_main else None)
        run = PretrainingRun(
            source, config, folder, card, processes=processes, validation=validation
        )
        run.resume()
        run.train()
        processes.run(lambda: run.save() if processes.is_main else None)
        return run.model.to("cpu").eval()


def is_trained(store: FeatureStore, folder: Path, config: PretrainConfig, *, seed: int) -> bool:
    """Whether a folder holds the model that `pretrain` would train; no network is loaded."""
    card = _card(store, ssl_videos(store, config.ssl_split), config, seed)
    return _find_trained(folder, card) is not None


def check_pretraining(
    store: FeatureStore, folder: Path, config: PretrainConfig, *, seed: int, device: str
) -> None:
    """Raise what `pretrain` would raise before its first step; nothing is written."""
    videos = training_videos(store, config, ProcessGroup(0, 1, find_device(device)))
    card = _card(store, videos, config, seed)
    state = RunState(
        fingerprint=card.fingerprint,
        epoch=0,
        settings=weight_settings(config),
        dim=card.dim,
        seed=seed,
    )
    if _find_trained(folder, card) is None:
        find_checkpoint(folder / "checkpoints", state)


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
    if len(videos) < 2:
        raise TrainingError(f"pre-training needs at least 2 videos, got {len(videos)}")
    available = int(store.random.count[videos].min())
    if available < 2 * config.clips_per_set:
        raise TrainingError(
            f"two sets of {config.clips_per_set} need {2 * config.clips_per_set} clips of a video, "
            f"the store has {available}; lower clips_per_set or extract more clips"
        )
    groups = group_indices(store, videos, config)
    sizes = [len(videos)] if groups is None else list(Counter(groups.tolist()).values())
    smallest_batch, size = min((size // -(-size // config.batch_size), size) for size in sizes)
    if smallest_batch < processes.world_size:
        raise TrainingError(
            f"{processes.world_size} ranks cannot share batches of {config.batch_size} of {size} "
            f"videos; start fewer processes or use larger batches"
        )
    return videos


def group_indices(
    store: FeatureStore, videos: np.ndarray, config: PretrainConfig
) -> Int[Tensor, " N"] | None:
    """The group index of each video, for batches of one group each."""
    if config.batch_from == "all":
        return None
    group_names = {video.id: video.group for video in store.catalog}
    names = [group_names.get(store.ids[index]) for index in videos]
    counts = Counter(names)
    if None in counts:
        raise TrainingError(
            f"batches of one group need the group of every video; {counts[None]} of {len(names)} "
            f"have none (the column group of the catalog)"
        )
    single = sorted(str(name) for name, count in counts.items() if count < 2)
    if single:
        raise TrainingError(
            f"batches of one group need groups of at least 2 videos; {single[0]!r} has one"
        )
    group_index = {name: index for index, name in enumerate(counts)}
    return torch.tensor([group_index[name] for name in names])


def open_clip_source(
    store: FeatureStore, videos: np.ndarray, config: PretrainConfig, in_memory: bool | None = None
) -> ClipSource:
    """The training clips; in memory if they fit, unless `in_memory` decides."""
    groups = group_indices(store, videos, config)
    return ClipSource(
        store, videos, config.model, in_memory=in_memory, groups=groups,
        mix_means=config.mix_means,
    )  # fmt: skip


def _card(store: FeatureStore, videos: np.ndarray, config: PretrainConfig, seed: int) -> ModelCard:
    checksums = [store.entries[index].checksum for index in videos]
    groups = group_indices(store, videos, config)
    by_group = [] if groups is None else [groups.tolist()]
    return ModelCard(
        dim=store.manifest.backbone.dim,
        model=config.model,
        training=to_mapping(config),
        backbone=to_mapping(store.manifest.backbone),
        videos=len(videos),
        split=config.ssl_split,
        seed=seed,
        fingerprint=fingerprint(
            weight_settings(config), seed, store.manifest, checksums, *by_group
        ),
        data=store.catalog.name,
        splits=store.catalog.splits,
    )


def _find_trained(folder: Path, card: ModelCard) -> ModelCard | None:
    """The card of a folder's model if it has the same fingerprint and its files are intact."""
    if not (folder / "model.json").is_file() or read_card(folder).fingerprint != card.fingerprint:
        return None
    try:
        return check_model(folder)
    except ModelError as error:
        log(f"{error}; the model is trained again")
        return None


def _load_trained(folder: Path, card: ModelCard) -> ScaleModel | None:
    return None if _find_trained(folder, card) is None else load_model(folder)


def _validation(
    store: FeatureStore, config: PretrainConfig, seed: int, processes: ProcessGroup
) -> Validation | None:
    if not config.validate_every or not processes.is_main:
        return None
    return Validation(store, config.model, seed=seed)
