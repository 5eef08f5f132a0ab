"""The server and the page on a synthetic run: first answers, memory, 50 clients, a browser.

The run has real (tiny) video files, metadata and vectors, but no features of a network. All of it
is on this machine (127.0.0.1), in a temporary folder. In headless Chromium without a GPU, a frame
is late if it comes more than 1/30 s after the one before.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from contextlib import closing, suppress
from pathlib import Path

import av
import numpy as np
from record import make_parser, write_record

from clipset.backbones.registry import BackboneSpec, Weights
from clipset.clips.config import Sampling
from clipset.config import to_mapping
from clipset.data.catalog import Catalog, Video, write_catalog
from clipset.features.ledger import KINDS, Ledger, LedgerEntry
from clipset.features.store import Manifest
from clipset.files import write_json
from clipset.representation import VectorTable, write_vectors
from clipset.row_files import GrowingArray

NUM_CLIPS, DIM, NUM_CLASSES = 4, 256, 50
VIDEO_SECONDS, VIDEO_RATE = 2.0, 10
NUM_CLIENTS, CLIENT_SECONDS = 50, 10.0
BROWSER_FLAGS = [
    "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync", "--disable-dev-shm-usage",
    "--disable-background-networking", "--disable-component-update",
]  # fmt: skip
WATCH_START = """
const frame = (name) => requestAnimationFrame(() => { window[name] = performance.now(); });
new MutationObserver((_, observer) => {
  if (!window.isDrawn && document.querySelector(".cell")) {
    window.isDrawn = true;
    frame("gridAt");
  }
  if (document.documentElement.dataset.ready !== "true") return;
  observer.disconnect();
  frame("readyAt");
}).observe(document, { attributes: true, childList: true, subtree: true });
"""
COUNT_FRAMES = """async ([seconds, action]) => {
  const grid = document.getElementById("grid");
  const plane = document.querySelector(".plane");
  const { left, top, width, height } = plane.getBoundingClientRect();
  const actions = {
    scroll: () => { grid.scrollTop += 60; },
    zoom: (frame) => plane.dispatchEvent(new WheelEvent("wheel", {
      deltaY: frame % 60 < 30 ? -12 : 12, clientX: left + width / 2, clientY: top + height / 2,
      cancelable: true, bubbles: true,
    })),
  };
  const gaps = [];
  const began = performance.now();
  let last = began;
  while (last - began < 1000 * seconds) {
    actions[action](gaps.length);
    const now = await new Promise((done) => requestAnimationFrame(() => done(performance.now())));
    gaps.push(now - last);
    last = now;
  }
  return gaps;
}"""


def write_file(path: Path, seed: int) -> None:
    """A short H.264 file of noise."""
    rng = np.random.default_rng(seed)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=VIDEO_RATE)
        stream.width, stream.height, stream.pix_fmt = 160, 120, "yuv420p"
        for _ in range(round(VIDEO_SECONDS * VIDEO_RATE)):
            pixels = rng.integers(0, 255, (120, 160, 3), dtype=np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())


def write_videos(folder: Path, count: int) -> list[Path]:
    """Files of eight contents, under names of their own."""
    folder.mkdir(parents=True)
    for seed in range(8):
        write_file(folder / f"{seed}.mp4", seed)
    paths = []
    for index in range(count):
        path = folder / f"{index // 1000:03d}" / f"video {index}.mp4"
        path.parent.mkdir(exist_ok=True)
        os.link(folder / f"{index % 8}.mp4", path)
        paths.append(path)
    return paths


def write_run(folder: Path, count: int, seed: int) -> None:
    """A finished run of `count` videos without a model."""
    rng = np.random.default_rng(seed)
    paths = write_videos(folder / "videos", count)
    classes = rng.integers(0, NUM_CLASSES, count)
    catalog = Catalog(
        name="synthetic",
        videos=tuple(
            Video(
                id=f"{path.parent.name}/{path.name}",
                path=path,
                label=f"class {label}",
                split="test" if index % 4 == 0 else "train",
            )
            for index, (path, label) in enumerate(zip(paths, classes.tolist(), strict=True))
        ),
    )
    write_catalog(catalog, folder / "catalog.csv")
    write_store(folder / "store", catalog)
    centers = rng.normal(size=(NUM_CLASSES, DIM)).astype(np.float32)
    vectors = rng.normal(size=(count, NUM_CLIPS, DIM)).astype(np.float32)
    vectors += 2 * centers[classes][:, None]
    table = VectorTable(
        video_ids=tuple(video.id for video in catalog),
        labels=tuple(video.label for video in catalog),
        splits=tuple(video.split for video in catalog),
        vectors=vectors,
        starts=(0.0,) * count,
        ends=(VIDEO_SECONDS,) * count,
        windows=(None,) * count,
        parts=("clip",),
        part_widths=(DIM,),
    )
    write_vectors(table, folder / "vectors")
    write_json(folder / "run.json", {"format": 1, "name": "synthetic", "recipe": {}, "steps": []})


def write_store(folder: Path, catalog: Catalog) -> None:
    """A store with zeros as features, and the clips one after the other."""
    spec = BackboneSpec(
        name="synthetic", dim=DIM, frames=1, stride=1, size=1, mean=(0, 0, 0), std=(1, 1, 1),
        pooling="none", weights=Weights(file="", licence="", source=""), paper="",
    )  # fmt: skip
    sampling = Sampling(num_clips=NUM_CLIPS, num_times=NUM_CLIPS, num_crops=1)
    manifest = Manifest(backbone=spec, sampling=sampling, seed=0, dtype="float16")
    count = len(catalog)
    starts = np.arange(NUM_CLIPS) * VIDEO_SECONDS / NUM_CLIPS
    boxes = np.zeros((NUM_CLIPS, 7), np.float32)
    boxes[:, 0], boxes[:, 1], boxes[:, 4:6] = starts, starts + VIDEO_SECONDS / NUM_CLIPS, 1.0
    rows = {"boxes": np.tile(boxes, (count, 1)), "times": np.tile(boxes[:, :1], (count, 1))}
    for kind in KINDS:
        (folder / kind).mkdir(parents=True)
        for name, (shape, dtype) in manifest.columns().items():
            with GrowingArray(folder / kind / f"{name}.npy", shape, dtype) as array:
                if name in rows:
                    array.write(0, rows[name])
                array.finish(count * NUM_CLIPS)
    write_catalog(catalog, folder / "catalog.csv")
    with closing(Ledger(folder / "ledger.sqlite", create=True)) as ledger:
        ledger.append(video.id for video in catalog)
        ledger.write(
            [
                LedgerEntry(
                    ordinal=index, id=video.id, status="done", duration=VIDEO_SECONDS, width=160,
                    height=120, random_first=index * NUM_CLIPS, random_count=NUM_CLIPS,
                    regular_first=index * NUM_CLIPS, regular_count=NUM_CLIPS,
                )
                for index, video in enumerate(catalog)
            ]
        )  # fmt: skip
        ledger.manifest = manifest.fingerprint
    write_json(folder / "manifest.json", to_mapping(manifest))


class Server:
    """`clipset serve` in a process of its own, at a free port."""

    def __init__(self, run: Path) -> None:
        began = time.perf_counter()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "clipset.cli", "serve", str(run), "--port", "0", "--no-browser"],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if match := re.fullmatch(r"http://127\.0\.0\.1:(\d+)/\n", line):
                self.port = int(match[1])
                break
        else:
            raise SystemExit("the server did not start")
        self.start_seconds = time.perf_counter() - began
        self.own_memory = 0.0
        threading.Thread(target=self._watch_memory, daemon=True).start()

    def get(self, address: str, **headers: str) -> tuple[int, bytes, float]:
        """Status, body and seconds of a request with a connection of its own."""
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            began = time.perf_counter()
            connection.request("GET", address, headers=headers)
            response = connection.getresponse()
            return response.status, response.read(), time.perf_counter() - began

    def memory(self, name: str) -> float:
        """A line of the process's status in megabytes, without the media workers."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return float(re.search(rf"{name}:\s*(\d+) kB", text)[1]) / 1000  # type: ignore[index]

    def _watch_memory(self) -> None:
        """Keep the largest memory of its own: without pages of files, which the system may drop."""
        while self.process.poll() is None:
            with suppress(OSError, TypeError):  # the process has ended
                self.own_memory = max(self.own_memory, self.memory("RssAnon"))
            time.sleep(0.2)

    def wait_until_ready(self, seconds: float) -> float:
        """How long the work in the background takes."""
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            state = json.loads(self.get("/api/run")[1])["background"]
            if "pending" not in state.values():
                break
            time.sleep(0.5)
        return time.perf_counter() - began

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=30)


