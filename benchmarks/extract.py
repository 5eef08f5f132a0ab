"""Extraction side by side: ours, the plain way, and the backbone alone on ready clips (the limit).

The plain way opens the video anew for each clip, decodes up to the clip's end, and runs the
backbone in torch video by video. All three see the same clips of the same files in one run; times
are of the wall, so that only the ratios mean anything on a shared machine.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch is imported

import av
import numpy as np
import torch
import torch.nn.functional as F
from record import parse, write_record

from clipset.backbones.engine import open_engine
from clipset.backbones.registry import DEFAULT, load_backbone
from clipset.clips.config import Sampling
from clipset.clips.sampling import ClipPlan, regular_clips, sample_random_clips, video_generator
from clipset.demo.render import render_demo
from clipset.features.config import ExtractConfig
from clipset.features.cutting import CutRequest, cut_video
from clipset.features.extract import extract
from clipset.progress import set_quiet
from clipset.videos.catalog import Catalog, Video
from clipset.videos.datasets import read_videos
from clipset.videos.decode import open_video

VIDEOMAE_B = '''
"""A transformer of VideoMAE-B's size and cost, with random weights: for timing only."""
from clipset.backbones.videomae import VideoMAE, VideoMAEConfig


def make():
    return VideoMAE(VideoMAEConfig(width=768, depth=12, heads=12))
'''


def plan_of(video: Video, request: CutRequest) -> ClipPlan:
    """The clips that extraction looks at."""
    with open_video(video.path) as reader:
        info = reader.info
    random = sample_random_clips(
        info, request.sampling, span=request.span, frames=request.frames,
        generator=video_generator(request.seed, video.id),
    )  # fmt: skip
    return random + regular_clips(info, request.sampling, span=request.span, frames=request.frames)


def cut_plainly(video: Video, plan: ClipPlan, size: int) -> torch.Tensor:
    """Open, decode and crop clip by clip."""
    clips = []
    for box, wanted in zip(plan.boxes, plan.frames.tolist(), strict=True):
        with av.open(str(video.path), metadata_errors="replace") as container:
            frames = {}
            for number, frame in enumerate(container.decode(video=0)):
                if number in wanted:
                    frames[number] = frame.to_ndarray(format="rgb24")
                if number >= wanted[-1]:
                    break
        pixels = np.stack([frames[min(number, max(frames))] for number in wanted])
        height, width = pixels.shape[1:3]
        top, bottom = (
            int(box.top * height),
            max(int(box.bottom * height), int(box.top * height) + 1),
        )
        left, right = int(box.left * width), max(int(box.right * width), int(box.left * width) + 1)
        crop = torch.from_numpy(pixels[:, top:bottom, left:right]).permute(0, 3, 1, 2)
        clips.append(F.interpolate(crop, (size, size), mode="bilinear", antialias=True))
    return torch.stack(clips)


def time_plain(catalog: Catalog, request: CutRequest, backbone: str, folder: Path) -> float:
    """Seconds of the plain way."""
    spec, network = load_backbone(backbone, frames=request.frames, size=request.size)
    mean, std = (torch.tensor(x).view(3, 1, 1) for x in (spec.mean, spec.std))
    plans = {video.id: plan_of(video, request) for video in catalog}
    began = time.perf_counter()
    for place, video in enumerate(catalog):
        clips = cut_plainly(video, plans[video.id], request.size)
        with torch.inference_mode():
            features = network((clips.float() - mean) / std)
        np.save(folder / f"{place}.npy", features.numpy())
    return time.perf_counter() - began


def time_limit(catalog: Catalog, request: CutRequest, config: ExtractConfig) -> float:
    """Seconds that the backbone alone takes on the same number of clips, all of them ready."""
    spec, network = load_backbone(config.backbone, frames=config.frames, size=config.size)
    engine = open_engine(spec, network, engine=config.engine)
    ready = cut_video(catalog.videos[0].id, catalog.videos[0].path, request).pixels
    engine.features(ready[:1])
    began = time.perf_counter()
    for _ in catalog:
        engine.features(ready)
    return time.perf_counter() - began


def time_ours(catalog: Catalog, config: ExtractConfig, folder: Path) -> float:
    """Seconds of extraction, from the first video to the last, with everything loaded."""
    spec, network = load_backbone(config.backbone, frames=config.frames, size=config.size)
    open_engine(spec, network, engine=config.engine)  # what is loaded once is in the system's cache
    began = time.perf_counter()
    extract(catalog, folder, config)
    return time.perf_counter() - began


def measure(catalog: Catalog, config: ExtractConfig, *, plain: bool) -> dict[str, float]:
    """Seconds of each way; ours is measured before and after the others, against drift."""
    spec, _ = load_backbone(config.backbone, frames=config.frames, size=config.size)
    request = CutRequest(
        sampling=config.sampling, span=spec.span, frames=spec.frames, size=spec.size, seed=0
    )
    with tempfile.TemporaryDirectory() as folder:
        there = Path(folder)
        first = time_ours(catalog, config, there / "first")
        limit = time_limit(catalog, request, config)
        slow = time_plain(catalog, request, config.backbone, there) if plain else float("nan")
        again = time_limit(catalog, request, config)
        last = time_ours(catalog, config, there / "last")
    return {"ours": (first + last) / 2, "limit": (limit + again) / 2, "plain": slow}


def main() -> None:
    parser = parse("extract", __doc__)
    parser.add_argument("--videos", type=Path, help="a folder (videos of the demo if not given)")
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--frames", type=int, default=8)
    parser.add_argument("--size", type=int, default=112)
    options = parser.parse_args()
    set_quiet(True)
    with tempfile.TemporaryDirectory() as folder:
        if options.videos:
            found = read_videos(options.videos)
        else:
            found = render_demo(Path(folder) / "videos", videos=options.count, seed=options.seed)
        step = max(len(found) // options.count, 1)
        catalog = found.only(found.videos[::step][: options.count])
        config = ExtractConfig(frames=options.frames, size=options.size)
        default = measure(catalog, config, plain=True)
        own = Path(folder) / "videomae_b.py"
        own.write_text(VIDEOMAE_B)
        large = measure(
            catalog.only(catalog.videos[:3]),
            ExtractConfig(
                backbone=f"{own}:make", frames=16, size=224,
                sampling=Sampling(clips=2, times=1, places=1),
            ),
            plain=False,
        )  # fmt: skip
    write_record(
        options.out,
        "extract",
        ratios={
            "ours_over_plain": default["plain"] / default["ours"],
            "ours_over_limit": default["limit"] / default["ours"],
            "videomae_b_over_limit": large["limit"] / large["ours"],
        },
        figures={
            "backbone": DEFAULT,
            "videos": len(catalog),
            "source": str(options.videos.name) if options.videos else "demo",
            "clips_per_video": 31,
            "frames": options.frames,
            "size": options.size,
            "seconds": {"default": default, "videomae_b": large},
        },
    )


if __name__ == "__main__":
    main()
