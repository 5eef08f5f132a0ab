"""A made-up run to draw, and a real browser to draw it in."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw

from clipset.evaluation.results import (
    Comparison,
    Confusion,
    LowShotCurve,
    LowShotPoint,
    ProbeResult,
)
from clipset.report.content import (
    Counts,
    MapPoint,
    Neighbours,
    ReportContent,
    Step,
    Strip,
)
from clipset.report.run_page import measure_calibration

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync "
    "--disable-background-networking --disable-component-update --disable-dev-shm-usage "
    "--remote-debugging-pipe"
)
LAUNCH = """
import os, sys
os.dup2(int(sys.argv[1]), 3)  # the browser reads commands from 3 and answers on 4
os.dup2(int(sys.argv[2]), 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
ANSWER_TIMEOUT = 60  # seconds until a browser that does not answer is killed
FRACTIONS = (0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0)
WORDS = ("circle", "square", "star", "ring", "cross", "bar", "wave", "dot")
ROWS = (
    ("backbone", "knn", 0.30, 0.10),
    ("scale", "knn", 0.55, 0.11),
    ("backbone", "linear", 0.3125, 0.10),
    ("scale", "linear", 0.70, 0.10),
    ("backbone", "mlp", 0.34, 0.10),
    ("backbone", "transformer", 0.60, 0.11),
    ("scale", "finetune", 0.875, 0.07),
)


def jpeg(rng: np.random.Generator, hue: int, progress: float, size: tuple[int, int]) -> bytes:
    """A frame: a disc that crosses a noisy ground."""
    ground = rng.integers(20, 70, (*size[::-1], 3), dtype=np.uint8)
    image = Image.fromarray(ground)
    x, y = progress * size[0], size[1] * (0.5 + 0.3 * np.sin(6 * progress + hue))
    shade = tuple(int(v) for v in 130 + 120 * np.cos([hue, hue + 2, hue + 4]))
    ImageDraw.Draw(image).ellipse((x - 14, y - 14, x + 14, y + 14), fill=shade)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=75)
    return file.getvalue()


def class_names(number: int) -> list[str]:
    """Names of classes: two events in an order."""
    pairs = [f"{a} then {b}" for a in WORDS for b in WORDS if a != b]
    return sorted(
        pairs[index * 5 % 56] if index < 8 else f"class {index:03d}" for index in range(number)
    )


def make_result(features: Any = "scale", probe: Any = "linear", **changes: Any) -> ProbeResult:
    """A result without a confusion matrix."""
    fields = {
        "metric": "accuracy", "value": 0.5, "interval": (0.4, 0.6), "n": 80, "seeds": (0, 1, 2),
        "selected_on": "validation", "split": "test", "chance_level": 0.1,
    }  # fmt: skip
    return ProbeResult(features=features, probe=probe, **(fields | changes))


def result_with_confusion(
    features: str,
    probe: str,
    value: float,
    half: float,
    classes: list[str],
    rng: np.random.Generator,
) -> ProbeResult:
    """A result with a confusion matrix that agrees with its value."""
    size = len(classes)
    mistakes = rng.dirichlet(np.full(size, 0.3), size) * (1 - value)
    rates = mistakes + value * np.eye(size)
    counts = np.stack([rng.multinomial(10, row / row.sum()) for row in rates])
    return make_result(
        features,
        probe,
        value=value,
        interval=(max(0.0, value - half), min(1.0, value + half)),
        n=10 * size,
        chance_level=1 / size,
        seconds=1.5,
        per_class={c: float(counts[i, i] / 10) for i, c in enumerate(classes)},
        confusion=Confusion(classes=tuple(classes), counts=tuple(map(tuple, counts.tolist()))),
    )


