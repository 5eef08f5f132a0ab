"""Leaks: what is learned from and scored by at once, found before anything is trained."""

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
from clipset.data.file_state import file_digest
from clipset.data.labels import warn_about_case
from clipset.errors import CatalogError
from clipset.progress import say

SPLITS = ("train", "val", "test")
CHUNK_BYTES = 1 << 20

FileKeys = Mapping[Path, str]
"""A key for each path: equal for the same file and for files of the same content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leak:
    """Something that two splits share; `example` names it."""

    kind: Literal["file", "group"]
    splits: tuple[str, str]
    count: int
    example: str

    def __str__(self) -> str:
        first, second = self.splits
        what = {
            "file": ("video of {1} is the same file as one of {0}",
                     "videos of {1} are the same files as some of {0}"),
            "group": ("group is in {0} and {1}", "groups are in {0} and {1}"),
        }[self.kind][self.count > 1]  # fmt: skip
        return f"{self.count} {what.format(first, second)} ({self.example})"


def check_leaks(
    catalogs: Sequence[Catalog], *, allow_leaks: bool = False, unknown: Sequence[str] = ()
) -> list[str]:
    """Refuse catalogs whose splits share files or groups, and `unknown` ids; what was allowed.

    With `allow_leaks` each is said instead.
    """
    lines = describe_leaks(catalogs)
    if unknown:
        ids = "id of the catalog is" if len(unknown) == 1 else "ids of the catalog are"
        lines.append(f"{len(unknown)} {ids} not in the store (such as {unknown[0]!r})")
    if lines and not allow_leaks:
        raise CatalogError(f"{'; '.join(lines)}; correct the catalog, or pass --allow-leaks")
    for line in lines:
        say(f"allowed: {line}")
    return lines


def describe_leaks(catalogs: Sequence[Catalog]) -> list[str]:
    """Each leak of some catalogs of the same videos in words.

    Copies within a split, and labels that differ only by case, are no leaks and only said.
    """
    keys = find_file_keys(video.path for catalog in catalogs for video in catalog)
    lines: list[str] = []
    for catalog in catalogs:
        whose = f"{catalog.name}: " if len(catalogs) > 1 else ""
        lines += [f"{whose}{leak}" for leak in find_leaks(catalog, keys)]
        warn_about_case(catalog.classes, catalog.name)
    for copies in dict.fromkeys(describe_copies(catalog, keys) for catalog in catalogs):
        if copies:
            say(copies)
    return lines


def find_leaks(catalog: Catalog, keys: FileKeys | None = None) -> list[Leak]:
    """What two of the splits train, val and test share: files by path or content, and groups."""
    if keys is None:
        keys = find_file_keys(video.path for video in catalog)
    videos = {name: [video for video in catalog if video.split == name] for name in SPLITS}
    leaks = []
    for pair in combinations(SPLITS, 2):
        first, second = (videos[name] for name in pair)
        leaks += [*_shared_files(first, second, keys, pair), *_shared_groups(first, second, pair)]
    return leaks


def describe_copies(catalog: Catalog, keys: FileKeys) -> str:
    """How many videos are the same file as another one of their split, in one line."""
    first: dict[tuple[str | None, str], Video] = {}
    copies: list[tuple[Video, Video]] = []
    for video in catalog:
        known = first.setdefault((video.split, keys[video.path]), video)
        if known is not video:
            copies.append((video, known))
    if not copies:
        return ""
    one, other = copies[0]
    are = "video is a copy of another" if len(copies) == 1 else "videos are copies of others"
    return f"{len(copies)} {are} of the same split (such as {one.id!r} of {other.id!r})"


def find_file_keys(paths: Iterable[Path]) -> dict[Path, str]:
    """Keys of files. Only files of one size are read, and whole only if their digests agree."""
    keys: dict[Path, str] = {}
    by_size: defaultdict[int, dict[str, list[Path]]] = defaultdict(dict)
    for path in dict.fromkeys(paths):
        keys[path] = os.path.abspath(path)  # noqa: PTH100 (also of what does not exist)
        try:
            keys[path] = file = os.path.realpath(path)
            status = path.stat()
        except (OSError, ValueError):
            continue
        if stat.S_ISREG(status.st_mode) and status.st_size:
            by_size[status.st_size].setdefault(file, []).append(path)
    for files in by_size.values():
        for same in _equal_contents(files):
            keys |= dict.fromkeys((path for file in same for path in files[file]), same[0])
    return keys


def _equal_contents(files: Mapping[str, Sequence[Path]]) -> list[list[str]]:
    """Which of some files of one size have the same content."""
    groups = [list(files)]
    for digest in (file_digest, _whole_digest):
        groups = [
            same
            for group in groups
            if len(group) > 1
            for same in _group_by_digest(group, files, digest)
        ]
    return [group for group in groups if len(group) > 1]


def _group_by_digest(
    group: Sequence[str], files: Mapping[str, Sequence[Path]], digest: Callable[[Path], str]
) -> list[list[str]]:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for file in group:
        try:
            found[digest(files[file][0])].append(file)
        except OSError:  # whoever opens it as a video says so
            continue
    return list(found.values())


def _whole_digest(path: Path) -> str:
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _shared_files(
    first: Sequence[Video], second: Sequence[Video], keys: FileKeys, pair: tuple[str, str]
) -> list[Leak]:
    known = {keys[video.path]: video for video in first}
    shared = [video for video in second if keys[video.path] in known]
    if not shared:
        return []
    example = f"{shared[0].id!r} is {known[keys[shared[0].path]].id!r}"
    return [Leak(kind="file", splits=pair, count=len(shared), example=example)]


def _shared_groups(
    first: Sequence[Video], second: Sequence[Video], pair: tuple[str, str]
) -> list[Leak]:
    shared = sorted({v.group for v in first if v.group} & {v.group for v in second if v.group})
    if not shared:
        return []
    return [Leak(kind="group", splits=pair, count=len(shared), example=f"such as {shared[0]!r}")]
