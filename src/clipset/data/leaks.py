"""Leaks: files and groups that two splits share, detected before training."""

from __future__ import annotations

import os
import stat
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import combinations
from pathlib import Path

from clipset.checksums import sha256_of_file
from clipset.data.catalog import Catalog, Video
from clipset.data.file_state import sampled_digest
from clipset.errors import CatalogError
from clipset.progress import log

SPLITS = ("train", "val", "test")

FileKeys = Mapping[Path, str]
"""A key for each path, equal for links to one file and for files with the same content."""


def check_leaks(
    catalogs: Sequence[Catalog], *, allow_leaks: bool = False, unknown: Sequence[str] = ()
) -> list[str]:
    """Raise CatalogError if splits share files or groups, or if there are `unknown` ids.

    With `allow_leaks` the problems are printed and returned instead.
    """
    lines = describe_leaks(catalogs)
    if unknown:
        ids = "id of the catalog is" if len(unknown) == 1 else "ids of the catalog are"
        lines.append(f"{len(unknown)} {ids} not in the store (such as {unknown[0]!r})")
    if lines and not allow_leaks:
        raise CatalogError(f"{'; '.join(lines)}; correct the catalog, or pass --allow-leaks")
    for line in lines:
        log(f"allowed: {line}")
    return lines


def describe_leaks(catalogs: Sequence[Catalog]) -> list[str]:
    """The leaks of some catalogs of the same videos, a line for each.

    Also prints copies within a split and labels that differ only by case, which are not leaks.
    """
    file_keys = find_file_keys(video.path for catalog in catalogs for video in catalog)
    lines: list[str] = []
    for catalog in catalogs:
        prefix = f"{catalog.name}: " if len(catalogs) > 1 else ""
        lines += [f"{prefix}{leak}" for leak in find_leaks(catalog, file_keys)]
        _warn_about_case(catalog)
    for copies in dict.fromkeys(_describe_copies(catalog, file_keys) for catalog in catalogs):
        if copies:
            log(copies)
    return lines


def find_leaks(catalog: Catalog, file_keys: FileKeys | None = None) -> list[str]:
    """Files (by path or content) and groups that two of train, val and test share."""
    if file_keys is None:
        file_keys = find_file_keys(video.path for video in catalog)
    leaks = []
    for splits in combinations(SPLITS, 2):
        first_videos, second_videos = ([v for v in catalog if v.split == split] for split in splits)
        by_key = {file_keys[video.path]: video for video in first_videos}
        copies = [video for video in second_videos if file_keys[video.path] in by_key]
        if copies:
            phrase = "video of {1} is the same file as one of {0}"
            if len(copies) > 1:
                phrase = "videos of {1} are the same files as some of {0}"
            example = f"{copies[0].id!r} is {by_key[file_keys[copies[0].path]].id!r}"
            leaks.append(f"{len(copies)} {phrase.format(*splits)} ({example})")
        groups = {v.group for v in first_videos if v.group} & {v.group for v in second_videos}
        if groups:
            phrase = "groups are" if len(groups) > 1 else "group is"
            example = f"such as {min(groups)!r}"
            leaks.append(f"{len(groups)} {phrase} in {' and '.join(splits)} ({example})")
    return leaks


def find_file_keys(paths: Iterable[Path]) -> dict[Path, str]:
    """The keys of files. Only files of equal size are read, and whole only if digests agree."""
    real_paths = {path: _real_path(path) for path in dict.fromkeys(paths)}
    groups = [list(dict.fromkeys(real_paths.values()))]
    for find_key in (_regular_size, sampled_digest, sha256_of_file):
        by_key: defaultdict[tuple[int, object], list[str]] = defaultdict(list)
        for group_index, group in enumerate(groups):
            for real_path in group:
                with suppress(OSError, ValueError):  # reported when it is opened as a video
                    by_key[group_index, find_key(Path(real_path))].append(real_path)
        groups = [copies for copies in by_key.values() if len(copies) > 1]
    originals = {real_path: copies[0] for copies in groups for real_path in copies}
    return {path: originals.get(real_path, real_path) for path, real_path in real_paths.items()}


def _real_path(path: Path) -> str:
    try:
        return os.path.realpath(path)
    except (OSError, ValueError):  # a path with a NUL byte is a ValueError
        return os.path.abspath(path)  # noqa: PTH100


def _regular_size(path: Path) -> int:
    status = path.stat()
    if not stat.S_ISREG(status.st_mode) or not status.st_size:
        raise OSError(f"{path} is not a file with content")
    return status.st_size


def _describe_copies(catalog: Catalog, file_keys: FileKeys) -> str:
    """One line about copies of files within a split; empty if there are none."""
    originals: dict[tuple[str | None, str], Video] = {}
    copies: list[tuple[Video, Video]] = []
    for video in catalog:
        original = originals.setdefault((video.split, file_keys[video.path]), video)
        if original is not video:
            copies.append((video, original))
    if not copies:
        return ""
    copy, original = copies[0]
    phrase = "video is a copy of another" if len(copies) == 1 else "videos are copies of others"
    return f"{len(copies)} {phrase} of the same split (such as {copy.id!r} of {original.id!r})"


def _warn_about_case(catalog: Catalog) -> None:
    """Print labels that differ only by case; they stay separate classes."""
    by_folded: defaultdict[str, list[str]] = defaultdict(list)
    for label in catalog.classes:
        by_folded[label.casefold()].append(label)
    similar = [labels for labels in by_folded.values() if len(labels) > 1]
    if similar:
        names = " and ".join(repr(label) for label in similar[0])
        more = f" (and {len(similar) - 1} more)" if len(similar) > 1 else ""
        log(
            f"{catalog.name}: the labels {names}{more} differ only by case and stay separate "
            f"classes"
        )
