"""Leaks: files and groups that two splits share, detected before training."""

from __future__ import annotations

import hashlib
import os
import stat
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Literal

from clipset.data.catalog import Catalog, Video
from clipset.data.file_state import sampled_digest
from clipset.data.labels import warn_about_case
from clipset.errors import CatalogError
from clipset.progress import log

SPLITS = ("train", "val", "test")
CHUNK_BYTES = 1 << 20

FileKeys = Mapping[Path, str]
"""A key for each path, equal for links to one file and for files with the same content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leak:
    """Files or groups that two splits share; `example` names one."""

    kind: Literal["file", "group"]
    splits: tuple[str, str]
    count: int
    example: str

    def __str__(self) -> str:
        first, second = self.splits
        description = {
            "file": ("video of {1} is the same file as one of {0}",
                     "videos of {1} are the same files as some of {0}"),
            "group": ("group is in {0} and {1}", "groups are in {0} and {1}"),
        }[self.kind][self.count > 1]  # fmt: skip
        return f"{self.count} {description.format(first, second)} ({self.example})"


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
    keys = find_file_keys(video.path for catalog in catalogs for video in catalog)
    lines: list[str] = []
    for catalog in catalogs:
        prefix = f"{catalog.name}: " if len(catalogs) > 1 else ""
        lines += [f"{prefix}{leak}" for leak in find_leaks(catalog, keys)]
        warn_about_case(catalog.classes, catalog.name)
    for copies in dict.fromkeys(describe_copies(catalog, keys) for catalog in catalogs):
        if copies:
            log(copies)
    return lines


def find_leaks(catalog: Catalog, keys: FileKeys | None = None) -> list[Leak]:
    """Files (by path or content) and groups that two of train, val and test share."""
    if keys is None:
        keys = find_file_keys(video.path for video in catalog)
    videos = {name: [video for video in catalog if video.split == name] for name in SPLITS}
    leaks = []
    for splits in combinations(SPLITS, 2):
        first, second = (videos[name] for name in splits)
        leaks += _shared_files(first, second, keys, splits)
        leaks += _shared_groups(first, second, splits)
    return leaks


def describe_copies(catalog: Catalog, keys: FileKeys) -> str:
    """One line about copies of files within a split; empty if there are none."""
    originals: dict[tuple[str | None, str], Video] = {}
    copies: list[tuple[Video, Video]] = []
    for video in catalog:
        original = originals.setdefault((video.split, keys[video.path]), video)
        if original is not video:
            copies.append((video, original))
    if not copies:
        return ""
    copy, original = copies[0]
    are = "video is a copy of another" if len(copies) == 1 else "videos are copies of others"
    return f"{len(copies)} {are} of the same split (such as {copy.id!r} of {original.id!r})"


def find_file_keys(paths: Iterable[Path]) -> dict[Path, str]:
    """The keys of files. Only files of equal size are read, and whole only if digests agree."""
    keys: dict[Path, str] = {}
    by_size: defaultdict[int, dict[str, list[Path]]] = defaultdict(dict)
    for path in dict.fromkeys(paths):
        keys[path] = os.path.abspath(path)  # noqa: PTH100 (also of what does not exist)
        try:
            keys[path] = real_path = os.path.realpath(path)
            status = path.stat()
        except (OSError, ValueError):
            continue
        if stat.S_ISREG(status.st_mode) and status.st_size:
            by_size[status.st_size].setdefault(real_path, []).append(path)
    for files in by_size.values():
        for copies in _find_equal_files(files):
            keys |= dict.fromkeys((path for file in copies for path in files[file]), copies[0])
    return keys


def _find_equal_files(files: Mapping[str, Sequence[Path]]) -> list[list[str]]:
    """Groups of files with the same content, among files of equal size."""
    groups = [list(files)]
    for digest in (sampled_digest, _whole_digest):
        groups = [
            subgroup
            for group in groups
            if len(group) > 1
            for subgroup in _group_by_digest(group, files, digest)
        ]
    return [group for group in groups if len(group) > 1]


def _group_by_digest(
    group: Sequence[str], files: Mapping[str, Sequence[Path]], digest: Callable[[Path], str]
) -> list[list[str]]:
    by_digest: defaultdict[str, list[str]] = defaultdict(list)
    for file in group:
        try:
            by_digest[digest(files[file][0])].append(file)
        except OSError:  # reported when it is opened as a video
            continue
    return list(by_digest.values())


def _whole_digest(path: Path) -> str:
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _shared_files(
    first: Sequence[Video], second: Sequence[Video], keys: FileKeys, splits: tuple[str, str]
) -> list[Leak]:
    by_key = {keys[video.path]: video for video in first}
    shared = [video for video in second if keys[video.path] in by_key]
    if not shared:
        return []
    example = f"{shared[0].id!r} is {by_key[keys[shared[0].path]].id!r}"
    return [Leak(kind="file", splits=splits, count=len(shared), example=example)]


def _shared_groups(
    first: Sequence[Video], second: Sequence[Video], splits: tuple[str, str]
) -> list[Leak]:
    shared = sorted({v.group for v in first if v.group} & {v.group for v in second if v.group})
    if not shared:
        return []
    return [Leak(kind="group", splits=splits, count=len(shared), example=f"such as {shared[0]!r}")]