def ask(server: Server, count: int, seed: int, until: float, times: dict[str, list[float]]) -> None:
    """One client: thumbnails, details and searches, one after the other; -1 is an error."""
    rng = np.random.default_rng(seed)
    json_header = {"content-type": "application/json"}
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)) as connection:
        while time.perf_counter() < until:
            video, kind = (
                int(rng.integers(count)),
                str(rng.choice(("thumbnail", "video", "search"))),
            )
            body = json.dumps({"positive": [{"video": video}], "limit": 50})
            began = time.perf_counter()
            try:
                if kind == "search":
                    connection.request("POST", "/api/search", body, json_header)
                else:
                    suffix = "/thumbnail" if kind == "thumbnail" else ""
                    connection.request("GET", f"/api/videos/{video}{suffix}")
                response = connection.getresponse()
                response.read()
                is_error = response.status != 200
            except OSError:
                is_error = True
            times[kind].append(-1.0 if is_error else time.perf_counter() - began)


def measure_page(server: Server, seconds: float) -> dict[str, object]:
    """The page in a browser: until the grid is drawn, and frames while it scrolls and zooms."""
    from playwright.sync_api import sync_playwright

    executable = shutil.which("chromium")
    if executable is None:
        return {}
    figures: dict[str, object] = {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=BROWSER_FLAGS)
        grid, ready = [], []
        for _ in range(5):
            page = browser.new_page(viewport={"width": 1440, "height": 900})
            page.add_init_script(WATCH_START)
            page.goto(f"http://127.0.0.1:{server.port}/")
            page.wait_for_function("() => window.readyAt")
            grid.append(page.evaluate("window.gridAt") / 1000)
            ready.append(page.evaluate("window.readyAt") / 1000)
        figures["first_grid_seconds"] = float(np.median(grid))
        figures["first_grid_slowest_seconds"] = max(grid)
        figures["page_ready_seconds"] = float(np.median(ready))
        page.wait_for_function("() => document.querySelector('.plane').dataset.milliseconds")
        for action in ("scroll", "zoom"):
            gaps = np.array(page.evaluate(COUNT_FRAMES, [seconds, action]))
            figures[f"{action}_frames_per_second"] = float(1000 * len(gaps) / gaps.sum())
            figures[f"{action}_late_frames"] = float((gaps > 1000 / 30).mean())
        drawn = page.evaluate("Number(document.querySelector('.plane').dataset.milliseconds)")
        figures["map_milliseconds"] = float(drawn)
        browser.close()
    return figures


