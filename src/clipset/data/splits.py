"""Train and test splits: random ones by class and group, held-out groups, low-shot subsets."""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from clipset.data.catalog import Catalog, Video
from clipset.data.leaks import find_file_keys
from clipset.errors import CatalogError
from clipset.text import counted


def assign_splits(catalog: Catalog, *, test_fraction: float, seed: int) -> Catalog:
    """Assign videos to train and test; existing splits are kept.

    The split is stratified by class, with at least one training video in each class. Videos of
    one group stay together, and so do copies of one file. Videos without a label (or target) are
    for training, unless they are of the group, or copies, of a test video: those have no split.
    """
    if not 0.0 < test_fraction < 1.0:
        raise CatalogError(f"the test fraction must be between 0 and 1, got {test_fraction}")
    if catalog.splits or not any(video.is_labelled for video in catalog):
        return catalog
    groups = _group_videos(list(catalog))
    test_ids = _draw_test_ids(groups, test_fraction, np.random.default_rng(seed))
    related_ids = {
        video.id
        for group in groups
        if any(video.id in test_ids for video in group)
        for video in group
    }

    def split_of(video: Video) -> str | None:
        if video.id in test_ids:
            return "test"
        return None if video.id in related_ids else "train"

    videos = tuple(replace(video, split=split_of(video)) for video in catalog)
    return replace(catalog, videos=videos, has_drawn_splits=True)


def explain_no_test(catalog: Catalog) -> str:
    """Why no test videos could be drawn, and what helps."""
    videos = [video for video in catalog if video.is_labelled]
    sizes = Counter(video.label for video in videos)
    if max(sizes.values()) == 1:
        several = "every label has only one video" if len(sizes) > 1 else "there is only one"
        return f"{several}, which is for training; add at least a second video of a label"
    num_groups = counted(len(_group_videos(videos)), "group")
    return (
        f"the videos form {num_groups} that cannot be divided (the same group, or copies of a "
        f"file), and training needs every label; add videos of other groups, or a column split"
    )


def select_part(catalog: Catalog, part: str) -> Catalog:
    """Part I of N of the videos (`2/8`), by a hash of their ids."""
    numbers = re.fullmatch(r"(\d{1,6})/(\d{1,6})", part.strip())
    part_index, num_parts = map(int, numbers.groups()) if numbers else (0, 0)
    if not 1 <= part_index <= num_parts:
        raise CatalogError(f"--part must be I/N with 1 ≤ I ≤ N, such as 2/8; got {part}")
    videos = []
    for video in catalog:
        digest = hashlib.blake2b(os.fsencode(video.id), digest_size=8).digest()
        if int.from_bytes(digest, "big") % num_parts == part_index - 1:
            videos.append(video)
    if not videos:
        raise CatalogError(f"none of the {len(catalog)} videos is in part {part}; use fewer parts")
    return catalog.only(videos)


def scored_split(videos: Iterable[Video]) -> str:
    """The split that probes are scored on: `test` if it has labels or targets, else `val`."""
    has_test = any(video.split == "test" and video.is_labelled for video in videos)
    return "test" if has_test else "val"


def hold_out_groups(catalog: Catalog, groups: Sequence[str]) -> Catalog:
    """Move the training videos of some groups to the split `val`."""
    train_groups = {v.group for v in catalog if v.split == "train" and v.group is not None}
    for group in groups:
        if group not in train_groups:
            available = ", ".join(sorted(train_groups)) or "none"
            raise CatalogError(f"no training video of the group {group!r}; available: {available}")
    if train_groups and train_groups == set(groups):
        raise CatalogError(f"no training videos left without the groups {', '.join(groups)}")
    return catalog.only(
        replace(video, split="val") if video.split == "train" and video.group in groups else video
        for video in catalog
    )


def keep_fraction(
    catalog: Catalog, fraction: float, *, generator: np.random.Generator | None = None
) -> Catalog:
    """Keep a fraction of each class of the train split, at least one video; the rest is unchanged.

    Without a generator these are the first videos of the catalog, as in the published protocol.
    """
    if not 0.0 < fraction <= 1.0:
        raise CatalogError(f"the fraction to keep must be above 0 and up to 1, got {fraction}")
    labelled_videos = [video for video in catalog.split("train") if video.label is not None]
    class_labels = [video.label for video in labelled_videos]
    indices = subset_indices(class_labels, fraction=fraction, generator=generator)
    train_ids = {labelled_videos[index].id for index in indices}
    return catalog.only(
        video for video in catalog if video.split != "train" or video.id in train_ids
    )


def subset_indices(
    labels: Sequence[Hashable], *, fraction: float, generator: np.random.Generator | None = None
) -> list[int]:
    """Indices of a subset with a fraction of each class, and at least one of it.

    Without a generator these are the first ones, as in the published protocol.
    """
    by_class: dict[Any, list[int]] = defaultdict(list)
    for index, label in enumerate(labels):
        by_class[label].append(index)
    subset: list[int] = []
    for _, indices in sorted(by_class.items()):
        class_size = len(indices)
        order = range(class_size) if generator is None else generator.permutation(class_size)
        subset += [indices[i] for i in list(order)[: max(1, int(fraction * class_size))]]
    return sorted(subset)


def _draw_test_ids(
    all_groups: list[list[Video]], test_fraction: float, generator: np.random.Generator
) -> set[str]:
    """The ids of the test videos, which have labels.

    Groups are visited in random order. A group is drawn if that brings its classes closer to their
    target sizes, and leaves each of them a training video. If there is none, the smallest group
    that leaves each class a training video is drawn.
    """
    labelled = ([video for video in group if video.is_labelled] for group in all_groups)
    groups = [group for group in labelled if group]
    class_sizes = Counter(video.label for group in groups for video in group)
    target_sizes = {  # at least one video, if one is left for training
        label: min(max(1, round(size * test_fraction)), size - 1)
        for label, size in class_sizes.items()
    }
    test_sizes: Counter[str | None] = Counter()
    test_ids: set[str] = set()
    smallest_group: list[Video] = []
    for group_index in generator.permutation(len(groups)):
        group = groups[group_index]
        added = Counter(video.label for video in group)
        if all(n < class_sizes[label] for label, n in added.items()):
            smallest_group = min(smallest_group or group, group, key=len)
        leaves_some = all(test_sizes[label] + n < class_sizes[label] for label, n in added.items())
        before = sum(abs(target_sizes[label] - test_sizes[label]) for label in added)
        after = sum(abs(target_sizes[label] - test_sizes[label] - n) for label, n in added.items())
        if leaves_some and after < before:
            test_sizes.update(added)
            test_ids.update(video.id for video in group)
    return test_ids or {video.id for video in smallest_group}


def _group_videos(videos: list[Video]) -> list[list[Video]]:
    """Videos that must stay together: those of one group, and copies of one file."""
    file_keys = find_file_keys(video.path for video in videos)
    group_of_key: dict[tuple[str, str | None], list[Video]] = {}
    for video in videos:
        keys = [("file", file_keys[video.path])]
        keys += [("group", video.group)] if video.group is not None else []
        matches = {id(group): group for key in keys if (group := group_of_key.get(key))}
        merged, *others = list(matches.values()) or [[]]
        for other in others:
            merged += other
            group_of_key |= {key: merged for key, group in group_of_key.items() if group is other}
        merged.append(video)
        group_of_key |= dict.fromkeys(keys, merged)
    return list({id(group): group for group in group_of_key.values()}.values())
