"""The page as a reader meets it, in a real browser."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.report import conftest
from tests.report.conftest import Browser, make_result

from clipset.evaluation.results import Confusion
from clipset.report.content import MapPoint, Neighbours, ReportContent, Strip
from clipset.report.page import write_report

pytestmark = pytest.mark.browser

SIZES = pytest.mark.parametrize(("width", "height"), [(1440, 900), (390, 844)])
ROOT = "document.documentElement"
TIP = "document.getElementById('tip')"
SPOKEN = "document.getElementById('spoken').textContent"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory, run_content: ReportContent) -> Path:
    path = tmp_path_factory.mktemp("page") / "report with spaces.html"
    write_report(run_content, path)
    return path


def require_sound(browser: Any) -> None:
    """All charts drawn, no error, no request but the file, nothing wider than the window."""
    assert browser.evaluate(f"{ROOT}.dataset.charts") == "drawn"
    assert browser.errors() == []
    assert browser.evaluate(f"{ROOT}.scrollWidth <= {ROOT}.clientWidth") is True
    outside = [url for url in browser.requests() if not url.startswith(("file:", "data:"))]
    assert outside == []


def middle(browser: Any, selector: str) -> tuple[float, float]:
    """The middle of an element, after bringing it into view."""
    found = f"document.querySelector({json.dumps(selector)})"
    browser.evaluate(f"{found}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
    box = json.loads(browser.evaluate(f"JSON.stringify({found}.getBoundingClientRect())"))
    return box["left"] + box["width"] / 2, box["top"] + box["height"] / 2


def focus(browser: Any, selector: str) -> None:
    """Give an element the keys, with no scrolling still under way."""
    middle(browser, selector)
    found = f"document.querySelector({json.dumps(selector)})"
    browser.evaluate(f"{found}.focus({{preventScroll: true}})")


def ink(browser: Any, selector: str) -> int:
    """How many different colours a canvas shows."""
    return int(
        browser.evaluate(
            f"""(() => {{
              const canvas = document.querySelector({json.dumps(selector)});
              const pen = canvas.getContext("2d");
              const {{ data }} = pen.getImageData(0, 0, canvas.width, canvas.height);
              return new Set(new Uint32Array(data.buffer)).size;
            }})()"""
        )
    )


@SIZES
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_everything_is_drawn_without_an_error(
    browser: Any, page: Path, width: int, height: int, dark: bool
) -> None:
    browser.open(page, width=width, height=height, dark=dark)
    require_sound(browser)
    assert ink(browser, "#map-box canvas") > 10
    assert ink(browser, "#confusion-box canvas") > 10
    assert browser.evaluate("[...document.images].every((image) => image.naturalWidth > 0)") is True


@SIZES
def test_an_empty_page_is_sound(browser: Any, tmp_path: Path, width: int, height: int) -> None:
    write_report(ReportContent(title="Empty"), tmp_path / "empty.html")
    browser.open(tmp_path / "empty.html", width=width, height=height)
    require_sound(browser)


@SIZES
def test_400_classes_and_5000_videos_are_sound(
    browser: Any,
    tmp_path: Path,
    content_of: Callable[..., ReportContent],
    width: int,
    height: int,
) -> None:
    content = content_of(videos=400, classes=400)
    points = [
        MapPoint(video_id=f"{i}.mp4", x=i % 71, y=(i * i) % 83, label=f"class {i % 400}")
        for i in range(5000)
    ]
    write_report(dataclasses.replace(content, map_points=points), tmp_path / "large.html")
    browser.open(tmp_path / "large.html", width=width, height=height)
    require_sound(browser)
    assert ink(browser, "#confusion-box canvas") > 10
    box = "document.getElementById('confusion-box')"
    assert browser.evaluate(f"{box}.scrollWidth <= {box}.clientWidth") is True
    for _ in range(5):
        browser.click(*middle(browser, "#confusion-in"))
    assert browser.evaluate(f"{box}.scrollWidth > {box}.clientWidth") is True
    require_sound(browser)


@SIZES
def test_400_classes_can_be_read_group_by_group(
    browser: Any,
    tmp_path: Path,
    content_of: Callable[..., ReportContent],
    width: int,
    height: int,
) -> None:
    content = content_of(videos=8, classes=400)
    counts = [
        [20 if a == b else 3 if a % 100 == b % 100 else 0 for b in range(400)] for a in range(400)
    ]
    assert content.results[0].confusion is not None
    confusion = Confusion(
        classes=content.results[0].confusion.classes, counts=tuple(map(tuple, counts))
    )
    result = dataclasses.replace(content.results[6], confusion=confusion)
    write_report(dataclasses.replace(content, results=[result]), tmp_path / "large.html")
    browser.open(tmp_path / "large.html", width=width, height=height)
    browser.settle()
    assert browser.evaluate("document.getElementById('confusion-order').value") == "similar"
    browser.click(*middle(browser, "#confusion-groups-list li:nth-child(2) button"))
    browser.settle()
    wanted = browser.evaluate(
        "document.querySelector('#confusion-groups-list li:nth-child(2)').textContent"
    )
    assert "36 of 116" in wanted
    box = "document.getElementById('confusion-box')"
    assert browser.evaluate(f"{box}.scrollWidth > 400 * 24") is True
    browser.move(*middle(browser, "#confusion-box"))  # not its canvas: that would scroll the box
    there = browser.evaluate(f"{TIP}.textContent")
    assert "3 of 29" in there or "20 of 29" in there
    browser.click(*middle(browser, "#confusion-fit"))
    assert browser.evaluate(f"{box}.scrollWidth <= {box}.clientWidth") is True
    require_sound(browser)


@SIZES
def test_two_classes_and_two_videos_are_sound(
    browser: Any,
    tmp_path: Path,
    content_of: Callable[..., ReportContent],
    width: int,
    height: int,
) -> None:
    content = content_of(videos=2, classes=2)
    write_report(dataclasses.replace(content, neighbours=()), tmp_path / "small.html")
    browser.open(tmp_path / "small.html", width=width, height=height)
    require_sound(browser)


@SIZES
def test_hostile_and_endless_names_neither_run_nor_break_the_page(
    browser: Any, tmp_path: Path, width: int, height: int
) -> None:
    names = [
        '"><script>window.taken = 1</script>',
        "</script><script>window.taken = 1</script>",
        "<img src=x onerror='window.taken = 1'>",
        "W" * 2000,
    ]
    counts = [[3, 1, 0, 0], [0, 4, 0, 0], [1, 1, 2, 0], [0, 0, 0, 4]]
    strips = [Strip(video_id=name, label=name, frames=(), similarity=0.5) for name in names]
    result = make_result(
        probe=names[0],
        metric=names[1],
        confusion=Confusion(classes=tuple(names), counts=tuple(map(tuple, counts))),
    )
    content = ReportContent(
        title=names[0] + names[3],
        results=[result],
        curves={names[1]: [(1, 1.0), (2, 0.5)]},
        map_points=[
            MapPoint(video_id=name, label=name, split=name, x=i, y=i * i)
            for i, name in enumerate(names)
        ],
        neighbours=[Neighbours(query=strip, hits=tuple(strips)) for strip in strips],
        failed=dict(zip(names, names, strict=True)),
    )
    write_report(content, tmp_path / "hostile.html")
    browser.open(tmp_path / "hostile.html", width=width, height=height)
    focus(browser, "#map-box")
    for _ in names:
        browser.press("ArrowRight")
        assert browser.evaluate(f"{TIP}.hidden") is False
    browser.move(*middle(browser, "#confusion-box"))
    assert browser.evaluate("window.taken ?? 'untouched'") == "untouched"
    require_sound(browser)


def test_pointing_at_a_video_shows_its_picture_and_name(browser: Any, page: Path) -> None:
    browser.open(page)
    x, y = middle(browser, "#map-box")
    for step in range(40):  # some dot lies on this line
        browser.move(x - 200 + 10 * step, y)
        if browser.evaluate(f"{TIP}.hidden") is False:
            break
    assert ".mp4" in browser.evaluate(f"{TIP}.textContent")
    assert browser.evaluate(f"{TIP}.querySelector('img').src.startsWith('data:image/jpeg')") is True
    require_sound(browser)


def test_the_arrow_keys_walk_over_the_map_and_say_where_they_are(browser: Any, page: Path) -> None:
    browser.open(page)
    focus(browser, "#map-box")
    said = []
    for _ in range(4):
        browser.press("ArrowRight")
        said.append(browser.evaluate(SPOKEN))
    assert len(set(said)) == 4
    browser.press("Escape")
    assert browser.evaluate(f"{TIP}.hidden") is True


@pytest.mark.parametrize(
    ("selector", "text"), [("#confusion-box canvas", " of 10 ("), (".curve .area", "epoch 3")]
)
def test_a_finger_reads_what_a_mouse_reads(
    browser: Any, page: Path, selector: str, text: str
) -> None:
    browser.open(page, width=390, height=844)
    browser.tap(*middle(browser, selector))
    assert text in browser.evaluate(f"{TIP}.hidden ? 'hidden' : {TIP}.textContent")
    browser.tap(*middle(browser, "footer"))
    assert browser.evaluate(f"{TIP}.hidden") is True


def test_a_label_can_be_kept_and_let_go(browser: Any, page: Path) -> None:
    browser.open(page)
    before = ink(browser, "#map-box canvas")
    button = "#map-legend li:nth-child(2) button"
    pressed = f"document.querySelector('{button}').getAttribute('aria-pressed')"
    browser.click(*middle(browser, button))
    assert browser.evaluate(pressed) == "true"
    browser.move(5, 5)
    assert ink(browser, "#map-box canvas") < before
    browser.click(*middle(browser, button))
    assert browser.evaluate(pressed) == "false"


def test_a_split_can_be_shown_alone(browser: Any, page: Path) -> None:
    browser.open(page)
    draw = "document.querySelector('#map-box canvas').toDataURL()"
    everything = browser.evaluate(draw)
    browser.click(*middle(browser, ".splits button:nth-child(2)"))
    assert browser.evaluate(draw) != everything
    browser.click(*middle(browser, ".splits button:nth-child(1)"))
    assert browser.evaluate(draw) == everything


def test_a_cell_of_the_matrix_says_its_count(browser: Any, page: Path) -> None:
    browser.open(page)
    focus(browser, "#confusion-box")
    browser.press("ArrowRight")
    assert browser.evaluate(f"{TIP}.textContent") == browser.evaluate(SPOKEN).replace(", ", "", 1)
    assert ": correct, " in browser.evaluate(SPOKEN)
    browser.press("ArrowDown")
    assert " → " in browser.evaluate(SPOKEN)
    assert " of 10 (" in browser.evaluate(SPOKEN)


def test_another_probe_and_order_redraw_the_matrix(browser: Any, page: Path) -> None:
    browser.open(page)
    draw = "document.querySelector('#confusion-box canvas').toDataURL()"
    seen = {browser.evaluate(draw)}
    for control, value in (("confusion-record", "3"), ("confusion-order", "accuracy")):
        browser.evaluate(
            f"""(() => {{
              const control = document.getElementById("{control}");
              control.value = "{value}";
              control.dispatchEvent(new Event("change"));
            }})()"""
        )
        seen.add(browser.evaluate(draw))
    assert len(seen) == 3
    require_sound(browser)


def test_pointing_at_a_curve_reads_it(browser: Any, page: Path) -> None:
    browser.open(page)
    browser.move(*middle(browser, ".curve .area"))
    assert browser.evaluate(f"{TIP}.textContent").startswith("epoch 3")


def test_the_charts_follow_the_window(browser: Any, page: Path) -> None:
    browser.open(page)
    browser.send(
        "Emulation.setDeviceMetricsOverride",
        width=500, height=800, deviceScaleFactor=2, mobile=False,
    )  # fmt: skip
    browser.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done, 50)))")
    require_sound(browser)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")
def test_a_browser_that_hangs_is_killed_with_all_its_processes(
    chromium: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "loop.html").write_text("<!doctype html><script>for (;;);</script>")
    hanging = Browser(chromium, tmp_path / "profile")
    try:
        hanging.start()
        assert len(hanging.processes()) > 1
        monkeypatch.setattr(conftest, "ANSWER_TIMEOUT", 2)
        with pytest.raises(TimeoutError, match="browser killed"):
            hanging.open(tmp_path / "loop.html")
        deadline = time.monotonic() + 10
        while hanging.processes() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert hanging.processes() == []
    finally:
        hanging.close()