def make_content(videos: int = 240, classes: int = 8, seed: int = 0) -> ReportContent:
    """A run over `videos` videos, with every part filled."""
    rng = np.random.default_rng(seed)
    names = class_names(classes)
    centres = rng.normal(0, 6, (classes, 2))
    sizes = [(96, 72), (96, 54), (54, 96), (96, 96)]

    def strip(video: int, similarity: float | None = None) -> Strip:
        size = sizes[video % 4]
        frames = tuple(jpeg(rng, video % classes, (k + 0.5) / 5, size) for k in range(5))
        label = names[video % classes]
        return Strip(video_id=video_id(video), label=label, frames=frames, similarity=similarity)

    def video_id(video: int) -> str:
        return f"{names[video % classes].replace(' ', '_')}/video_{video:04d}.mp4"

    points = []
    for video in range(videos):
        x, y = centres[video % classes] + rng.normal(0, 1.6, 2)
        points.append(
            MapPoint(
                video_id=video_id(video),
                x=float(x),
                y=float(y),
                label=names[video % classes],
                split="test" if video % 3 == 0 else "train",
                thumbnail=jpeg(rng, video % classes, float(rng.random()), sizes[video % 4]),
            )
        )
    epochs = np.arange(1, 61)
    fall = np.exp(-epochs / 15)
    curves = {
        "loss": 3.1 + 7 * fall,
        "masked_clip": 1.9 + 4 * fall,
        "set_contrast": 1.2 + 3 * fall,
        "masked_clip_accuracy": 0.62 * (1 - fall),
        "set_accuracy": 0.88 * (1 - fall**2),
        "learning_rate": 5e-4 * (1 + np.cos(np.pi * epochs / 60)) / 2,
    }
    noise = rng.normal(1, 0.015, (len(curves), len(epochs)))
    neighbours = []
    for query in range(5):
        videos_near = [query + classes * k for k in range(1, 5)] + [query + 1 + classes * 6]
        hits = [strip(video, 0.97 - 0.05 * k) for k, video in enumerate(videos_near)]
        neighbours.append(Neighbours(query=strip(query), hits=tuple(hits)))
    return ReportContent(
        title="Shapes in order",
        subtitle="240 rendered videos whose label is the order of two events",
        counts=Counts(videos=videos, classes=classes, clips=31 * videos, hours=0.43),
        facts={
            "Recipe": [
                ("command", "clipset run videos --out runs/shapes --seed 0"),
                ("backbone", "efficientnet_lite0 (ImageNet)"),
                ("seed", "0"),
                ("clips", "16 random, 5×3 regular"),
            ],
            "Versions": [("clipset", "0.1.0"), ("torch", "2.13.0")],
            "Machine": [("processor", "2 cores, AVX2"), ("memory", "24 GB")],
        },
        steps=[
            Step(name="catalog", seconds=0.4),
            Step(name="extract", seconds=0, note="done before"),
            Step(name="pretrain", seconds=72.5),
            Step(name="embed", seconds=3.2),
            Step(name="evaluate", seconds=41),
        ],
        results=[result_with_confusion(*row, names, rng) for row in ROWS],
        **sample_statistics(rng),
        curves={
            name: [(int(e), float(v)) for e, v in zip(epochs, values * noise[i], strict=True)]
            for i, (name, values) in enumerate(curves.items())
        },
        map_points=points,
        neighbours=neighbours,
        failed={
            "broken/empty.mp4": "the file is empty",
            "broken/voice only.mp4": "no video stream, audio only",
            "broken/cut.avi": "97 of 175 frames could be decoded",
        },
    )


