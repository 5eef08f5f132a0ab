"""Who learns and who is tested: random splits by class and by group, and low-shot subsets."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from clipset.data.catalog import Catalog, Video
from clipset.data.leaks import find_file_keys
from clipset.errors import CatalogError


def assign_splits(catalog: Catalog, *, test_fraction: float, seed: int) -> Catalog:
    """Give each labelled video the split train or test; a catalog that has splits stays as it is.

    Every class keeps its share in both, and at least one video in train. Videos of one group stay
    together, and so do copies of one file.
    """
    if not 0.0 < test_fraction < 1.0:
        raise CatalogError(f"the test fraction must lie between 0 and 1, got {test_fraction}")
    if catalog.splits:
        return catalog
    labelled = [video for video in catalog if video.label is not None]
    tested = _choose_tested(labelled, test_fraction, np.random.default_rng(seed))
    return catalog.only(
        replace(video, split="test" if video.id in tested else "train") if video.label else video
        for video in catalog
    )


def hold_out_groups(catalog: Catalog, groups: Sequence[str]) -> Catalog:
    """The videos of the train split that belong to some groups become the split `val`."""
    there = {video.group for video in catalog if video.split == "train" and video.group is not None}
    for group in groups:
        if group not in there:
            known = ", ".join(sorted(there)) or "none"
            raise CatalogError(f"no training video is of the group {group!r}; there are: {known}")
    if there and there == set(groups):
        raise CatalogError(f"nothing is left to learn from without the groups {', '.join(groups)}")
    return catalog.only(
        replace(video, split="val") if video.split == "train" and video.group in groups else video
        for video in catalog
    )


def keep_fraction(
    catalog: Catalog,
    fraction: float,
    *,
    split: str = "train",
    generator: np.random.Generator | None = None,
) -> Catalog:
    """Keep a share of each class of one split, at least one video; the other splits stay whole.

    Without a generator these are the first ones of the catalog, as in the published protocol.
    """
    if not 0.0 < fraction <= 1.0:
        raise CatalogError(f"the fraction to keep must lie above 0 and up to 1, got {fraction}")
    return _keep(catalog, lambda size: max(1, int(fraction * size)), split, generator)


def keep_per_class(
    catalog: Catalog,
    count: int,
    *,
    split: str = "train",
    generator: np.random.Generator | None = None,
) -> Catalog:
    """Keep `count` videos of each class of one split (all, if it has fewer)."""
    if count < 1:
        raise CatalogError(f"at least 1 video of each class has to stay, got {count}")
    return _keep(catalog, lambda size: min(count, size), split, generator)


def keep_of_each(
    labels: Sequence[Hashable],
    *,
    share: float | None = None,
    count: int | None = None,
    generator: np.random.Generator | None = None,
) -> list[int]:
    """Places of the labels that stay: a share of each class (at least one), or a count of each.

    Without a generator these are the first ones, as in the published protocol.
    """
    if share is not None:
        return _places(labels, lambda size: max(1, int(share * size)), generator)
    return _places(labels, lambda size: size if count is None else min(count, size), generator)


def _keep(
    catalog: Catalog,
    share: Callable[[int], int],
    split: str,
    generator: np.random.Generator | None,
) -> Catalog:
    there = [video for video in catalog.split(split) if video.label is not None]
    kept = {there[place].id for place in _places([v.label for v in there], share, generator)}
    return catalog.only(video for video in catalog if video.split != split or video.id in kept)


def _places(
    labels: Sequence[Hashable],
    share: Callable[[int], int],
    generator: np.random.Generator | None,
) -> list[int]:
    by_class: dict[Any, list[int]] = defaultdict(list)
    for place, label in enumerate(labels):
        by_class[label].append(place)
    kept: list[int] = []
    for _, places in sorted(by_class.items()):
        order = range(len(places)) if generator is None else generator.permutation(len(places))
        kept += [places[number] for number in list(order)[: share(len(places))]]
    return sorted(kept)


def _choose_tested(
    videos: list[Video], test_fraction: float, generator: np.random.Generator
) -> set[str]:
    """The ids of the test videos: groups in random order, each taken if that brings classes nearer
    to their share and leaves them something to learn from."""
    sizes = Counter(video.label for video in videos)
    wanted = {label: _share(size, test_fraction) for label, size in sizes.items()}
    taken: Counter[str | None] = Counter()
    tested: set[str] = set()
    groups = _groups(videos)
    for place in generator.permutation(len(groups)):
        group = groups[place]
        adds = Counter(video.label for video in group)
        leaves_some = all(taken[label] + n < sizes[label] for label, n in adds.items())
        before = sum(abs(wanted[label] - taken[label]) for label in adds)
        after = sum(abs(wanted[label] - taken[label] - n) for label, n in adds.items())
        if leaves_some and after < before:
            taken.update(adds)
            tested.update(video.id for video in group)
    return tested


def _share(size: int, fraction: float) -> int:
    """How many of a class's videos are for testing: at least one, if one is left for training."""
    return min(max(1, round(size * fraction)), size - 1)


def _groups(videos: list[Video]) -> list[list[Video]]:
    """Videos that must stay together: those of one group, and copies of one file."""
    keys = find_file_keys(video.path for video in videos)
    together: dict[tuple[str, str | None], list[Video]] = {}
    for video in videos:
        names = [("file", keys[video.path])]
        names += [("group", video.group)] if video.group is not None else []
        known = list({id(each): each for name in names if (each := together.get(name))}.values())
        group = known[0] if known else []
        for other in known[1:]:
            group += other
            together |= {name: group for name, each in together.items() if each is other}
        group.append(video)
        together |= dict.fromkeys(names, group)
    return list({id(group): group for group in together.values()}.values())
