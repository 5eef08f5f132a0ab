"""Extraction: ours, a simple implementation, and the backbone alone on ready clips (the limit).

Ours is a complete extraction: it loads and warms up the backbone, starts worker processes and ends
with a finished store. The limit loads and warms up the same backbone and runs it on clips in
memory, video after video; unpaused, the next clips are submitted before the last ones are finished,
as in ours. The simple implementation has its backbone loaded, opens the video anew for each clip,
decodes up to the clip's end, and runs the backbone in torch, video by video. All use the same clips
of the same files in one run and take turns (the simple one, which has nothing to start, only some
of the files). Times are wall times per clip; on a shared machine only the ratios (of medians) are
meaningful. CPU seconds, with those of child processes, are recorded as well. An hour of video is
extracted for its memory: the peaks of the main process and its worker.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch is imported

import av
import numpy as np
import torch
import torch.nn.functional as F
from record import make_parser, write_record

from clipset.backbones.registry import DEFAULT
from clipset.backbones.runtime import Engine, NormalisedNetwork, PendingFeatures, open_engine
from clipset.clips.config import Sampling
from clipset.clips.decode import DecodeRequest, decode_video
from clipset.clips.sampling import ClipPlan, regular_clips, sample_random_clips, video_generator
from clipset.data.catalog import Catalog, Video, read_catalog
from clipset.decoding.reader import open_video
from clipset.demo_videos.dataset import render_demo
from clipset.features.config import ExtractConfig
from clipset.features.extract import decode_request, extract, plan_store
from clipset.progress import set_quiet

VIDEOMAE_B = '''
"""A transformer of VideoMAE-B's size and cost, with random weights: for timing only."""
from clipset.networks.video_transformers import VideoMAE, VideoMAEConfig


def make():
    return VideoMAE(VideoMAEConfig())