def sample_statistics(rng: np.random.Generator) -> dict[str, Any]:
    """Paired differences, calibration and low-shot curves of a few rows."""
    rows = [(features, probe, value) for features, probe, value, _ in ROWS]
    calibration = []
    for place, (features, probe, value) in enumerate(rows):
        truth = rng.integers(8, size=150)
        outputs = rng.dirichlet(np.full(8, 0.25 + 0.1 * place), (3, 150))
        hit = rng.random((3, 150)) < value
        best = outputs.argmax(axis=2)
        for seed, video in zip(*np.nonzero(hit), strict=True):
            one, two = best[seed, video], truth[video]
            outputs[seed, video, [one, two]] = outputs[seed, video, [two, one]]
        calibration.append(measure_calibration((features, probe), outputs, truth))
    comparisons = [
        Comparison(
            features="scale", probe=probe, baseline_features="backbone", baseline_probe=other,
            metric="top1", difference=gap, interval=(gap - 0.08, gap + 0.08), p=p, mcnemar=p, n=80,
        )
        for probe, other, gap, p in (
            ("knn", "knn", 0.25, 0.0002), ("linear", "linear", 0.3875, 0.00001),
            ("finetune", "transformer", 0.05, 0.21), ("linear", "transformer", -0.12, 0.03),
        )
    ]  # fmt: skip
    low_shot = []
    for features, probe, value in (rows[2], rows[3], rows[5], rows[6]):
        scores = [float(0.1 + (value - 0.1) * (1 + np.log10(f) / 2)) for f in FRACTIONS]
        points = tuple(
            LowShotPoint(
                fraction=f, videos=max(8, round(160 * f)), value=v,
                interval=(max(0.0, v - 0.08), min(1.0, v + 0.08)), selected_on="validation",
            )
            for f, v in zip(FRACTIONS, scores, strict=True)
        )  # fmt: skip
        low_shot.append(
            LowShotCurve(
                features=features, probe=probe, metric="top1", split="test", n=80, points=points
            )
        )
    return {"calibration": calibration, "comparisons": comparisons, "low_shot": low_shot}


