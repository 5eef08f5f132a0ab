"""Which files are served, and the cache of what is made of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.conftest import write_video

from clipset.data.catalog import Video
from clipset.data.file_state import read_file_state
from clipset.errors import VideoError
from clipset.features.ledger import LedgerEntry
from clipset.web.media import MediaCache, MediaLibrary


@pytest.fixture
def library(tmp_path: Path) -> Iterator[MediaLibrary]:
    """One video that was read, and the same one as if its features had been imported."""
    path = write_video(tmp_path / "videos" / "a.mp4")
    video = Video(id="a", path=path)
    entry = LedgerEntry(ordinal=0, id="a", status="done", file=read_file_state(path))
    cache = MediaCache(tmp_path / "cache", 1 << 20)
    library = MediaLibrary([video, video], [entry, replace(entry, file=None)], cache, tmp_path)
    yield library
    library.close()


def test_a_link_that_leads_elsewhere_is_refused(library: MediaLibrary, tmp_path: Path) -> None:
    path = library.videos[0].path
    assert library.open_file(0).path == library.open_file(1).path == path
    secret = write_video(tmp_path / "elsewhere" / "secret.mp4")
    path.unlink()
    path.symlink_to(secret)
    for index in (0, 1):
        with pytest.raises(VideoError, match="leads to another file"):
            library.open_file(index)
    path.unlink()
    path.parent.rename(tmp_path / "moved")
    path.parent.symlink_to(secret.parent)
    (secret.parent / "a.mp4").write_bytes(secret.read_bytes())
    with pytest.raises(VideoError, match="leads to another file"):
        library.open_file(0)


def test_a_link_that_was_read_is_served(library: MediaLibrary, tmp_path: Path) -> None:
    link = tmp_path / "links" / "b.mp4"
    link.parent.mkdir()
    link.symlink_to(library.videos[0].path)
    library.videos = [Video(id="b", path=link)]
    library.entries = [LedgerEntry(ordinal=0, id="b", status="done", file=read_file_state(link))]
    assert library.open_file(0).path == tmp_path / "videos" / "a.mp4"


def test_only_regular_files_that_are_called_like_a_video_are_served(
    library: MediaLibrary, tmp_path: Path
) -> None:
    text = tmp_path / "videos" / "passwd"
    text.write_text("root")
    pipe = tmp_path / "videos" / "pipe.mp4"
    os.mkfifo(pipe)
    unread = replace(library.entries[0], file=None)
    for path, reason in ((text, "not called like a video"), (pipe, "not a regular file")):
        library.videos, library.entries = [Video(id="x", path=path)], [unread]
        with pytest.raises(VideoError, match=reason):
            library.open_file(0)


def test_a_file_that_is_no_video_gives_its_reason_once(library: MediaLibrary) -> None:
    path = library.videos[0].path
    path.write_bytes(b"no video")
    file = library.open_file(0)
    for _ in range(2):
        with pytest.raises(VideoError, match="not a video file"):
            library.make(file, 0, "thumbnail").result()
    assert library.find_problem(0) == "the file has changed since its features were extracted"
    assert list(library.cache.folder.iterdir()) == []


def test_the_same_picture_is_made_once_and_found_after_a_restart(library: MediaLibrary) -> None:
    file = library.open_file(0)
    first = [library.make(file, 0, "thumbnail") for _ in range(5)]
    path = first[0].result()
    assert {future.result() for future in first} == {path}
    made = path.stat().st_ctime_ns
    library.cache = MediaCache(library.cache.folder, 1 << 20)
    again = library.make(file, 0, "thumbnail").result()
    assert again == path
    assert path.read_bytes()
    assert made


def test_the_cache_has_a_limit_and_forgets_what_was_used_least(tmp_path: Path) -> None:
    cache = MediaCache(tmp_path / "cache", 300)

    def add(name: str) -> None:
        temporary = cache.temporary()
        temporary.write_bytes(b"x" * 100)
        cache.add(name, temporary)

    for name in ("a", "b", "c"):
        add(name)
    assert cache.find("a") is not None
    add("d")
    assert cache.find("b") is None
    assert sorted(path.name for path in cache.folder.iterdir()) == ["a", "c", "d"]
    (cache.folder / ".new-9").write_bytes(b"left behind")
    (cache.folder / "c").unlink()
    assert cache.find("c") is None
    smaller = MediaCache(cache.folder, 150)
    assert sorted(path.name for path in smaller.folder.iterdir()) in (["a"], ["d"])
