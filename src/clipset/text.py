"""Text of names and labels: in ids, on any terminal, and in spreadsheets.

A file's name is bytes. As an id it is decoded as UTF-8, with other bytes escaped; as a path it
keeps its bytes.
"""

from __future__ import annotations

import codecs
import csv
import io
import os
import re
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import Any

REPLACEMENTS = {  # for encodings that lack our own characters
    "→": "->", "←": "<-", "×": "x", "–": "-", "—": "-", "−": "-", "…": "...", "·": "-",
    "≥": ">=", "≤": "<=", "±": "+/-", "’": "'", "‘": "'", "“": '"', "”": '"', "•": "*",
    "✓": "yes", "✗": "no", "ρ": "rho", "\u202f": " ", "\xa0": " ",
    "─": "-", "━": "-", "│": "|", "┃": "|", "╸": "-", "╺": "-",
}  # fmt: skip
THIN_SPACE = "\u202f"
ERRORS = "clipset.replacements"
"""The name of an error handler that never fails."""

_UNDECODABLE = re.compile("[\udc80-\udcff]")  # bytes that were not UTF-8, by surrogateescape
_HIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u061c\u2028-\u202e\u2066-\u2069\ufeff]")
_FORMULA = re.compile("'*[=+\\-@\t\r]")
_NEUTRALISED = re.compile("'+[=+\\-@\t\r]")
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?")


def name_text(name: str | Path) -> str:
    """A file's name as text, the same in every locale: bytes that are not UTF-8 become `\\xNN`."""
    return escape_undecodable(path_text(name))


def unique_ids(texts: Iterable[str]) -> dict[str, str]:
    """The id of each `path_text`: itself, or escaped and, if that is taken, with a number."""
    video_ids = {text: escape_undecodable(text) for text in texts}
    escaped_texts = [text for text, id in video_ids.items() if id != text]
    used_ids = video_ids.keys() - set(escaped_texts)
    for text in escaped_texts:
        next_number, plain_id = 1, video_ids[text]
        while video_ids[text] in used_ids:
            next_number += 1
            video_ids[text] = f"{plain_id}#{next_number}"
        used_ids.add(video_ids[text])
    return video_ids


def path_text(path: str | Path) -> str:
    """A path as text, which `text_path` turns back to the same bytes, in any locale."""
    try:
        return os.fsencode(path).decode("utf-8", errors="surrogateescape")
    except UnicodeEncodeError:  # no name of a file system of this locale: it is text already
        return str(path)


def text_path(text: str, folder: Path | str = "") -> Path:
    """The path that a text names in a folder, in any locale."""
    return Path(folder, os.fsdecode(text.encode("utf-8", errors="surrogateescape")))


def escape_undecodable(text: str) -> str:
    """The same text with NUL and with bytes that are not UTF-8 as `\\xNN`, as JSON needs it."""
    if text.isascii() and "\0" not in text:  # nearly all, and a catalog has many
        return text
    content = text.encode("utf-8", errors="surrogateescape")
    return content.decode("utf-8", errors="backslashreplace").replace("\0", "\\x00")


def decode_western(text: str) -> str:
    """The same text; if it has bytes that are not UTF-8, all of it read as Windows-1252.

    Bytes that Windows-1252 does not know are read as Latin-1.
    """
    if not _UNDECODABLE.search(text):
        return text
    content = text.encode("utf-8", errors="surrogateescape")
    decoded = content.decode("cp1252", errors="surrogateescape")
    return _UNDECODABLE.sub(lambda match: chr(ord(match[0]) - 0xDC00), decoded)


def visible(text: str) -> str:
    """The same text with control and direction characters escaped."""
    return _HIDDEN.sub(lambda match: _escape(match[0]), text)


def format_count(number: int) -> str:
    """An integer with its thousands apart."""
    return f"{number:,}".replace(",", THIN_SPACE)


def counted(number: int, one: str, many: str | None = None) -> str:
    """`1 video`, `3 videos`."""
    return f"{format_count(number)} {one if number == 1 else many or one + 's'}"


def normal_form(text: str) -> str:
    """The same text without spaces around it, in the composed form of Unicode (NFC)."""
    return unicodedata.normalize("NFC", text.strip())


def neutralise(cell: str) -> str:
    """A cell that no spreadsheet takes for a formula: if it begins like one, by an apostrophe."""
    if not _FORMULA.match(cell) or _NUMBER.fullmatch(cell):
        return cell
    return f"'{cell}"


def deneutralise(cell: str) -> str:
    """The inverse of `neutralise`."""
    return cell[1:] if _NEUTRALISED.match(cell) else cell


def csv_text(rows: Iterable[Iterable[Any]]) -> str:
    """Rows as a csv file that spreadsheets read as data and `csv.reader` reads back."""
    text = io.StringIO(newline="")
    plain = csv.writer(text, lineterminator="\n")
    quoted = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL)
    for row in rows:
        cells = [neutralise(cell) if isinstance(cell, str) else cell for cell in row]
        has_return = any(isinstance(cell, str) and "\r" in cell for cell in cells)
        (quoted if has_return else plain).writerow(cells)  # csv does not quote a lone return
    return text.getvalue()


def replace_unencodable(error: UnicodeError) -> tuple[str, int]:
    """An error handler of `str.encode`: replaces our own characters, escapes others."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    characters = error.object[error.start : error.end]
    replaced = (REPLACEMENTS.get(character) or _escape(character) for character in characters)
    return "".join(replaced), error.end


codecs.register_error(ERRORS, replace_unencodable)


def _escape(character: str) -> str:
    if "\udc80" <= character <= "\udcff":  # a byte that was not UTF-8
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape").decode()
