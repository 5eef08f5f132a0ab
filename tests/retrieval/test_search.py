"""`clipset.search` and `clipset search`: by videos, files, moments, several examples and text."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import write_video
from tests.miniatures import run as run_verb

import clipset
from clipset.cli.search import parse_conditions
from clipset.clips.sampling import Window
from clipset.errors import ConfigError, SearchError
from clipset.features.store import FeatureStore
from clipset.files import write_json
from clipset.representation import embed_store, write_vectors
from clipset.retrieval import VideoSearch
from clipset.retrieval.search import parse_query


@pytest.fixture(scope="session")
def small_run(small_store: FeatureStore, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the small videos without a model."""
    folder = tmp_path_factory.mktemp("search") / "run"
    shutil.copytree(small_store.folder, folder / "store")
    shutil.copy(small_store.folder / "catalog.csv", folder / "catalog.csv")
    write_vectors(embed_store(small_store, None), folder / "vectors")
    write_json(folder / "run.json", {"format": 1, "name": "small", "recipe": {}, "steps": []})
    return folder


def search(*words: object, run: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert run_verb("search", *words, "--run", run, "--json", "--quiet", "--workers", 0) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def fail(*words: object, run: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert run_verb("search", *words, "--run", run, "--quiet", "--workers", 0) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    return line


def test_a_video_a_file_of_it_and_a_copy_find_the_same(
    small_run: Path, small_store: FeatureStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    video = next(iter(small_store.catalog))
    copy = shutil.copy(video.path, tmp_path / "copy.mp4")
    by_id = search(video.id, run=small_run, capsys=capsys)
    assert by_id["exact"] is True
    assert len(by_id["results"]) == 10
    assert by_id["results"][0]["label"] == video.label
    by_file = search(video.path, run=small_run, capsys=capsys)
    assert by_file["results"] == by_id["results"]
    by_copy = search(copy, "--top", 11, run=small_run, capsys=capsys)["results"]
    assert by_copy[0]["video"] == video.id
    assert by_copy[0]["score"] == pytest.approx(1.0, abs=1e-3)
    assert [found["video"] for found in by_copy[1:]] == [f["video"] for f in by_id["results"]]


def test_moments_and_conditions(
    small_run: Path, small_store: FeatureStore, capsys: pytest.CaptureFixture[str]
) -> None:
    video = next(iter(small_store.catalog))
    words = (f"{video.id}@0.1-0.5", "--moments", "--where", "split=train", "--top", 30)
    found = search(*words, "--where", "label=red", run=small_run, capsys=capsys)["results"]
    assert found
    assert {(f["label"], f["split"]) for f in found} == {("red", "train")}
    assert all(0 <= f["start"] < f["end"] <= 2.1 for f in found)
    two = search(
        *words, "--where", "label=red", "--where", "label=blue", run=small_run, capsys=capsys
    )
    assert {f["label"] for f in two["results"]} == {"red", "blue"}
    assert run_verb("search", video.id, "--run", small_run, "--moments", "--quiet") == 0
    printed = capsys.readouterr().out
    assert "score" in printed
    assert "moment" in printed


def test_a_moment_of_a_new_file_and_negative_examples(
    small_run: Path, small_store: FeatureStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = write_video(tmp_path / "new.mp4", seed=50, seconds=2.0, colour=1)
    found = search(f"{new}@0.5-1.5", "--moments", run=small_run, capsys=capsys)["results"]
    assert {f["label"] for f in found[:3]} == {"green"}
    reds = [video.id for video in small_store.catalog if video.label == "red"]
    liked = search(reds[0], new, "--top", 30, run=small_run, capsys=capsys)["results"]
    unlike = search(
        reds[0], "--unlike", new, "--unlike", reds[1], "--top", 30, run=small_run, capsys=capsys
    )["results"]
    assert reds[1] not in [found["video"] for found in unlike]

    def mean_rank(results: list[dict[str, Any]]) -> float:
        return float(np.mean([i for i, f in enumerate(results) if f["label"] == "green"]))

    assert mean_rank(unlike) > mean_rank(liked)


def test_the_library_answers_as_the_command(
    small_run: Path, small_store: FeatureStore, capsys: pytest.CaptureFixture[str]
) -> None:
    video = next(iter(small_store.catalog))
    answer = clipset.search(video.id, run=small_run, where={"label": ["red", None]}, top=4)
    printed = search(
        video.id, "--where", "label=red", "--where", "label=", "--top", 4, run=small_run,
        capsys=capsys,
    )["results"]  # fmt: skip
    assert [(f.video, f.score, str(f.path)) for f in answer.results] == [
        (f["video"], f["score"], f["path"]) for f in printed
    ]
    assert answer.is_exact
    opened = VideoSearch(small_run, workers=0)
    assert opened.search([video.path], where={"label": "red"}, top=4).results == answer.results


def test_errors_are_one_line(
    small_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def line(*words: object, run: Path = small_run) -> str:
        return fail(*words, run=run, capsys=capsys)

    assert (
        "no video and no file is called 'red/video 00.mp4'; did you mean red/video 0.mp4"
        in line("red/video 00.mp4")
    )
    assert "is outside the video of" in line("red/video 0.mp4@5-9")
    assert "must end after it starts" in line("red/video 0.mp4@5-4")
    assert "a moment is START-END in seconds" in line("red/video 0.mp4@-1")
    assert "efficientnet_lite0 has no text tower; search by example" in line("--text", "a dog")
    assert "give an example to search by" in line()
    assert "no video has label 'rod'; did you mean red?" in line(
        "red/video 0.mp4", "--where", "label=rod"
    )
    assert "the catalog has no column 'lable'; did you mean label?" in line(
        "red/video 0.mp4", "--where", "lable=red"
    )
    assert "--where needs COLUMN=VALUE" in line("red/video 0.mp4", "--where", "red")
    assert "number of results must be 1 to" in line("red/video 0.mp4", "--top", 0)
    (tmp_path / "text.mp4").write_text("no video")
    assert "text.mp4" in line(tmp_path / "text.mp4")
    new = write_video(tmp_path / "new.mp4", seconds=1.0)
    assert "is outside the video of" in line(f"{new}@5-9")
    assert "has no vectors to search; run `clipset run` first" in line("a", run=tmp_path)
    (tmp_path / "tasks" / "genre").mkdir(parents=True)
    shutil.copytree(small_run / "vectors", tmp_path / "tasks" / "genre" / "vectors")
    assert "has 1 tasks; search in one, such as" in line("a", run=tmp_path / "tasks")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--where", "label=rod"), "no video has label 'rod'"),
        (("--where", "lable=red"), "the catalog has no column 'lable'"),
        (("--where", "red"), "--where needs COLUMN=VALUE"),
        (("--top", 0), "number of results must be 1 to"),
    ],
)
def test_a_search_with_a_slip_is_refused_before_its_example_is_read(
    words: tuple[object, ...],
    said: str,
    small_run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "text.mp4").write_text("cannot be read")
    assert said in fail(tmp_path / "text.mp4", *words, run=small_run, capsys=capsys)


def test_queries_and_conditions_are_parsed() -> None:
    assert parse_query("a@b.mp4@12.5-16") == ("a@b.mp4", Window(start=12.5, end=16.0))
    assert parse_query("a@home.mp4") == ("a@home.mp4", None)
    with pytest.raises(SearchError, match="must end after it starts"):
        parse_query("a.mp4@3-2")
    assert parse_conditions(["label=a=b", "label=", "day=1"]) == {
        "label": ["a=b", None],
        "day": ["1"],
    }
    for bad in ("label", "=x"):
        with pytest.raises(ConfigError, match="COLUMN=VALUE"):
            parse_conditions([bad])
