"""The page as a file: whole, self-contained, and safe with any name."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from tests.report.conftest import make_result

from clipset.errors import OutputError
from clipset.evaluation.results import Confusion
from clipset.report.content import (
    Counts,
    MapPoint,
    Neighbours,
    ReportContent,
    Step,
    Strip,
)
from clipset.report.page import render_report, write_report

SECTIONS = ("probes", "confusion", "map", "neighbours", "training", "time", "unread", "facts")
HOSTILE = (
    '"><script>alert(1)</script>',
    "</script><script>document.title='taken'</script>",
    "' onmouseover='alert(1)",
    "<img src=x onerror=alert(1)>",
    "{{ 7 * 7 }}{% raw %}<!--",
    "naïve – 日本語 – עברית – 🎬",
    "a" * 3000,
    "not \udcff utf-8",
)


class Page(HTMLParser):
    """The tags, the ids and the text of each section of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, str] = {}
        self.data: dict[str, Any] = {}
        self._section = "top"
        self._block: str | None = None
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.tags.append((tag, attributes))
        if tag == "section":
            self._section = attributes["id"] or ""
        self._block = attributes.get("id") or "" if tag in ("script", "style") else None

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "style"):
            self._block = None

    def handle_data(self, data: str) -> None:
        if self._block:
            self.data[self._block] = json.loads(data)
        elif self._block is None:
            self.texts[self._section] = self.texts.get(self._section, "") + data

    def text(self, section: str) -> str:
        return " ".join(self.texts[section].split())


@pytest.fixture(scope="module")
def page(run_content: ReportContent) -> str:
    return render_report(run_content)


def hostile_content(name: str) -> ReportContent:
    """A run in which everything that a user can name is called `name`."""
    frame = b"\xff\xd8\xff\xe0frame"
    strip = Strip(video_id=name, label=name, frames=(frame,))
    result = make_result(
        probe=name, metric=name, split=name, selected_on=name, per_class={name: 0.5, "b": 0.5},
        confusion=Confusion(classes=(name, "b"), counts=((1, 1), (1, 1))),
    )  # fmt: skip
    return ReportContent(
        title=name,
        subtitle=name,
        facts={name: [(name, name)]},
        steps=[Step(name=name, seconds=1.0, note=name)],
        results=[
            result,
            dataclasses.replace(result, features=name),
            dataclasses.replace(result, split="b"),
        ],
        curves={name: [(1, 0.5), (2, 0.25)]},
        map_points=[
            MapPoint(video_id=name, label=name, split=name, x=0.0, y=0.0, thumbnail=frame),
            MapPoint(video_id="b", label=None, split="b", x=1.0, y=1.0),
        ],
        neighbours=[Neighbours(query=strip, hits=(dataclasses.replace(strip, similarity=0.5),))],
        failed={name: name},
    )


def test_the_page_has_every_part(page: str) -> None:
    parsed = Page(page)
    ids = {attributes.get("id") for _, attributes in parsed.tags}
    assert {*SECTIONS, "classes", "confusion-data", "map-data", "curve-data"} <= ids
    assert "Fine-tuned clipset reaches 87.5 % accuracy" in parsed.text("top")
    assert "7 440" in parsed.text("top")
    for name in ("k-NN", "SCALE k-NN", "Linear", "SCALE linear", "MLP", "SCALE fine-tuned"):
        assert name in parsed.text("probes")
    assert "80.5–94.5" in parsed.text("probes")
    assert "chance level 12.5 %" in parsed.text("probes")
    assert "20 of 25 neighbours have the label of their query" in parsed.text("neighbours")
    assert "Masked clip loss" in parsed.text("training")
    assert "1 min 57 s in total" in parsed.text("time")
    assert "no video stream, audio only" in parsed.text("unread")
    assert "clipset run videos --out runs/shapes --seed 0" in parsed.text("facts")


def test_the_page_names_joint_pretraining_beside_the_differences(
    page: str, run_content: ReportContent
) -> None:
    assert "joint_weight" not in page
    joint = [
        dataclasses.replace(each, settings=each.settings | {"joint_weight": 0.03})
        if each.probe == "finetune" else each
        for each in run_content.results
    ]  # fmt: skip
    changed = render_report(dataclasses.replace(run_content, results=joint))
    assert "continued its pre-training on all videos (joint_weight 0.03)" in changed


def test_the_page_asks_nothing_of_any_network(page: str) -> None:
    for tag, attributes in Page(page).tags:
        assert tag not in ("iframe", "object", "embed", "base", "form")
        for name in ("src", "href", "srcset", "action", "poster", "data", "xlink:href"):
            value = attributes.get(name) or "#"
            assert value.startswith(("#", "data:")), (tag, name, value)
    assert "@import" not in page
    assert not re.search(r"url\(\s*['\"]?(https?:|//)", page)
    assert not re.search(r"https?://", page)


def test_every_image_of_the_run_is_inside_the_page(page: str, run_content: ReportContent) -> None:
    parsed = Page(page)
    images = [attributes["src"] for tag, attributes in parsed.tags if tag == "img"]
    frames = sum(1 + len(neighbours.hits) for neighbours in run_content.neighbours) * 5
    assert len(images) == frames
    assert all(parsed.data["map-data"]["thumbnails"])


