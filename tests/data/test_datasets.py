"""Published data sets: their own lists, found files, missing files, and lists that are no lists."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from clipset.data.catalog import Catalog, find_missing
from clipset.data.datasets import LVU_TASKS, FileFinder, read_dataset, read_lvu
from clipset.errors import CatalogError


def touch(folder: Path, *names: str) -> Path:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return folder


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def read(dataset: str, videos: Path, lists: Path, task: str = "auto") -> Catalog:
    """The only task that is asked for."""
    [catalog] = read_dataset(dataset, videos, lists, task).values()
    return catalog


def facts(catalog: Catalog) -> dict[str, tuple[str | None, str | None, str | None]]:
    return {video.id: (video.label, video.split, video.group) for video in catalog}


@pytest.fixture
def ucf_lists(tmp_path: Path) -> Path:
    return write(
        tmp_path / "ucfTrainTestlist",
        {
            "classInd.txt": "1 Archery\r\n2 HandstandPushups\r\n",
            "trainlist01.txt": "Archery/v_Archery_g08_c01.avi 1\r\n"
            "HandstandPushups/v_HandStandPushups_g08_c01.avi 2\r\n",
            "testlist01.txt": "Archery/v_Archery_g01_c01.avi\r\n",
            "trainlist02.txt": "Archery/v_Archery_g01_c01.avi 1\n",
            "testlist02.txt": "Archery/v_Archery_g08_c01.avi\n",
        },
    )


def test_ucf101_follows_its_lists(ucf_lists: Path, tmp_path: Path) -> None:
    videos = touch(tmp_path / "UCF-101", "Archery/v_Archery_g08_c01.avi", "v_Archery_g01_c01.avi")
    catalog = read("ucf101", videos, ucf_lists)
    assert facts(catalog) == {
        "Archery/v_Archery_g08_c01.avi": ("Archery", "train", "Archery_g08"),
        "HandstandPushups/v_HandStandPushups_g08_c01.avi": (
            "HandstandPushups", "train", "HandstandPushups_g08",
        ),
        "Archery/v_Archery_g01_c01.avi": ("Archery", "test", "Archery_g01"),
    }  # fmt: skip
    assert [video.path.relative_to(videos).as_posix() for video in catalog] == [
        "Archery/v_Archery_g08_c01.avi",
        "HandstandPushups/v_HandStandPushups_g08_c01.avi",  # not there: where it should be
        "v_Archery_g01_c01.avi",
    ]
    second = read("ucf101", videos, ucf_lists, "split-2")
    assert [video.split for video in second] == ["train", "test"]


def test_missing_files_are_counted(ucf_lists: Path, tmp_path: Path) -> None:
    videos = touch(tmp_path / "UCF-101", "Archery/v_Archery_g08_c01.avi")
    catalog = read("ucf101", videos, ucf_lists)
    missing, lines = find_missing(catalog)
    assert lines == ["test: 0 of 1 video found", "train: 1 of 2 videos found"]
    assert set(missing) == {
        "Archery/v_Archery_g01_c01.avi",
        "HandstandPushups/v_HandStandPushups_g08_c01.avi",
    }


def test_hmdb51_follows_its_lists(tmp_path: Path) -> None:
    lists = write(
        tmp_path / "splits",
        {
            "brush_hair_test_split1.txt": "a(b)!_brush_hair_0.avi 1 \nb_brush_hair.avi 2 \n",
            "wave_test_split1.txt": "c_wave.avi 0 \n",
            "wave_test_split2.txt": "c_wave.avi 1 \n",
        },
    )
    videos = touch(tmp_path / "hmdb51_org", "brush_hair/a(b)!_brush_hair_0.avi", "wave/c_wave.avi")
    catalog = read("hmdb51", videos, lists)
    assert facts(catalog) == {
        "brush_hair/a(b)!_brush_hair_0.avi": ("brush_hair", "train", None),
        "brush_hair/b_brush_hair.avi": ("brush_hair", "test", None),
        "wave/c_wave.avi": ("wave", None, None),
    }
    assert facts(read("hmdb51", videos, lists, "split-2")) == {
        "wave/c_wave.avi": ("wave", "train", None)
    }
    assert find_missing(catalog)[1] == [
        "no split: 1 of 1 video found",
        "test: 0 of 1 video found",
        "train: 1 of 1 video found",
    ]


def test_kinetics_follows_its_csv_files(tmp_path: Path) -> None:
    lists = write(
        tmp_path / "lists",
        {
            "train.csv": "label,youtube_id,time_start,time_end,split,is_cc\n"
            '"air drumming",-abc_123xyz,3,13,train,0\nsinging,whole_clip0,0,10,train,0\n',
            "val.csv": "label,youtube_id,time_start,time_end,split\n"
            "singing,gone_video0,5,15,validate\n",
            "test.csv": "youtube_id,time_start,time_end,split\nunlabelled0,5,15,test\n",
        },
    )
    videos = touch(
        tmp_path / "k400", "air_drumming/-abc_123xyz_000003_000013.mp4", "whole_clip0.mkv"
    )
    catalog = read("kinetics", videos, lists)
    assert facts(catalog) == {
        "-abc_123xyz_000003_000013": ("air drumming", "train", "-abc_123xyz"),
        "whole_clip0_000000_000010": ("singing", "train", "whole_clip0"),
        "gone_video0_000005_000015": ("singing", "val", "gone_video0"),
        "unlabelled0_000005_000015": (None, "test", "unlabelled0"),
    }
    assert [video.path.relative_to(videos).as_posix() for video in catalog] == [
        "unlabelled0_000005_000015.mp4",
        "air_drumming/-abc_123xyz_000003_000013.mp4",
        "whole_clip0.mkv",
        "singing/gone_video0_000005_000015.mp4",
    ]


def test_something_something_follows_its_json_files(tmp_path: Path) -> None:
    prefix = "something-something-v2-"
    train = [
        {"id": "78687", "label": "holding potato", "template": "Holding [something] up"},
        {"id": "42326", "label": "closing box", "template": "Closing [something]"},
    ]
    lists = write(
        tmp_path / "lists",
        {
            f"{prefix}labels.json": json.dumps(
                {"Closing something": "0", "Holding something up": "1"}
            ),
            f"{prefix}train.json": json.dumps(train),
            f"{prefix}validation.json": json.dumps(
                [{"id": "5", "template": "Closing [something]"}]
            ),
        },
    )
    videos = touch(tmp_path / "webm", "78687.webm", "42326.webm", "5.webm")
    assert facts(read("ssv2", videos, lists)) == {
        "78687": ("Holding something up", "train", None),
        "42326": ("Closing something", "train", None),
        "5": ("Closing something", "val", None),
    }
    write(lists, {f"{prefix}test.json": json.dumps([{"id": "9"}])})
    assert facts(read("ssv2", videos, lists))["9"] == (None, "test", None)


def lvu_lists(folder: Path, task: str, header: str, *rows: str) -> Path:
    first, *others = rows
    return write(
        folder,
        {
            f"{task}/train.csv": "\n".join([header, first]) + "\n",
            f"{task}/val.csv": header + "\n",
            f"{task}/test.csv": "\n".join([header, *others]) + "\n",
        },
    )


def test_a_classification_task_of_lvu_gives_labels(tmp_path: Path) -> None:
    header = "class_id class_name youtube_id imdb_id"
    lists = lvu_lists(tmp_path, "genre", header, "0 Comedy -5Rohh tt01", "2 Romance xyz tt02")
    videos = touch(tmp_path / "videos", "-5Rohh.mp4", "2012/xyz.mkv")
    (videos / "durations.csv").write_text("videoid,duration\n-5Rohh,83\nother,0\n")
    catalog = read("lvu", videos, lists, "genre")
    assert facts(catalog) == {
        "-5Rohh": ("Comedy", "train", "tt01"),
        "xyz": ("Romance", "test", "tt02"),
    }
    assert [video.end for video in catalog] == [83.0, None]
    assert [video.target for video in catalog] == [None, None]
    assert find_missing(catalog)[0] == []


def test_the_regression_tasks_of_lvu_give_targets(tmp_path: Path) -> None:
    videos = touch(tmp_path / "videos", "a.mp4", "b.mp4")
    views = lvu_lists(
        tmp_path, "view_count", "view_count youtube_id imdb_id", "1000 a t1", "7 b t2"
    )
    catalog = read("lvu", videos, views, "view_count")
    assert [video.target for video in catalog] == pytest.approx([math.log(1000), math.log(7)])
    header = "like_count dislike_count youtube_id imdb_id"
    likes = lvu_lists(tmp_path, "like_ratio", header, "90 10 a t1", "1 3 b t2")
    catalog = read("lvu", videos, likes, "like_ratio")
    assert [video.target for video in catalog] == pytest.approx([9.0, 2.5])
    assert catalog.classes == ()


def test_a_video_that_lvu_lists_twice_is_there_twice(tmp_path: Path) -> None:
    header = "class_id class_name youtube_id imdb_id"
    lists = lvu_lists(tmp_path, "scene", header, "0 office a t1", "1 hotel a t1")
    catalog = read("lvu", touch(tmp_path / "videos", "a.mp4"), lists, "scene")
    assert facts(catalog) == {"a": ("office", "train", "t1"), "a#2": ("hotel", "test", "t1")}
    assert len({video.path for video in catalog}) == 1


def test_lvu_has_seven_classifications_and_two_regressions(tmp_path: Path) -> None:
    assert len(LVU_TASKS) == 9
    with pytest.raises(CatalogError, match="LVU has no task 'genres'; did you mean genre"):
        list(read_lvu(FileFinder(touch(tmp_path)), tmp_path, "genres"))


def test_lists_that_do_not_fit_are_refused(ucf_lists: Path, tmp_path: Path) -> None:
    videos = touch(tmp_path / "videos", "a.mp4")
    bad = write(
        tmp_path / "bad",
        {
            "trainlist01.txt": "no class 1\n",
            "x_test_split1.txt": "a.avi 7\n",
            "k.csv": "name,label\na,b\n",
            "times.csv": "youtube_id,time_start,time_end\na,now,then\n",
            "labels.json": "{}",
            "train.json": '[{"id": "1", "template": "Doing [something]"}]',
            "genre/train.csv": "a b\n",
            "view_count/train.csv": "view_count youtube_id imdb_id\n0 a b\n",
        },
    )
    with pytest.raises(CatalogError, match=r"cannot read .*trainlist03.txt: no such file"):
        read("ucf101", videos, ucf_lists, "split-3")
    with pytest.raises(CatalogError, match="cannot read the folder"):
        FileFinder(tmp_path / "nowhere")
    with pytest.raises(CatalogError, match="'no class 1' is not a line of a UCF101 list"):
        read("ucf101", videos, bad)
    with pytest.raises(CatalogError, match=r"must end in 0, 1 \(train\) or 2 \(test\)"):
        read("hmdb51", videos, bad)
    with pytest.raises(CatalogError, match="contains no HMDB51 lists"):
        read("hmdb51", videos, bad, "split-2")
    with pytest.raises(CatalogError, match="needs a column 'youtube_id'; its columns: name"):
        read("kinetics", videos, bad / "k.csv")
    with pytest.raises(CatalogError, match="times that are not numbers"):
        read("kinetics", videos, bad / "times.csv")
    with pytest.raises(CatalogError, match=r"'Doing something' .* is not in SSv2's labels.json"):
        read("ssv2", videos, bad)
    with pytest.raises(CatalogError, match=r"must contain one file that ends in labels.json"):
        read("ssv2", videos, ucf_lists)
    with pytest.raises(CatalogError, match="must begin with the columns class_id class_name"):
        read("lvu", videos, bad, "genre")
    with pytest.raises(CatalogError, match="view_count needs counts above zero, got '0'"):
        read("lvu", videos, bad, "view_count")
    with pytest.raises(CatalogError, match="needs a column 'duration'; its columns: videoid"):
        read("lvu", write(videos, {"durations.csv": "videoid,length\na,1\n"}), bad, "genre")
