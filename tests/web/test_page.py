"""The page as a user meets it: Chromium opens it, and nothing leaves this machine."""

from __future__ import annotations

import re
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import uvicorn
from playwright.sync_api import Browser, ConsoleMessage, Page, Route, expect, sync_playwright
from tests.conftest import write_video
from tests.miniatures import run
from tests.web.conftest import HOSTILE

from clipset.features.sprites import read_sprite
from clipset.web.app import create_app
from clipset.web.server import open_listener
from clipset.web.state import ServerState

pytestmark = pytest.mark.browser

FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
]  # fmt: skip
SIZES = {"wide": (1440, 900), "phone": (390, 844)}
PATIENCE = 60_000  # milliseconds, on a busy machine
NUM_VIDEOS, AVI, COPY = 26, "noise.avi", "copy.mp4"


class Served:
    """A server in a thread of this process, and what it serves."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.state = folder, ServerState(folder)
        self.state.run.trained.reader.config = self.state.run.trained.reader.config.__class__(
            workers=0
        )
        self.listener = open_listener("127.0.0.1", 0)
        self.address = f"http://127.0.0.1:{self.listener.getsockname()[1]}/"
        config = uvicorn.Config(create_app(self.state), log_level="warning", access_log=False)
        self.server = uvicorn.Server(config)
        sockets = {"sockets": [self.listener]}
        self.thread = threading.Thread(target=self.server.run, kwargs=sockets, daemon=True)
        self.thread.start()

    def wait_until_ready(self) -> None:
        """Until map and predictions are computed."""
        deadline = time.monotonic() + 60
        while "pending" in self.state.background.values() and time.monotonic() < deadline:
            time.sleep(0.02)

    def close(self) -> None:
        self.server.should_exit = True
        self.thread.join(timeout=30)
        self.listener.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    executable = shutil.which("chromium") or shutil.which("chromium-browser")
    if executable is None:
        pytest.skip("there is no chromium on PATH; install it to test the page in a browser")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=executable, args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture(
    scope="module", params=["wide", pytest.param("phone", marks=pytest.mark.slow)], ids=str
)
def size(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def served(
    size: str, served_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """A copy of the run for each size of the window."""
    ignored = shutil.ignore_patterns("labels", ".lock")
    folder = shutil.copytree(served_folder, tmp_path_factory.mktemp(size) / "run", ignore=ignored)
    served = Served(Path(folder))
    served.wait_until_ready()
    yield served
    served.close()


@pytest.fixture
def refused() -> list[str]:
    """Ends of addresses that the server is meant to refuse in a test; Chromium reports them."""
    return []


@pytest.fixture
def page(browser: Browser, served: Served, size: str, refused: list[str]) -> Iterator[Page]:
    """The page, opened; at the end nothing went wrong, and nothing was asked of elsewhere."""
    width, height = SIZES[size]
    context = browser.new_context(
        viewport={"width": width, "height": height}, has_touch=size == "phone"
    )
    context.set_default_timeout(PATIENCE)
    expect.set_options(timeout=PATIENCE)
    page = context.new_page()
    problems: list[str] = []
    asked: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.extend(read_problem(message, refused)))
    page.on("request", lambda request: asked.append(request.url))
    page.on("dialog", lambda dialog: problems.append(f"dialog {dialog.message}"))
    open_page(page, served.address)
    yield page
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    context.close()
    allowed = (urlsplit(served.address).netloc, "")  # data: has no host
    assert [url for url in asked if urlsplit(url).netloc not in allowed] == []
    assert problems == []


def read_problem(message: ConsoleMessage, refused: list[str]) -> list[str]:
    """The text of an error or warning in the console that is not meant."""
    is_meant = message.location["url"].partition("?")[0].endswith(tuple(refused))
    if message.type not in ("error", "warning") or (refused and is_meant):
        return []
    return [f"{message.text} ({message.location['url']})"]


def open_page(page: Page, address: str) -> None:
    page.goto(address)
    page.wait_for_selector("html[data-ready=true]")
    expect(page.locator("#run-size")).to_have_text(f"{NUM_VIDEOS} videos")


def cells(page: Page) -> Any:
    return page.locator("#grid .cell")


def index_of(served: Served, name: str) -> int:
    return served.state.run.store.ids.index(name)


def open_video(page: Page, name: str) -> None:
    """Find a video by its name and open it."""
    page.get_by_label("Filter by name").fill(name)
    expect(cells(page)).to_have_count(1)
    cells(page).first.click()
    expect(page.locator(".video-pane h2")).to_have_text(name)


def wait_for_frame(page: Page) -> None:
    """Until the player shows a picture."""
    page.wait_for_function(
        "() => { const v = document.querySelector('.video-pane video');"
        " return v.readyState >= 2 && v.videoWidth > 0 && v.duration > 0; }"
    )


def show_map(page: Page, size: str) -> None:
    if size == "phone":
        page.get_by_role("group", name="Panes").get_by_text("Map").click()
    page.wait_for_function("() => document.querySelector('.plane').dataset.milliseconds")


def test_the_page_opens_with_all_videos_and_pictures(page: Page) -> None:
    expect(cells(page).first).to_be_visible()
    page.wait_for_function(
        "() => [...document.querySelectorAll('#grid .cell img')].slice(0, 4)"
        ".every((image) => image.naturalWidth > 0)"
    )
    expect(page.locator(".total")).to_have_text(f"{NUM_VIDEOS} videos")
    text = page.locator("#grid").inner_text()
    assert HOSTILE in text or "red" in text
    assert page.locator("#grid img[src=x]").count() == 0  # a label is text, never HTML


def test_videos_are_filtered_and_sorted(page: Page, served: Served) -> None:
    labels = served.state.run.labels
    page.locator(".facets [data-key=label]").click()
    popover = page.get_by_role("dialog", name="Label")
    popover.get_by_text("red", exact=True).click()
    expect(page.locator(".total")).to_have_text(f"{labels.count('red')} of {NUM_VIDEOS}")
    popover.get_by_text(HOSTILE).click()
    page.keyboard.press("Escape")
    expect(page.locator(".total")).to_have_text(
        f"{labels.count('red') + labels.count(HOSTILE)} of {NUM_VIDEOS}"
    )
    page.get_by_role("button", name="Clear filters").first.click()
    page.get_by_label("Filter by name").fill("no such name")
    expect(page.locator("#grid-message")).to_contain_text("No video fits")
    page.locator("#grid-message").get_by_role("button").click()
    page.get_by_label("Sort").select_option("-duration")
    durations = served.state.run.store.durations
    expect(cells(page).first).to_have_attribute("data-index", "0")
    longest = served.state.run.videos[int(durations.argmax())].path.name
    expect(page.locator("#item-0 .name")).to_have_text(longest)
    page.get_by_label("Sort").select_option("mistakes")
    expect(page.locator(".total")).to_have_text(f"{NUM_VIDEOS} videos")


def test_videos_are_selected_by_keys_and_labelled_together(page: Page, served: Served) -> None:
    page.locator("#grid").focus()
    for key in ("ArrowRight", "Shift+ArrowRight", "Shift+ArrowRight"):
        page.keyboard.press(key)
    expect(page.locator("#selection b")).to_have_text("3 selected")
    page.keyboard.press("Space")
    expect(page.locator("#selection b")).to_have_text("2 selected")
    page.get_by_label("Label the selected videos").fill("pair")
    page.keyboard.press("Enter")
    expect(page.locator(".toast")).to_contain_text("2 of 2 videos labelled pair")
    assert list(served.state.labels.labels.values()) == ["pair", "pair"]
    page.locator("#grid").focus()
    for number in (1, 0):
        page.keyboard.press("u")
        wait_until(lambda number=number: len(served.state.labels.labels) == number)
    page.locator("#grid").focus()
    page.keyboard.press("Escape")
    expect(page.locator("#selection")).to_be_hidden()
    page.keyboard.press("a")
    expect(page.locator("#selection b")).to_have_text(f"{NUM_VIDEOS} selected")
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    page.keyboard.press("Escape")


def test_a_click_finds_what_is_similar_and_less_like_it_changes_that(
    page: Page, served: Served, size: str
) -> None:
    open_video(page, COPY)
    page.locator(".video-pane").get_by_role("button", name="More like this").click()
    if size == "phone":  # the video covered the results, and makes room for them
        expect(page.locator(".video-pane")).to_be_hidden()
    page.get_by_label("Filter by name").fill("")
    expect(page.locator(".chip")).to_have_count(1)
    expect(page.locator(".query [role=status]")).to_contain_text("nearest first")
    expect(page.locator("#item-0 .score")).to_have_text(re.compile(r"1\.00|100"))
    names = [video.path.name for video in served.state.run.videos]
    nearest = page.locator("#item-0 .name").inner_text()
    assert served.state.run.labels[names.index(nearest)] == "red"
    page.locator("#grid").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("l")
    expect(page.locator(".chip.negative")).to_have_count(1)
    expect(page.locator("#item-0 .name")).not_to_have_text(nearest)
    page.get_by_role("button", name="Clear search").click()
    expect(page.locator(".total")).to_have_text(f"{NUM_VIDEOS} videos")


def test_a_dropped_file_is_searched_with(page: Page, refused: list[str], tmp_path: Path) -> None:
    path = write_video(tmp_path / "<b>new.mp4", seed=7, colour=1)
    drop_file(page, path)
    expect(page.locator(".chip .name")).to_have_text("<b>new.mp4")
    expect(page.locator(".query [role=status]")).to_contain_text("nearest first")
    expect(page.locator("#item-0 .label")).to_have_text("green")
    broken = tmp_path / "broken.mp4"
    broken.write_bytes(b"no video")
    refused.append("/api/uploads")
    drop_file(page, broken)
    expect(page.locator(".toast.error")).to_contain_text("broken.mp4: not a video file")
    expect(page.locator(".chip")).to_have_count(1)


def drop_file(page: Page, path: Path) -> None:
    """Drop a file on the page, as the desktop does it."""
    content = list(path.read_bytes())
    page.evaluate(
        """([content, name]) => {
          const transfer = new DataTransfer();
          transfer.items.add(new File([new Uint8Array(content)], name, { type: "video/mp4" }));
          for (const kind of ["dragover", "drop"]) {
            const options = { dataTransfer: transfer, bubbles: true, cancelable: true };
            document.body.dispatchEvent(new DragEvent(kind, options));
          }
        }""",
        [content, path.name],
    )


def test_an_mp4_plays_and_a_moment_of_it_is_searched(page: Page, size: str) -> None:
    open_video(page, "video 23.mp4")
    wait_for_frame(page)
    assert page.locator(".video-pane video").get_attribute("src").endswith("/file")  # type: ignore[union-attr]
    expect(page.locator(".note")).to_be_hidden()
    expect(page.locator(".clip-bar").first).to_be_attached()
    drag_moment(page)
    page.get_by_role("button", name="Search this moment").click()
    if size == "phone":  # the video covered the results, and makes room for them
        expect(page.locator(".video-pane")).to_be_hidden()
    page.get_by_label("Filter by name").fill("")
    expect(page.locator(".query [role=status]")).to_contain_text("moments, nearest first")
    expect(page.locator("#item-0 .time.moment")).to_be_visible()
    expect(page.locator("#item-0 img")).to_have_attribute("src", re.compile(r"\?time=\d"))
    cells(page).nth(1).click()
    expect(page.locator(".heat-bar").first).to_be_attached()  # how near its moments are


def drag_moment(page: Page) -> None:
    """Select the middle of the timeline by the mouse."""
    expect(page.locator(".video-pane:not(.loading) .clip-bar").first).to_be_attached()
    page.locator(".timeline .track").scroll_into_view_if_needed()
    box = page.evaluate("document.querySelector('.timeline .lane').getBoundingClientRect()")
    page.mouse.move(box["x"] + 0.25 * box["width"], box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + box["height"] / 2, steps=4)
    page.mouse.move(box["x"] + 0.75 * box["width"], box["y"] + box["height"] / 2, steps=4)
    page.mouse.up()
    expect(page.locator(".span-tools")).to_be_visible()


def test_an_avi_is_played_as_a_preview(page: Page) -> None:
    open_video(page, AVI)
    expect(page.locator(".note")).to_contain_text("cannot play the file itself")
    wait_for_frame(page)
    assert "/preview" in str(page.locator(".video-pane video").get_attribute("src"))


def test_a_deleted_video_says_so(
    page: Page, served: Served, refused: list[str], tmp_path: Path
) -> None:
    refused += ["/file", "/preview"]
    video = served.state.run.videos[index_of(served, COPY)]
    kept = tmp_path / "kept.mp4"
    video.path.rename(kept)
    try:
        open_video(page, COPY)
        expect(page.locator(".stage .message")).to_contain_text("This video cannot be shown")
        expect(page.locator(".stage .message")).to_contain_text("no such file")
    finally:
        kept.rename(video.path)


def test_a_tile_shows_the_frame_under_the_pointer(page: Page, served: Served, size: str) -> None:
    if size == "phone":
        pytest.skip("a finger does not hover")
    x, y = middle_of(page, 0)
    with page.expect_response("**/api/videos/0/sprite") as answer:
        page.mouse.move(x, y)
    film = page.locator("#item-0 .film")

    def is_shown(step: float) -> bool:
        page.mouse.move(x + step, y)
        return film.is_visible()

    wait_until(lambda: is_shown(-40) and is_shown(40))
    left = film.evaluate("(film) => film.style.backgroundPositionX")
    assert is_shown(-40)
    assert film.evaluate("(film) => film.style.backgroundPositionX") != left
    store = served.state.run.store
    assert answer.value.body() == read_sprite(store.folder, store.entries[0].ordinal)


def test_a_lasso_on_the_map_selects_in_the_grid(page: Page, size: str) -> None:
    show_map(page, size)
    page.get_by_role("button", name="Lasso").click()
    box = page.locator(".plane").bounding_box()
    assert box is not None
    corners = [(0.01, 0.01), (0.99, 0.01), (0.99, 0.99), (0.01, 0.99)]
    points = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in corners]
    page.mouse.move(*points[0])
    page.mouse.down()
    for point in points[1:]:
        page.mouse.move(*point, steps=4)
    page.mouse.up()
    if size == "phone":
        page.get_by_role("group", name="Panes").get_by_text("Grid").click()
    expect(page.locator("#selection b")).to_have_text(f"{NUM_VIDEOS} selected")
    page.get_by_role("button", name="More like these").click()
    expect(page.locator(".chip")).to_have_count(20)


def test_a_lasso_on_the_grid_selects_what_it_touches(page: Page, size: str) -> None:
    if size == "phone":
        pytest.skip("a finger scrolls the grid")
    columns = page.evaluate(
        "() => { const top = (cell) => cell.getBoundingClientRect().top;"
        " const cells = [...document.querySelectorAll('#grid .cell')];"
        " return cells.filter((cell) => top(cell) === top(cells[0])).length; }"
    )
    assert columns > 2
    first, second = middle_of(page, 0), middle_of(page, columns + 1)
    drag(page, first, second)
    block = [0, 1, columns, columns + 1]
    assert selected_items(page) == block
    expect(page.locator("#selection b")).to_have_text("4 selected")
    assert page.locator(".video-pane").count() == 0  # it was no click
    expect(page.locator("#grid .lasso")).to_be_hidden()
    page.keyboard.down("Control")
    drag(page, middle_of(page, 2), (middle_of(page, 2)[0] + 10, middle_of(page, 2)[1] + 5))
    page.keyboard.up("Control")
    assert selected_items(page) == sorted([*block, 2])
    page.mouse.move(*second)
    page.mouse.down()
    page.mouse.move(*first, steps=4)
    expect(page.locator("#selection b")).to_have_text("4 selected")
    page.keyboard.press("Escape")
    expect(page.locator("#selection b")).to_have_text("5 selected")
    page.mouse.up()
    assert selected_items(page) == sorted([*block, 2])
    cells(page).nth(1).click()
    expect(page.locator(".video-pane h2")).to_be_visible()
    assert selected_items(page) == [1]


def test_a_lasso_past_the_edge_scrolls_and_selects_what_was_passed(page: Page, size: str) -> None:
    if size == "phone":
        pytest.skip("a finger scrolls the grid")
    page.set_viewport_size({"width": 1440, "height": 420})
    box = page.locator("#grid").bounding_box()
    assert box is not None
    start = middle_of(page, 0)
    page.mouse.move(*start)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 40, box["y"] + box["height"] - 2, steps=4)
    page.wait_for_function(
        "() => { const { scrollTop, clientHeight, scrollHeight }"
        " = document.getElementById('grid'); return scrollTop + clientHeight >= scrollHeight - 1; }"
    )
    expect(page.locator("#item-0")).to_have_count(0)  # only what is in view is in the page
    page.mouse.up()
    expect(page.locator("#selection b")).to_have_text(f"{NUM_VIDEOS} selected")


def test_a_finger_scrolls_the_grid(page: Page, size: str) -> None:
    if size != "phone":
        pytest.skip("there is a mouse")
    x, y = middle_of(page, 2)
    finger = page.context.new_cdp_session(page)
    finger.send("Input.dispatchTouchEvent", touch("touchStart", x, y))
    for step in range(10):
        finger.send("Input.dispatchTouchEvent", touch("touchMove", x, y - 20 * step))
    finger.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    page.wait_for_function("() => document.getElementById('grid').scrollTop > 100")
    assert selected_items(page) == []


def touch(kind: str, x: float, y: float) -> dict[str, Any]:
    return {"type": kind, "touchPoints": [{"x": x, "y": y}]}


def middle_of(page: Page, item: int) -> tuple[float, float]:
    """The middle of a tile of the grid in the window."""
    box = page.locator(f"#item-{item} .shot").bounding_box()
    assert box is not None
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def drag(page: Page, start: tuple[float, float], end: tuple[float, float]) -> None:
    page.mouse.move(*start)
    page.mouse.down()
    page.mouse.move(*end, steps=4)
    page.mouse.up()


def selected_items(page: Page) -> list[int]:
    """The tiles of the page that are selected."""
    selected = page.locator("#grid .cell[aria-selected=true]")
    indices = selected.evaluate_all("(cells) => cells.map((cell) => Number(cell.dataset.index))")
    return sorted(indices)


def test_twenty_videos_are_labelled_and_the_score_moves(
    page: Page, served: Served, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    truth = {
        video.path.name: {"red": "warm", "green": "leaf"}.get(video.label or "", HOSTILE)
        for video in served.state.run.videos
    }
    page.get_by_role("tab", name="Label").click()
    scores = [score_of(page)]
    for number in range(20):
        title = page.locator("#label .video-pane h2")
        expect(title).not_to_be_empty()
        name = title.inner_text()
        choose_class(page, truth[name])
        wait_until(lambda number=number: len(served.state.labels.labels) == number + 1)
        expect(title).not_to_have_text(name)
        scores.append(score_of(page))
    expect(page.locator(".score-card .big")).to_contain_text("%")
    expect(page.locator(".score-card")).to_contain_text("right on 4 labels of 20")
    expect(page.locator(".curve")).to_be_visible()
    assert scores[0] is None
    assert page.locator("#label .counts img").count() == 0  # a class is text, never HTML
    expect(page.locator("#label .reason")).to_contain_text("Why this one")
    page.get_by_role("button", name="Undo").click()
    expect(page.locator(".score-card")).to_contain_text("of 19 ")
    undone = page.locator("#label .video-pane h2").inner_text()
    page.get_by_role("button", name="Skip").click()
    wait_until(lambda: len(served.state.labels.skipped) == 1)
    expect(page.locator("#label .video-pane h2")).not_to_have_text(undone)
    mark_span(page, served)
    export_and_predict(page, served, capsys, tmp_path)


def score_of(page: Page) -> str | None:
    big = page.locator(".score-card .big")
    expect(big).to_be_visible()
    return big.get_attribute("data-score")


def choose_class(page: Page, label: str) -> None:
    """Press the class's key, or type the class if it is new."""
    known = page.locator("#label .class")
    names = known.locator(".name").all_inner_texts()
    if label in names[:9]:
        page.locator("#label .reason").click()  # no input has the focus
        page.keyboard.press(str(names.index(label) + 1))
    else:
        page.locator("#label").get_by_label("Label with a class").fill(label)
        page.keyboard.press("Enter")