'''


def plan_clips(video: Video, request: DecodeRequest) -> ClipPlan:
    """The clips of an extraction."""
    with open_video(video.path) as reader:
        info = reader.info
    random = sample_random_clips(
        info, request.sampling, span=request.span, frames=request.frames,
        generator=video_generator(request.seed, video.id),
    )  # fmt: skip
    return random + regular_clips(info, request.sampling, span=request.span, frames=request.frames)


def decode_simply(video: Video, plan: ClipPlan, size: int) -> torch.Tensor:
    """Open, decode and crop clip by clip."""
    clips = []
    for box, indices in zip(plan.boxes, plan.frame_indices.tolist(), strict=True):
        with av.open(str(video.path), metadata_errors="replace") as container:
            frames = {}
            for index, frame in enumerate(container.decode(video=0)):
                if index in indices:
                    frames[index] = frame.to_ndarray(format="rgb24")
                if index >= indices[-1]:
                    break
        pixels = np.stack([frames[min(index, max(frames))] for index in indices])
        height, width = pixels.shape[1:3]
        top, bottom = (
            int(box.top * height),
            max(int(box.bottom * height), int(box.top * height) + 1),
        )
        left, right = int(box.left * width), max(int(box.right * width), int(box.left * width) + 1)
        crop = torch.from_numpy(pixels[:, top:bottom, left:right]).permute(0, 3, 1, 2)
        clips.append(F.interpolate(crop, (size, size), mode="bilinear", antialias=True))
    return torch.stack(clips)


class ExtractBenchmark:
    """The same clips of the same videos by each method."""

    def __init__(
        self, catalog: Catalog, config: ExtractConfig, folder: Path, plain_videos: int = 0
    ) -> None:
        self.catalog, self.config, self.folder = catalog, config, folder
        self.subset = spread(catalog, plain_videos)
        manifest, network = plan_store(config, catalog.videos)
        self.network = NormalisedNetwork(manifest.backbone, network).eval()
        self.request = decode_request(manifest)
        self.plans = {video.id: plan_clips(video, self.request) for video in catalog}
        first = catalog.videos[0]
        self.ready = next(decode_video(first.id, first.path, self.request)).pixels
        self.rounds = 0

    def clips(self, method: str) -> int:
        """The number of clips of a method."""
        videos = self.subset if method == "plain" else self.catalog
        return sum(len(self.plans[video.id]) for video in videos)

    def ours(self) -> None:
        """A complete extraction."""
        self.rounds += 1
        store = extract(self.catalog, self.folder / str(self.rounds), self.config)
        assert len(store) == len(self.catalog)

    def limit(self) -> None:
        """The backbone alone on the ready clips of each video, one video after the other."""
        engine = self.open()
        for plan in self.plans.values():
            for start in range(0, len(plan), len(self.ready)):
                engine.features(self.ready[: len(plan) - start])

    def unpaused(self) -> None:
        """The same clips, with the next ones submitted before the last ones are finished."""
        engine = self.open()
        remaining, pending = self.clips("unpaused"), deque[PendingFeatures]()
        while remaining:
            clips = self.ready[:remaining]
            pending.append(engine.start(clips))
            remaining -= len(clips)
            if len(pending) > 1:
                pending.popleft()()
        for features in pending:
            features()

    def open(self) -> Engine:
        """The backbone, loaded and warmed up."""
        manifest, network = plan_store(self.config, self.catalog.videos)
        return open_engine(manifest.backbone, network, device="auto", engine=self.config.engine)

    def plain(self) -> None:
        """The simple implementation."""
        for index, video in enumerate(self.subset):
            clips = decode_simply(video, self.plans[video.id], self.request.size)
            with torch.inference_mode():
                features = self.network(clips)
            np.save(self.folder / f"{index}.npy", features.numpy())


def measure(
    benchmark: ExtractBenchmark, methods: Sequence[str], rounds: int
) -> dict[str, list[float]]:
    """Seconds per clip of each method and round; methods take turns, so drift affects all alike.

    CPU seconds are under `cores of …`.
    """
    seconds: dict[str, list[float]] = {method: [] for method in methods}
    seconds |= {f"cores of {method}": [] for method in methods}
    for index in range(rounds):
        for method in methods if index % 2 == 0 else methods[::-1]:
            start, cpu_start = time.perf_counter(), core_seconds()
            getattr(benchmark, method)()
            clips = benchmark.clips(method)
            seconds[method].append((time.perf_counter() - start) / clips)
            seconds[f"cores of {method}"].append((core_seconds() - cpu_start) / clips)
    return seconds


def core_seconds() -> float:
    """CPU seconds of this process and its finished children."""
    return sum(os.times()[:4])


def ratio(seconds: dict[str, list[float]], method: str) -> float:
    """The time of a method over ours, by the medians."""
    return statistics.median(seconds[method]) / statistics.median(seconds["ours"])


def write_hour(path: Path) -> None:
    """One hour of 720p at 25 frames a second, made of two seconds that repeat."""
    rate, width, height = 25, 1280, 720
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=rate, options={"preset": "ultrafast"})
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.gop_size, stream.codec_context.max_b_frames = 2 * rate, 0
        contents = []
        for number in range(2 * rate):
            picture = np.full((height, width, 3), 40, dtype=np.uint8)
            picture[200:500, number * 20 : number * 20 + 200] = 220
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            contents += [bytes(packet) for packet in stream.encode(frame)]
        contents += [bytes(packet) for packet in stream.encode()]
        for number in range(3600 * rate):
            packet = av.Packet(contents[number % len(contents)])
            packet.pts = packet.dts = number
            packet.duration, packet.time_base = 1, Fraction(1, rate)
            packet.is_keyframe = number % len(contents) == 0
            packet.stream = stream
            container.mux(packet)


def measure_hour(folder: Path) -> dict[str, float]:
    """Peak gigabytes (and seconds) of an hour of video with 210 clips, in a separate process."""
    (folder / "hour").mkdir()
    write_hour(folder / "hour" / "hour.mp4")
    script = Path(__file__).with_name("peak_memory.py")
    command: list[str | Path] = [sys.executable, script, folder / "hour", folder / "hour store"]
    start = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    main, *workers = (int(peak) * 1.024e-6 for peak in done.stdout.split())
    seconds = time.perf_counter() - start
    worker = sum(workers)
    return {"main_gb": main, "worker_gb": worker, "peak_gb": main + worker, "seconds": seconds}


def select_videos(options: argparse.Namespace, folder: Path) -> Catalog:
    """Evenly spaced videos of the data, or of the demo."""
    if options.data is None:
        return render_demo(folder / "videos", videos=options.videos, seed=options.seed)
    return spread(read_catalog(options.data), options.videos)


def spread(catalog: Catalog, count: int) -> Catalog:
    """Evenly spaced videos of a catalog."""
    indices = np.linspace(0, len(catalog) - 1, min(count, len(catalog))).astype(int)
    return catalog.only(catalog.videos[index] for index in indices.tolist())


def main() -> None:
    parser = make_parser("extract", __doc__)
    parser.add_argument("--data", type=Path, help="a folder of videos (the demo's if not given)")
    parser.add_argument("--videos", type=int, default=120, help="number of videos")
    parser.add_argument("--plain-videos", type=int, default=5, help="of these, for the simple one")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--large-videos", type=int, default=8, help="for the VideoMAE-B size")
    options = parser.parse_args()
    set_quiet(True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        catalog = select_videos(options, folder)
        own = folder / "videomae_b.py"
        own.write_text(VIDEOMAE_B)
        few = Sampling(num_clips=2, num_times=1, num_crops=1)
        small = ExtractConfig()
        large = ExtractConfig(backbone=f"{own}:make", frames=16, size=224, sampling=few)
        (folder / "small").mkdir()
        (folder / "large").mkdir()
        hour = measure_hour(folder)
        benchmark = ExtractBenchmark(catalog, small, folder / "small", options.plain_videos)
        default = measure(benchmark, ("ours", "limit", "unpaused", "plain"), options.rounds)
        some = catalog.only(catalog.videos[: options.large_videos])
        videomae = measure(
            ExtractBenchmark(some, large, folder / "large"), ("ours", "limit", "unpaused"), 2
        )
    write_record(
        options.out,
        "extract",
        ratios={
            "ours_over_plain": ratio(default, "plain"),
            "ours_over_limit": ratio(default, "limit"),
            "ours_over_unpaused_limit": ratio(default, "unpaused"),
            "videomae_b_over_limit": ratio(videomae, "limit"),
            "videomae_b_over_unpaused_limit": ratio(videomae, "unpaused"),
            "hour_peak_gb": hour["peak_gb"],
        },
        figures={
            "backbone": DEFAULT,
            "videos": len(catalog),
            "source": options.data.name if options.data else "demo",
            "clips": {method: benchmark.clips(method) for method in ("ours", "limit", "plain")},
            "frames": benchmark.request.frames,
            "size": benchmark.request.size,
            "rounds": options.rounds,
            "seconds_per_clip": {"default": default, "videomae_b": videomae},
            "hour": hour,
        },
    )


if __name__ == "__main__":
    main()
