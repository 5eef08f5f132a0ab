"""Pre-training: a store's random clips in, a model that understands sets of clips out."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from clipset.config import check_output, fingerprint, to_mapping
from clipset.devices import find_device
from clipset.errors import ModelError, TrainingError
from clipset.features.store import FeatureStore
from clipset.locks import exclusive
from clipset.progress import say
from clipset.training.card import ModelCard
from clipset.training.checkpoint import RunState, ScaleModel, find_checkpoint, load_model, read_card
from clipset.training.config import PretrainConfig, weight_settings
from clipset.training.data import ClipSource
from clipset.training.distributed import ProcessGroup, join_process_group
from clipset.training.optim import choose_precision
from clipset.training.trainer import PretrainingRun
from clipset.training.validation import Validation


def ssl_videos(store: FeatureStore, ssl_split: Literal["train", "all"]) -> np.ndarray:
    """Which videos are learned from: all, or those of the train split if there is one."""
    splits = {video.id: video.split for video in store.catalog}
    everything = np.arange(len(store))
    if ssl_split == "all" or "train" not in store.catalog.splits:
        return everything
    return everything[[splits.get(id) == "train" for id in store.ids]]


def pretrain(
    store: FeatureStore,
    folder: Path,
    config: PretrainConfig | None = None,
    *,
    seed: int = 0,
    device: str = "auto",
) -> ScaleModel:
    """Train a model on a store and save it in a folder; goes on where it stopped before.

    Under torchrun, or where torch.distributed is set up, all processes train one model together.
    """
    with join_process_group(device) as processes, ExitStack() as locks:
        config = config or PretrainConfig()
        videos = processes.run(lambda: videos_to_learn_from(store, config, processes))
        card = _card(store, videos, config, seed)
        trained = processes.run(lambda: _load_trained(folder, card))
        if trained is not None:
            return trained
        if processes.is_main and config.batch_from == "all" and config.batch_size > len(videos):
            say(f"a batch of {config.batch_size} is cut to the {len(videos)} videos that there are")
        source = processes.run(lambda: open_source(store, videos, config))
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
    """Whether a folder holds the very model that `pretrain` would make."""
    videos = ssl_videos(store, config.ssl_split)
    return _load_trained(folder, _card(store, videos, config, seed)) is not None


def check_pretraining(
    store: FeatureStore, folder: Path, config: PretrainConfig, *, seed: int, device: str
) -> None:
    """Raise what `pretrain` would raise before its first step; nothing is written."""
    videos = videos_to_learn_from(store, config, ProcessGroup(0, 1, find_device(device)))
    card = _card(store, videos, config, seed)
    state = RunState(
        fingerprint=card.fingerprint,
        epoch=0,
        settings=weight_settings(config),
        dim=card.dim,
        seed=seed,
    )
    if _load_trained(folder, card) is None:
        find_checkpoint(folder / "checkpoints", state)


def videos_to_learn_from(
    store: FeatureStore, config: PretrainConfig, processes: ProcessGroup
) -> np.ndarray:
    """The places of the videos, once all that could fail later has been looked at."""
    if store.pending:
        raise TrainingError(
            f"{store.folder} is not finished ({len(store.pending)} videos to go); "
            f"run `clipset extract` again, it goes on where it stopped"
        )
    choose_precision(config.precision, processes.device)
    videos = ssl_videos(store, config.ssl_split)
    if len(videos) < 2:
        raise TrainingError(f"contrast needs at least 2 videos to learn from, got {len(videos)}")
    available = int(store.random.count[videos].min())
    if available < 2 * config.clips_per_set:
        raise TrainingError(
            f"two sets of {config.clips_per_set} need {2 * config.clips_per_set} clips of a video, "
            f"the store has {available}; use fewer clips per set or extract more"
        )
    groups = groups_of(store, videos, config)
    parts = [len(videos)] if groups is None else list(Counter(groups.tolist()).values())
    fewest, part = min((part // -(-part // config.batch_size), part) for part in parts)
    if fewest < processes.world_size:
        raise TrainingError(
            f"{processes.world_size} ranks cannot share batches of {config.batch_size} of {part} "
            f"videos; start fewer processes or use larger batches"
        )
    return videos


def groups_of(
    store: FeatureStore, videos: np.ndarray, config: PretrainConfig
) -> Int[Tensor, " N"] | None:
    """The number of each video's group, if batches are to be of one group each."""
    if config.batch_from == "all":
        return None
    known = {video.id: video.group for video in store.catalog}
    names = [known.get(store.ids[place]) for place in videos]
    counts = Counter(names)
    if None in counts:
        raise TrainingError(
            f"batches of one group need the group of every video; {counts[None]} of {len(names)} "
            f"have none (the column group of the catalog)"
        )
    lonely = sorted(str(name) for name, count in counts.items() if count < 2)
    if lonely:
        raise TrainingError(
            f"batches of one group need groups of at least 2 videos; {lonely[0]!r} has one"
        )
    numbers = {name: number for number, name in enumerate(counts)}
    return torch.tensor([numbers[name] for name in names])


def open_source(store: FeatureStore, videos: np.ndarray, config: PretrainConfig) -> ClipSource:
    """The clips to learn from."""
    groups = groups_of(store, videos, config)
    return ClipSource(
        store, videos, config.model, in_memory=config.in_memory, groups=groups,
        mix_means=config.mix_means,
    )  # fmt: skip


def _card(store: FeatureStore, videos: np.ndarray, config: PretrainConfig, seed: int) -> ModelCard:
    rows = [store.entries[place].checksum for place in videos]
    groups = groups_of(store, videos, config)
    by_group = [] if groups is None else [groups.tolist()]
    return ModelCard(
        dim=store.manifest.backbone.dim,
        model=config.model,
        training=to_mapping(config),
        backbone=to_mapping(store.manifest.backbone),
        videos=len(videos),
        split=config.ssl_split,
        seed=seed,
        fingerprint=fingerprint(weight_settings(config), seed, store.manifest, rows, *by_group),
        data=store.catalog.name,
        splits=store.catalog.splits,
    )


def _load_trained(folder: Path, card: ModelCard) -> ScaleModel | None:
    """The model in a folder if it is the one of the card; one that is damaged is trained again."""
    if not (folder / "model.json").is_file() or read_card(folder).fingerprint != card.fingerprint:
        return None
    try:
        return load_model(folder)
    except ModelError as error:
        say(f"{error}; it is trained again")
        return None


def _validation(
    store: FeatureStore, config: PretrainConfig, seed: int, processes: ProcessGroup
) -> Validation | None:
    if not config.validate_every or not processes.is_main:
        return None
    return Validation(store, config.model, seed=seed)