def test_a_page_of_240_videos_stays_small(page: str) -> None:
    assert len(page.encode()) < 3_000_000


def test_the_best_matrix_of_clipset_comes_first_and_the_others_can_be_chosen(page: str) -> None:
    names = [matrix["name"] for matrix in Page(page).data["confusion-data"]]
    assert names[0].startswith("SCALE fine-tuned")
    assert len(names) == 7


def test_matrices_of_400_classes_are_stored_by_their_filled_cells(
    content_of: Callable[..., ReportContent],
) -> None:
    content = content_of(videos=400, classes=400)
    matrices = Page(render_report(content)).data["confusion-data"]
    for matrix in matrices:
        assert len(matrix["classes"]) == 400
        assert sum(matrix["cells"][2::3]) == content.results[0].n
    assert len(json.dumps(matrices)) < 1_000_000


def test_the_map_keeps_its_shape(run_content: ReportContent, page: str) -> None:
    shown = Page(page).data["map-data"]
    first, second, third = run_content.map_points[:3]
    ratio = (second.x - first.x) / (third.y - first.y)
    drawn = (shown["x"][1] - shown["x"][0]) / (shown["y"][2] - shown["y"][0])
    assert drawn == pytest.approx(ratio, rel=1e-2)
    assert min(shown["x"] + shown["y"]) == 0
    assert max(shown["x"] + shown["y"]) == 1


def test_a_label_called_no_label_is_not_taken_for_none() -> None:
    points = [
        MapPoint(video_id="a", label="no label", x=0.0, y=0.0),
        MapPoint(video_id="b", label=None, x=1.0, y=0.0),
    ]
    shown = Page(render_report(ReportContent(title="t", map_points=points))).data["map-data"]
    assert (shown["label"], shown["unlabelled"], len(shown["labels"])) == ([0, 1], 1, 2)


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names_are_inert(name: str, tmp_path: Path) -> None:
    write_report(hostile_content(name), tmp_path / "report.html")
    parsed = Page((tmp_path / "report.html").read_text(encoding="utf-8"))
    plain = Page(render_report(hostile_content("plain")))
    assert [tag for tag, _ in parsed.tags] == [tag for tag, _ in plain.tags]
    allowed = [set(attributes) for _, attributes in plain.tags]
    assert [set(attributes) for _, attributes in parsed.tags] == allowed
    readable = name.encode("utf-8", "replace").decode()
    assert " ".join(readable.split()) in parsed.text("unread")
    assert parsed.data["map-data"]["ids"] == [name, "b"]


def test_nothing_to_show_is_said_in_friendly_sentences() -> None:
    parsed = Page(render_report(ReportContent(title="Empty", counts=Counts(classes=0))))
    assert "No scores yet" in parsed.text("top")
    assert "These videos have no labels, and a probe needs labels. Put the videos" in parsed.text(
        "probes"
    )
    assert "needs labelled videos" in parsed.text("confusion")
    assert "Run clipset embed" in parsed.text("map")
    assert "vectors of at least two videos" in parsed.text("neighbours")
    assert "No model was trained" in parsed.text("training")
    assert "not recorded" in parsed.text("time")
    assert "all videos were read" in parsed.text("unread")
    assert "were not recorded" in parsed.text("facts")
    assert "classes" not in parsed.texts


def test_labels_without_probes_point_to_the_probes() -> None:
    parsed = Page(render_report(ReportContent(title="Not yet", counts=Counts(classes=4))))
    assert "Run clipset evaluate" in parsed.text("probes")


def test_the_page_says_why_nothing_was_evaluated() -> None:
    note = "not evaluated: there are no test videos: add some"
    content = ReportContent(title="Not yet", counts=Counts(classes=4), note=note)
    parsed = Page(render_report(content))
    for part in ("top", "probes"):
        assert "Not evaluated: there are no test videos: add some." in parsed.text(part)


def test_results_without_counts_say_why_there_is_no_matrix() -> None:
    content = ReportContent(title="Bare", results=[make_result("backbone", "knn")])
    parsed = Page(render_report(content))
    assert "have no confusion counts" in parsed.text("confusion")
    assert "k-NN 50.0 40–60" in parsed.text("probes")


def test_a_run_without_labels_still_has_its_map_and_neighbours(run_content: ReportContent) -> None:
    points = [dataclasses.replace(p, label=None, split=None) for p in run_content.map_points]
    content = ReportContent(title="No labels", map_points=points)
    parsed = Page(render_report(content))
    assert parsed.data["map-data"]["labels"] == ["no label"]
    assert "no label 240" in parsed.text("map")


def test_the_same_content_gives_the_same_bytes(run_content: ReportContent, page: str) -> None:
    assert render_report(run_content) == page


def test_the_file_is_written_whole_over_an_old_one(
    tmp_path: Path, run_content: ReportContent, page: str
) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")
    write_report(run_content, path)
    assert path.read_text(encoding="utf-8") == page
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_not_there_is_made(
    tmp_path: Path, run_content: ReportContent, page: str
) -> None:
    write_report(run_content, tmp_path / "none" / "report.html")
    assert (tmp_path / "none" / "report.html").read_text(encoding="utf-8") == page


def test_a_folder_that_cannot_be_made_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(OutputError, match=r"cannot write .* is a file, not a folder"):
        write_report(ReportContent(title="t"), tmp_path / "file" / "report.html")