def mark_span(page: Page, served: Served) -> None:
    drag_moment(page)
    page.locator("#label .class").first.click()
    wait_until(lambda: len(served.state.labels.spans) == 1)
    [marked] = served.state.labels.spans
    assert 0 < marked.start < marked.end
    expect(page.locator(".span-bar")).to_have_count(1)


def export_and_predict(
    page: Page, served: Served, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    page.get_by_role("button", name="Export").click()
    expect(page.locator(".exported .command")).to_contain_text("clipset predict VIDEOS --run")
    path = write_video(tmp_path / "new.mp4", seed=50, colour=1)
    capsys.readouterr()
    folder = served.folder
    assert run("predict", path, "--run", folder, "--probe", "labels", "--workers", 0) == 0
    assert "leaf" in capsys.readouterr().out


def test_a_duplicate_is_found_in_review(page: Page, served: Served) -> None:
    page.get_by_role("tab", name="Review").click()
    page.get_by_role("group", name="View").get_by_text("Duplicates").click()
    shot = page.locator(f'.review-shot[data-video="{index_of(served, COPY)}"]')
    expect(shot).to_be_visible()
    shot.click()
    expect(page.locator("#review .video-pane h2")).to_have_text(COPY)
    for view in ("Outliers", "Doubtful labels"):
        if page.locator("#review .video-pane .close").is_visible():
            page.locator("#review .video-pane .close").click()
        page.get_by_role("group", name="View").get_by_text(view).click()
        expect(page.locator(".review-list > *").first).to_be_visible()
        expect(page.locator(".review-list")).not_to_contain_text("Looking")


def test_the_report_is_a_tab(page: Page) -> None:
    page.get_by_role("tab", name="Report").click()
    frame = page.frame_locator("#report iframe")
    expect(frame.locator("h1").first).to_be_visible()


def test_a_full_disk_is_said(page: Page, refused: list[str]) -> None:
    refused.append("/api/labels")

    def refuse(route: Route) -> None:
        detail = '{"detail": "cannot write labels: no space left on device"}'
        route.fulfill(status=409, content_type="application/json", body=detail)

    page.route("**/api/labels", refuse)
    open_video(page, COPY)
    page.locator(".video-pane").get_by_label("Label with a class").fill("new")
    page.keyboard.press("Enter")
    expect(page.locator(".toast.error")).to_contain_text("no space left on device")
    page.unroute("**/api/labels")


def wait_until(condition: Any, seconds: float = PATIENCE / 1000) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)
