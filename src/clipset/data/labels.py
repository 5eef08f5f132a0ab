"""One spelling for one thing: labels, splits and groups as tables and folders give them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from clipset.progress import say
from clipset.text import normal_form

SPLIT_NAMES = {
    "train": "train", "training": "train", "test": "test", "testing": "test",
    "val": "val", "valid": "val", "validate": "val", "validation": "val",
}  # fmt: skip
MISSING = frozenset(("", "nan", "NaN", "None", "null", "NULL", "NA", "N/A", "n/a", "<NA>"))
"""How pandas and others write that there is no value."""
WORDS = ("label", "split", "group")


def split_name(text: str) -> str:
    """The split that a word means: `Train` and ` training` are train; other words stay."""
    word = normal_form(text)
    return SPLIT_NAMES.get(word.lower(), word)


def is_split_name(text: str) -> bool:
    """Whether a word means train, test or val."""
    return split_name(text) in SPLIT_NAMES.values()


def clean_rows(rows: Iterable[dict[str, str]], source: str) -> list[dict[str, str]]:
    """The rows with label, split and group in one spelling each, and without missing values.

    Says how many values were missing, and which spellings were joined.
    """
    cleaned = [dict(row) for row in rows]
    for column in WORDS:
        _drop_missing(cleaned, column, source)
        _join_spellings(cleaned, column, source)
    _drop_missing(cleaned, "target", source)
    return cleaned


def say_case(labels: Sequence[str], source: str) -> None:
    """Name labels that differ only by case; they stay classes of their own."""
    by_folded: defaultdict[str, list[str]] = defaultdict(list)
    for label in labels:
        by_folded[label.casefold()].append(label)
    alike = [names for names in by_folded.values() if len(names) > 1]
    if alike:
        names = " and ".join(repr(name) for name in alike[0])
        more = f" (and {len(alike) - 1} more)" if len(alike) > 1 else ""
        say(f"{source}: the labels {names}{more} differ only by case and stay separate classes")


def _drop_missing(rows: list[dict[str, str]], column: str, source: str) -> None:
    missing = [row for row in rows if column in row and row[column].strip() in MISSING]
    words = sorted({row.pop(column) for row in missing})
    if missing:
        shown = ", ".join(repr(word) for word in words[:3])
        say(f"{source}: {len(missing)} videos have no {column} ({shown} is no value)")


def _join_spellings(rows: list[dict[str, str]], column: str, source: str) -> None:
    spellings: defaultdict[str, set[str]] = defaultdict(set)
    for row in rows:
        if column in row:
            clean = split_name(row[column]) if column == "split" else normal_form(row[column])
            spellings[clean].add(row[column])
            row[column] = clean
    joined = {clean: sorted(raw) for clean, raw in spellings.items() if len(raw) > 1}
    if joined:
        clean, raw = next(iter(joined.items()))
        names = " and ".join(ascii(word) if word != clean else repr(word) for word in raw[:2])
        how = "case, spaces" if column == "split" else "spaces"
        say(
            f"{source}: {len(joined)} {column}s are spelled in several ways that differ only by "
            f"{how} or Unicode form and were joined, such as {names}"
        )
