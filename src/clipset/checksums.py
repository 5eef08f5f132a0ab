"""Checksums: the sha256 of files, and safetensors files that hold their own checksum.

The checksum of a sealed file is in its own header, and was computed while zeros were in its place.
The header also holds the checksums of the files beside it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from clipset.config import parse_json
from clipset.errors import ConfigError

BESIDE = "checksum of "  # before the names of the files beside it
BLANK = b'"checksum":"%s"' % (b"0" * 32)
FIELD = re.compile(rb'"checksum":"[0-9a-f]{32}"')
MAX_HEADER_BYTES = 100_000_000  # the limit of safetensors
CHUNK = 1 << 20


def sha256_of_file(path: Path) -> str:
    """The sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of_files(paths: Sequence[Path]) -> str:
    """The sha256 of a file; of several, that of their sha256s."""
    file_digests = [sha256_of_file(path) for path in paths]
    whole = hashlib.sha256("".join(file_digests).encode()).hexdigest()
    return file_digests[0] if len(file_digests) == 1 else whole


def seal(content: bytes, beside: Mapping[str, bytes] | None = None) -> bytes:
    """The same safetensors file with its checksum and those of the files that go beside it."""
    header_size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + header_size])
    file_metadata = header.pop("__metadata__", {}) | {"checksum": "0" * 32}
    file_metadata |= {BESIDE + name: _digest(text) for name, text in (beside or {}).items()}
    new_header = {"__metadata__": dict(sorted(file_metadata.items())), **header}
    text = json.dumps(new_header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    first, body = len(text).to_bytes(8, "little") + text, memoryview(content)[8 + header_size :]
    return b"".join([first.replace(BLANK, _field(_digest(first, body)), 1), body])


def find_damage(path: Path, *, beside: str | None = None) -> str | None:
    """The problem of a sealed file, or of one beside it; None if both are intact.

    `beside` names a file that must be among those.
    """
    try:
        file_metadata = _read_header(path)
        names = [name.removeprefix(BESIDE) for name in file_metadata if name.startswith(BESIDE)]
        if beside is not None and beside not in names:
            return f"{path.name} has no checksum of {beside}"
        for name in names:
            other_path = path.with_name(name)
            if other_path.is_file() and _digest_of_file(other_path) != file_metadata[BESIDE + name]:
                return f"{name} is not the file that was written"
    except ValueError as error:
        return str(error)
    except OSError as error:
        return f"{path.name} cannot be read: {error.strerror}"
    return None


def _read_header(path: Path) -> dict[str, str]:
    """The metadata of a file whose bytes have been checked."""
    with path.open("rb") as file:
        length = file.read(8)
        header_text = file.read(min(int.from_bytes(length, "little"), MAX_HEADER_BYTES))
        fields = FIELD.findall(header_text)
        if not fields:
            raise ValueError(f"{path.name} has no checksum")
        digest = hashlib.blake2b(length + header_text.replace(fields[0], BLANK, 1), digest_size=16)
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    if len(fields) > 1 or fields[0] != _field(digest.hexdigest()):
        raise ValueError(f"{path.name} is not the file that was written")
    try:
        file_metadata = parse_json(header_text, path.name)["__metadata__"]
    except (ConfigError, KeyError, TypeError):
        raise ValueError(f"{path.name} has no header") from None
    return {str(name): str(value) for name, value in file_metadata.items()}


def _digest_of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _digest(*contents: bytes | memoryview) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for content in contents:
        digest.update(content)
    return digest.hexdigest()


def _field(digest: str) -> bytes:
    return b'"checksum":"%s"' % digest.encode()