def measure(count: int, seed: int, seconds: float) -> dict[str, object]:
    """All figures of one size."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        run.mkdir()
        write_run(run, count, seed)
        server = Server(run)
        try:
            figures: dict[str, object] = {"start_seconds": server.start_seconds}
            for name, address in {"page": "/", "run": "/api/run", "videos": "/api/videos"}.items():
                status, content, elapsed = server.get(address, **{"accept-encoding": "gzip"})
                assert status == 200, (address, status)
                figures[f"{name}_seconds"], figures[f"{name}_bytes"] = elapsed, len(content)
            figures["videos_again_seconds"] = server.get("/api/videos")[2]
            figures["background_seconds"] = server.wait_until_ready(600)
            figures |= measure_page(server, seconds / 2)
            times: dict[str, list[float]] = defaultdict(list)
            until = time.perf_counter() + seconds
            clients = [
                threading.Thread(target=ask, args=(server, count, seed + n, until, times))
                for n in range(NUM_CLIENTS)
            ]
            for client in clients:
                client.start()
            for client in clients:
                client.join()
            for kind, values in sorted(times.items()):
                good = [value for value in values if value >= 0]
                figures[f"{kind}_requests"] = len(values)
                figures[f"{kind}_errors"] = len(values) - len(good)
                figures[f"{kind}_p50_seconds"] = float(np.percentile(good or [np.nan], 50))
                figures[f"{kind}_p95_seconds"] = float(np.percentile(good or [np.nan], 95))
            figures["memory_mb"] = server.own_memory
            figures["memory_with_mapped_files_mb"] = server.memory("VmHWM")
        finally:
            server.close()
    return figures


def main() -> None:
    parser = make_parser("serve", __doc__)
    parser.add_argument("--videos", type=int, nargs="+", default=[10_000, 50_000, 100_000])
    parser.add_argument("--seconds", type=float, default=CLIENT_SECONDS)
    options = parser.parse_args()
    figures: dict[str, object] = {"clients": NUM_CLIENTS, "seconds": options.seconds}
    figures["load_average"] = os.getloadavg()[0]  # others may use the machine
    for count in options.videos:
        for name, value in measure(count, options.seed, options.seconds).items():
            figures[f"{count} videos: {name}"] = value
        write_record(options.out, "serve", ratios={}, figures=figures)


if __name__ == "__main__":
    main()
