"""Which videos form a batch: any of them, those of one group of the catalog, or similar ones."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from clipset.data.catalog import Video
from clipset.errors import TrainingError
from clipset.features.store import FeatureStore
from clipset.training.config import PretrainConfig
from clipset.training.distributed import ProcessGroup
from clipset.training.similar import (
    CLUSTER_SIZE,
    are_labels_known,
    assess_clusters,
    cluster_videos,
    mean_features,
)

MIN_GROUPED = 0.9  # fraction of the videos that have a group
MIN_GROUP_SIZE = 12  # videos in the group of the median video: its negatives
MAX_LABEL_FRACTION = 0.5  # of a group's most frequent label, on average


BatchKind = Literal["any videos", "one group each", "similar videos"]
ONE_GROUP: Final = "one group each"


@dataclass(frozen=True, slots=True)
class BatchChoice:
    """The group (or cluster) index of each video for batches of one each, or None; the reason."""

    groups: Int[Tensor, " N"] | None
    reason: str = ""
    kind: BatchKind = "any videos"

    def __str__(self) -> str:
        return f"batches of {self.kind}: {self.reason}"

    @property
    def identity(self) -> list[Any]:
        """What models depend on besides settings and features, from which clusters follow."""
        if self.groups is None or self.kind != ONE_GROUP:
            return [self.kind]
        return [self.kind, self.groups.tolist()]


def choose_batches(
    store: FeatureStore, videos: Int[np.ndarray, " N"], config: PretrainConfig
) -> BatchChoice:
    """`group_batches` of some videos of a store; where no groups are known, of similar ones."""
    members = stored_members(store, videos)
    choice, is_auto = group_batches(members, config), config.batch_from == "auto"
    if config.batch_from in ("all", "group") or (is_auto and are_groups_known(members)):
        return choice
    finding = ""
    if len(members) < 2 * CLUSTER_SIZE:
        finding = f"{len(members)} videos are too few to find similar ones"
    elif is_auto and not are_labels_known(members):
        finding = "too few labels say whether similar videos differ"
    if finding:
        return replace(choice, reason=f"{choice.reason}, and {finding}")
    clusters = cluster_videos(mean_features(store, videos))
    reason = choice.reason
    if is_auto:
        is_useful, finding = assess_clusters(members, clusters)
        reason = f"{reason}, and {finding}"
        if not is_useful:
            return replace(choice, reason=reason)
    num_clusters = int(clusters.max()) + 1
    return BatchChoice(clusters, f"{reason} ({num_clusters} clusters)", "similar videos")


def are_groups_known(members: Sequence[Video | None]) -> bool:
    """Whether nearly all videos name their group."""
    num_grouped = sum(video is not None and video.group is not None for video in members)
    return num_grouped >= MIN_GROUPED * len(members)


def stored_members(store: FeatureStore, videos: Int[np.ndarray, " N"]) -> list[Video | None]:
    """Some videos of a store as its catalog lists them; None for those that it does not list."""
    by_id = {video.id: video for video in store.catalog}
    return [by_id.get(store.ids[index]) for index in videos]


def group_batches(members: Sequence[Video | None], config: PretrainConfig) -> BatchChoice:
    """Batches of any videos or of one group each; `auto` decides by the groups of the catalog.

    Videos without a group, and those of groups with one video, form one group.
    """
    useful, reason = config.batch_from == "group", f"batch_from is {config.batch_from}"
    if config.batch_from == "auto":
        useful, reason = assess_groups([video for video in members if video is not None])
    if not useful:
        return BatchChoice(None, reason)
    names = [None if video is None else video.group for video in members]
    several = [name for name, n in Counter(names).items() if name is not None and n > 1]
    index: dict[str | None, int] = {name: number for number, name in enumerate(several)}
    groups = torch.tensor([index.get(name, len(index)) for name in names])
    return BatchChoice(groups, reason, ONE_GROUP)


def assess_groups(videos: list[Video]) -> tuple[bool, str]:
    """Whether negatives of the own group are worth it: groups are named, large and mixed."""
    groups: dict[str, list[Video]] = defaultdict(list)
    for video in videos:
        if video.group is not None:
            groups[video.group].append(video)
    if not groups:
        return False, "the catalog has no groups"
    num_grouped = sum(map(len, groups.values()))
    if num_grouped < MIN_GROUPED * len(videos):
        return False, f"only {num_grouped} of {len(videos)} videos have a group"
    if len(groups) == 1:
        return False, "all videos are of one group"
    sizes = sorted(len(own) for own in groups.values() for _ in own)
    median_size = sizes[len(sizes) // 2]
    if median_size < MIN_GROUP_SIZE:
        return False, f"groups of {median_size} videos are small, {MIN_GROUP_SIZE} are needed"
    num_labelled = num_frequent = 0
    for own in groups.values():
        labels = Counter(v.label for v in own if v.label is not None and v.split in (None, "train"))
        num_labelled += labels.total()
        num_frequent += max(labels.values(), default=0)
    if num_frequent > MAX_LABEL_FRACTION * num_labelled:
        return False, f"one label has {num_frequent / num_labelled:.0%} of the videos of a group"
    return True, f"{len(groups)} groups of about {median_size} videos with different labels"


def check_batches(
    members: Sequence[Video | None], config: PretrainConfig, processes: ProcessGroup
) -> None:
    """Refuse videos that cannot be divided into batches, or batches among the ranks."""
    if len(members) < 2:
        raise TrainingError(f"pre-training needs at least 2 videos, got {len(members)}")
    counts = Counter(None if video is None else video.group for video in members)
    if config.batch_from == "group" and None in counts:
        raise TrainingError(
            f"batches of one group need the group of every video; {counts[None]} of {len(members)} "
            f"have none (the column group of the catalog)"
        )
    if config.batch_from == "group" and min(counts.values()) < 2:
        single = min(str(name) for name, count in counts.items() if count < 2)
        raise TrainingError(
            f"batches of one group need groups of at least 2 videos; {single!r} has one"
        )
    groups = group_batches(members, config).groups
    sizes = [len(members)] if groups is None else list(Counter(groups.tolist()).values())
    smallest_batch, size = min((size // -(-size // config.batch_size), size) for size in sizes)
    if smallest_batch < processes.world_size:
        raise TrainingError(
            f"{processes.world_size} ranks cannot share batches of {config.batch_size} of {size} "
            f"videos; start fewer processes or use larger batches"
        )
