"""Labels, splits and groups in one spelling each, as tables and folders vary them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

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


def clean_rows(rows: Iterable[dict[str, str]], source: str) -> list[dict[str, str]]:
    """The rows with label, split and group in one spelling each, and without missing values.

    Prints how many values were missing and which spellings were merged.
    """
    cleaned = [dict(row) for row in rows]
    for column in (*TEXT_COLUMNS, "target"):
        missing: list[str] = []
        spellings: defaultdict[str, set[str]] = defaultdict(set)
        for row in (row for row in cleaned if column in row):
            raw_text = row[column]
            if raw_text.strip() in MISSING_VALUES:
                missing.append(row.pop(column))
            elif column != "target":
                row[column] = (split_name if column == "split" else normal_form)(raw_text)
                spellings[row[column]].add(raw_text)
        if missing:
            examples = ", ".join(repr(value) for value in sorted(set(missing))[:3])
            log(f"{source}: {len(missing)} videos have no {column} ({examples} means missing)")
        merged = [(text, sorted(raw)) for text, raw in spellings.items() if len(raw) > 1]
        if merged:
            text, raw = merged[0]
            names = " and ".join(repr(name) if name == text else ascii(name) for name in raw[:2])
            difference = "case, spaces" if column == "split" else "spaces"
            log(
                f"{source}: merged the spellings of {len(merged)} {column}s that differ only by "
                f"{difference} or Unicode form, such as {names}"
            )
    return cleaned