class Browser:
    """One page in headless Chromium, driven over the browser's own pipe: no port, no library.

    A command that is not answered in time kills the browser with all its processes.
    """

    def __init__(self, executable: str, profile: Path) -> None:
        to_browser, self._to_browser = os.pipe()
        self._from_browser, from_browser = os.pipe()
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (to_browser, from_browser)]
        flags = [*FLAGS.split(), f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, *map(str, ends), executable, *flags],
            pass_fds=ends,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a process group of its own, which can be killed whole
        )
        for end in (to_browser, from_browser, *ends):
            os.close(end)
        self._pending = b""
        self._number = 0
        self._session: str | None = None
        self._events: list[dict[str, Any]] = []

    def start(self) -> None:
        """Open an empty page and listen to it."""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """One command of the DevTools protocol, and its answer."""
        self._number += 1
        command = {"id": self._number, "method": method, "params": params}
        if self._session:
            command["sessionId"] = self._session
        deadline = time.monotonic() + ANSWER_TIMEOUT
        self._write(json.dumps(command).encode() + b"\0", deadline, method)
        while (message := self._receive(deadline, method)).get("id") != self._number:
            self._events.append(message)
        if "error" in message:
            raise RuntimeError(f"{method}: {message['error']}")
        result: dict[str, Any] = message["result"]
        return result

    def open(self, path: Path, *, width: int = 1440, height: int = 900, dark: bool = False) -> None:
        """Show a file in a window of that size and wait until it is loaded."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        self._events.clear()
        self.send("Page.navigate", url=path.resolve().as_uri())
        deadline = time.monotonic() + ANSWER_TIMEOUT
        while not any(event.get("method") == "Page.loadEventFired" for event in self._events):
            self._events.append(self._receive(deadline, f"the load of {path.name}"))

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression on the page."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def settle(self) -> None:
        """Wait until the page has drawn and not scrolled for some frames: it scrolls gently."""
        frames = """new Promise((done) => {
          let still = 0, at = NaN;
          const next = () => {
            still = scrollY === at ? still + 1 : 0;
            at = scrollY;
            still < 6 ? requestAnimationFrame(next) : done();
          };
          next();
        })"""
        self.send("Runtime.evaluate", expression=frames, awaitPromise=True)

    def move(self, x: float, y: float) -> None:
        """Move the mouse to a point of the window."""
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, x: float, y: float) -> None:
        """Press and release the mouse at a point of the window."""
        self.move(x, y)
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def tap(self, x: float, y: float) -> None:
        """Touch a point of the window with a finger and lift it."""
        self.send("Input.synthesizeTapGesture", x=x, y=y, gestureSourceType="touch")

    def press(self, key: str) -> None:
        """Press and release a key."""
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def requests(self) -> list[str]:
        """The addresses that the page has asked for since it was opened."""
        sent = (e for e in self._events if e.get("method") == "Network.requestWillBeSent")
        return [event["params"]["request"]["url"] for event in sent]

    def errors(self) -> list[dict[str, Any]]:
        """Uncaught errors of the page and what its content policy refused, since it was opened."""
        self.evaluate("0")  # what happened before has been told
        logged = [
            event["params"]["entry"]
            for event in self._events
            if event.get("method") == "Log.entryAdded"
        ]
        thrown = [e["params"] for e in self._events if e.get("method") == "Runtime.exceptionThrown"]
        return thrown + [entry for entry in logged if entry["level"] == "error"]

    def close(self) -> None:
        """End the browser with all its processes."""
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=20)
        self._kill()
        os.close(self._to_browser)
        os.close(self._from_browser)

    def processes(self) -> list[str]:
        """The live processes of the browser's group, by their entries in /proc."""
        entries = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                state, _, group = path.read_text().rpartition(")")[2].split()[:3]
                if state != "Z" and int(group) == self._process.pid:
                    entries.append(path.parent.name)
        return entries

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # its renderers, too
        self._process.wait(timeout=20)

    def _wait(self, deadline: float, awaited: str, *, writing: bool = False) -> None:
        """Wait until the pipe can be read or written; kill the browser at the deadline."""
        reads = [] if writing else [self._from_browser]
        writes = [self._to_browser] if writing else []
        if not any(select.select(reads, writes, [], max(deadline - time.monotonic(), 0))):
            self._kill()
            raise TimeoutError(f"no answer to {awaited} in {ANSWER_TIMEOUT} s: browser killed")

    def _write(self, message: bytes, deadline: float, awaited: str) -> None:
        while message:
            self._wait(deadline, awaited, writing=True)
            written = os.write(self._to_browser, message[: select.PIPE_BUF])
            message = message[written:]

    def _receive(self, deadline: float, awaited: str) -> dict[str, Any]:
        while b"\0" not in self._pending:
            self._wait(deadline, awaited)
            chunk = os.read(self._from_browser, 1 << 16)
            if not chunk:
                raise RuntimeError("the browser ended")
            self._pending += chunk
        message, self._pending = self._pending.split(b"\0", 1)
        event: dict[str, Any] = json.loads(message)
        return event


@pytest.fixture(scope="session")
def run_content() -> ReportContent:
    """A run of 240 videos in 8 classes with every part filled."""
    return make_content()


@pytest.fixture(scope="session")
def content_of() -> Callable[..., ReportContent]:
    """Makes runs of other sizes."""
    return make_content


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of Chromium."""
    executable = shutil.which("chromium") or shutil.which("chromium-browser")
    if executable is None:
        pytest.skip("there is no chromium on PATH; install it to test the page in a browser")
    return executable


@pytest.fixture
def browser(opened_browser: Browser) -> Iterator[Browser]:
    """A headless Chromium for a test that looks at pages, which leaves an empty one behind.

    A page that stays open may draw on for minutes and slow down all other tests.
    """
    yield opened_browser
    opened_browser.send("Page.navigate", url="about:blank")


@pytest.fixture(scope="session")
def opened_browser(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One Chromium for all tests."""
    opened = Browser(chromium, tmp_path_factory.mktemp("chromium"))
    try:
        opened.start()
        yield opened
    finally:
        opened.close()
