"""A folder of videos: which files count, in which order, with which labels and splits."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clipset.data.catalog import read_catalog
from clipset.errors import CatalogError


def touch(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def ids(folder: Path) -> list[str]:
    return [video.id for video in read_catalog(folder)]


def test_videos_are_found_at_any_depth_in_natural_order(tmp_path: Path) -> None:
    touch(tmp_path, "b/clip10.mp4", "b/clip2.MP4", "a/x/y/z.webm", "a/1.Avi", "top.mkv")
    expected = ["a/1.Avi", "a/x/y/z.webm", "b/clip2.MP4", "b/clip10.mp4", "top.mkv"]
    assert ids(tmp_path) == expected
    assert all(video.path == tmp_path / video.id for video in read_catalog(tmp_path))


def test_other_files_and_hidden_files_are_left_out(tmp_path: Path) -> None:
    touch(tmp_path, "a.mp4", ".b.mp4", ".hidden/c.mp4", "d.txt", "mp4", "e.mp4.part", "f.jpg")
    assert ids(tmp_path) == ["a.mp4"]


def test_names_with_spaces_quotes_and_other_letters_are_kept(tmp_path: Path) -> None:
    names = ["a b.mp4", 'it\'s "so".mp4', "ñandú.mov", "видео.avi", "line\nbreak.gif"]
    touch(tmp_path, *names)
    assert sorted(ids(tmp_path)) == sorted(names)


def test_the_first_sub_folder_is_the_label(tmp_path: Path) -> None:
    touch(tmp_path, "cat/1.mp4", "dog/day 1/2.mp4", "3.mp4")
    labels = {video.id: (video.label, video.split) for video in read_catalog(tmp_path)}
    assert labels == {
        "cat/1.mp4": ("cat", None),
        "dog/day 1/2.mp4": ("dog", None),
        "3.mp4": (None, None),
    }


def test_a_flat_folder_has_no_labels(tmp_path: Path) -> None:
    touch(tmp_path, "1.mp4", "2.mp4")
    catalog = read_catalog(tmp_path)
    assert catalog.classes == ()
    assert catalog.name == tmp_path.name
    assert read_catalog(tmp_path, name="mine").name == "mine"


def test_folders_called_train_and_test_are_splits(tmp_path: Path) -> None:
    touch(tmp_path, "Train/cat/1.mp4", "test/dog/2.mp4", "validation/cat/x/3.mp4", "test/4.mp4")
    facts = {video.id: (video.split, video.label) for video in read_catalog(tmp_path)}
    assert facts == {
        "Train/cat/1.mp4": ("train", "cat"),
        "test/dog/2.mp4": ("test", "dog"),
        "test/4.mp4": ("test", None),
        "validation/cat/x/3.mp4": ("val", "cat"),
    }


def test_a_class_called_train_beside_others_is_a_class(tmp_path: Path) -> None:
    touch(tmp_path, "train/1.mp4", "ship/2.mp4")
    assert read_catalog(tmp_path).classes == ("ship", "train")


def test_strange_things_with_the_name_of_a_video_stay_to_be_reported(tmp_path: Path) -> None:
    touch(tmp_path, "good.mp4", "folder.mp4/inside.mp4")
    (tmp_path / "dangling.mp4").symlink_to("nowhere")
    (tmp_path / "itself.mp4").symlink_to("itself.mp4")
    os.mkfifo(tmp_path / "pipe.mp4")
    expected = ["dangling.mp4", "folder.mp4/inside.mp4", "good.mp4", "itself.mp4", "pipe.mp4"]
    assert ids(tmp_path) == expected


def test_links_to_folders_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    touch(tmp_path, "videos/a/1.mp4")
    (tmp_path / "videos/a/again").symlink_to(tmp_path / "videos")
    touch(tmp_path, "elsewhere/2.mp4")
    (tmp_path / "videos/b").symlink_to(tmp_path / "elsewhere")
    assert ids(tmp_path / "videos") == ["a/1.mp4", "b/2.mp4"]


def test_a_folder_without_videos_says_what_was_looked_for(tmp_path: Path) -> None:
    touch(tmp_path, "a.txt")
    with pytest.raises(
        CatalogError, match="contains no videos; supported file extensions: mp4, m4v"
    ):
        read_catalog(tmp_path)


def test_a_folder_that_cannot_be_read_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(CatalogError, match=r"cannot read the folder .*: permission denied"):
        read_catalog(tmp_path)


def test_runs_and_stores_among_the_videos_are_skipped_and_said(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    touch(tmp_path, "a.mp4", "run/sprite.mp4", "store/sprite.mp4", "mine/b.mp4", "odd/c.mp4")
    (tmp_path / "run" / "run.json").write_text('{"recipe": {}, "steps": []}')
    (tmp_path / "store" / "manifest.json").write_text('{"backbone": {}, "sampling": {}}')
    (tmp_path / "mine" / "run.json").write_text('{"jogging": 5}')  # a file of the user's own
    (tmp_path / "odd" / "manifest.json").write_text("no JSON")
    assert ids(tmp_path) == ["a.mp4", "mine/b.mp4", "odd/c.mp4"]
    assert "skipped: 2 runs or feature stores of clipset in " in capfd.readouterr().err
    assert ids(tmp_path / "run") == ["sprite.mp4"]  # it was asked for by its name
