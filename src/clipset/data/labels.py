"""Labels, splits and groups in one spelling each, as tables and folders vary them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from clipset.progress import log
from clipset.text import normal_form

SPLIT_NAMES = {
    "train": "train", "training": "train", "test": "test", "testing": "test",
    "val": "val", "valid": "val", "validate": "val", "validation": "val",
}  # fmt: skip
MISSING_VALUES = frozenset(("", "nan", "NaN", "None", "null", "NULL", "NA", "N/A", "n/a", "<NA>"))
"""How pandas and others write a missing value."""
TEXT_COLUMNS = ("label", "split", "group")


def split_name(text: str) -> str:
    """The canonical name of a split: `Train` and ` training` are train; other names stay."""
    name = normal_form(text)
    return SPLIT_NAMES.get(name.lower(), name)


def is_split_name(text: str) -> bool:
    """Whether a text names train, test or val."""
    return split_name(text) in SPLIT_NAMES.values()


def clean_rows(rows: Iterable[dict[str, str]], source: str) -> list[dict[str, str]]:
    """The rows with label, split and group in one spelling each, and without missing values.

    Prints how many values were missing and which spellings were merged.
    """
    cleaned = [dict(row) for row in rows]
    for column in TEXT_COLUMNS:
        _drop_missing(cleaned, column, source)
        _merge_spellings(cleaned, column, source)
    _drop_missing(cleaned, "target", source)
    return cleaned


def warn_about_case(labels: Sequence[str], source: str) -> None:
    """Print labels that differ only by case; they stay separate classes."""
    by_folded: defaultdict[str, list[str]] = defaultdict(list)
    for label in labels:
        by_folded[label.casefold()].append(label)
    similar = [names for names in by_folded.values() if len(names) > 1]
    if similar:
        names = " and ".join(repr(name) for name in similar[0])
        more = f" (and {len(similar) - 1} more)" if len(similar) > 1 else ""
        log(f"{source}: the labels {names}{more} differ only by case and stay separate classes")


def _drop_missing(rows: list[dict[str, str]], column: str, source: str) -> None:
    missing = [row for row in rows if column in row and row[column].strip() in MISSING_VALUES]
    values = sorted({row.pop(column) for row in missing})
    if missing:
        examples = ", ".join(repr(value) for value in values[:3])
        log(f"{source}: {len(missing)} videos have no {column} ({examples} means missing)")


def _merge_spellings(rows: list[dict[str, str]], column: str, source: str) -> None:
    spellings: defaultdict[str, set[str]] = defaultdict(set)
    for row in rows:
        if column in row:
            clean = split_name(row[column]) if column == "split" else normal_form(row[column])
            spellings[clean].add(row[column])
            row[column] = clean
    merged = {clean: sorted(raw) for clean, raw in spellings.items() if len(raw) > 1}
    if merged:
        clean, raw = next(iter(merged.items()))
        names = " and ".join(ascii(text) if text != clean else repr(text) for text in raw[:2])
        difference = "case, spaces" if column == "split" else "spaces"
        log(
            f"{source}: merged the spellings of {len(merged)} {column}s that differ only by "
            f"{difference} or Unicode form, such as {names}"
        )
