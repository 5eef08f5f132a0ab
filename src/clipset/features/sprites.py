"""The sprites of a store: a convenience for the page; a store works without them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

FOLDER_SPRITES = 1000  # sprites in one folder
MAX_SPRITE_BYTES = 1 << 20  # of one file; more was not written here


def sprite_path(store_folder: Path, ordinal: int) -> Path:
    """Where the sprite of a video is; `ordinal` is the video's number in the ledger."""
    return store_folder / "sprites" / f"{ordinal // FOLDER_SPRITES:03d}" / f"{ordinal:06d}.webp"


def sprite_files(store_folder: Path) -> list[Path]:
    """The files of all sprites."""
    return sorted(store_folder.glob("sprites/*/*.webp"))


def write_sprite(store_folder: Path, ordinal: int, content: bytes) -> None:
    """Write a video's sprite, or remove an old one if there is none."""
    path = sprite_path(store_folder, ordinal)
    if content:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    else:
        path.unlink(missing_ok=True)


def read_sprite(store_folder: Path, ordinal: int) -> bytes:
    """A video's sprite; empty if it has none, or only part of one."""
    path = sprite_path(store_folder.resolve(), ordinal)
    with suppress(OSError):
        is_own = path.is_file() and path == path.resolve()  # no link that leads elsewhere
        if is_own and path.stat().st_size <= MAX_SPRITE_BYTES:
            content = path.read_bytes()
            num_bytes = len(content) - 8  # as the header of a whole WebP file states
            if content[:12] == b"RIFF" + num_bytes.to_bytes(4, "little", signed=True) + b"WEBP":
                return content
    return b""
