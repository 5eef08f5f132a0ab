"""The two decoders side by side on long videos: the frames that the clips of one video need.

Both open the file, scan it, decode the frames of the usual random and regular clips and paint them
at the size from which clips are cut. Seconds are those of the processor, the least of some rounds
in which the decoders take turns. Beside them stand torchcodec by itself, with frames in their full
size that nobody checks, and how far the colours are apart. Without torchcodec nothing is measured.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from fractions import Fraction
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch is imported

import av
import numpy as np
import torch
from record import parse, write_record

from clipset.clips.cut import DETAIL
from clipset.clips.sampling import regular_clips, sample_random_clips, video_generator
from clipset.data.sources import read_videos
from clipset.decoding.reader import VideoInfo, open_video
from clipset.decoding.torchcodec import DecoderName, import_torchcodec
from clipset.features.config import ExtractConfig
from clipset.features.cutting import CutRequest
from clipset.features.extract import cut_request, plan

SECONDS, RATE = 20, 30  # of what is really encoded; a long video repeats it


def write_film(path: Path, minutes: float, seed: int) -> None:
    """A moving texture in 720p with B-frames and a keyframe every two seconds, repeated."""
    generator = np.random.default_rng(seed)
    grey = generator.integers(0, 256, (90, 240, 1))
    colours = (3 * grey + generator.integers(0, 256, (90, 240, 3))) // 4
    texture = colours.astype(np.uint8).repeat(8, 0).repeat(8, 1)
    with av.open(str(path), "w") as container:
        options = {"preset": "veryfast", "crf": "28"}
        stream = container.add_stream("libx264", rate=RATE, options=options)
        stream.width, stream.height, stream.pix_fmt = 1280, 720, "yuv420p"
        stream.gop_size = 2 * RATE
        packets = []
        for number in range(SECONDS * RATE):
            left = abs(number * 3 % 1280 - 640)
            picture = np.ascontiguousarray(texture[:, left : left + 1280])
            packets += stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24"))
        packets += stream.encode()
        lasts = SECONDS * RATE
        for again in range(max(1, round(minutes * 60 / SECONDS))):
            for given in packets:
                packet = av.Packet(bytes(given))
                packet.pts, packet.dts = (
                    _ticks(stamp, given.time_base) + again * lasts
                    for stamp in (given.pts, given.dts)
                )
                packet.duration, packet.time_base = 1, Fraction(1, RATE)
                packet.is_keyframe, packet.stream = given.is_keyframe, stream
                container.mux(packet)


def _ticks(stamp: int | None, base: Fraction) -> int:
    """A timestamp counted in frames."""
    return round((stamp or 0) * base * RATE)


def wanted(info: VideoInfo, request: CutRequest, name: str) -> list[int]:
    """The frames that extraction needs of a video."""
    sampling, span, frames = request.sampling, request.span, request.frames
    generator = video_generator(request.seed, name)
    random = sample_random_clips(info, sampling, span=span, frames=frames, generator=generator)
    clips = random + regular_clips(info, sampling, span=span, frames=frames)
    return sorted(set(clips.frames.ravel().tolist()))


class Contest:
    """One file, read by both."""

    def __init__(self, path: Path, request: CutRequest) -> None:
        self.path, self.side = path, round(request.size * DETAIL)
        with open_video(path) as video:
            self.info = video.info
        self.wanted = wanted(self.info, request, path.name)
        self.used: dict[DecoderName, DecoderName] = {}  # by what was asked for

    def read(self, decoder: DecoderName) -> dict[int, np.ndarray]:
        """The frames that are needed, small."""
        with open_video(self.path, decoder=decoder) as video:
            frames = dict(video.frames(self.wanted, short_side=self.side))
            self.used[decoder] = video.decoder
        return frames

    def pyav(self) -> None:
        self.read("pyav")

    def torchcodec(self) -> None:
        self.read("torchcodec")

    def torchcodec_alone(self) -> None:
        """Full frames by torchcodec, whichever they are."""
        video = import_torchcodec().VideoDecoder(str(self.path), dimension_order="NHWC")
        for number in self.wanted:
            video.get_frame_at(min(number, len(video) - 1))

    def measure(self, rounds: int) -> dict[str, object]:
        """What the two take for this file."""
        ways = ("pyav", "torchcodec", "torchcodec_alone")
        ours, theirs = self.read("pyav"), self.read("torchcodec")  # and everything is imported
        seconds: dict[str, float] = dict.fromkeys(ways, float("inf"))
        for number in range(rounds):
            for way in ways if number % 2 == 0 else ways[::-1]:
                began = time.process_time()
                getattr(self, way)()
                seconds[way] = min(seconds[way], time.process_time() - began)
        apart = [np.abs(ours[each].astype(np.int16) - theirs[each]) for each in self.wanted]
        return {
            "seconds_of_video": round(self.info.duration, 1),
            "size": f"{self.info.width}×{self.info.height}",
            "codec": self.info.codec,
            "frames": len(self.info.frame_times),
            "frames_wanted": len(self.wanted),
            "read_by": self.used["torchcodec"],
            "cpu_seconds": {way: round(seconds[way], 3) for way in ways},
            "mean_grey_levels_apart": round(float(np.mean([each.mean() for each in apart])), 3),
            "most_grey_levels_apart": int(max(each.max() for each in apart)),
        }


def choose(options: argparse.Namespace, folder: Path) -> list[Path]:
    """The videos of a folder if one was given, and a long one that is made here."""
    made = folder / f"{options.minutes:g} minutes.mp4"
    write_film(made, options.minutes, options.seed)
    given = [] if options.data is None else [video.path for video in read_videos(options.data)]
    return [*given[: options.videos], made]


def ratio(figures: dict[str, dict[str, object]]) -> dict[str, float]:
    """torchcodec's seconds over PyAV's where its frames are the right ones; above 1 is slower."""
    found = []
    for each in figures.values():
        seconds = each["cpu_seconds"]
        assert isinstance(seconds, dict)
        if each["read_by"] == "torchcodec":
            found.append(seconds["torchcodec"] / seconds["pyav"])
    if not found:
        return {}
    return {"torchcodec_over_pyav_least": min(found), "torchcodec_over_pyav_most": max(found)}


def main() -> None:
    parser = parse("decoders", __doc__)
    parser.add_argument("--data", type=Path, help="a folder of (long) videos to read as well")
    parser.add_argument("--videos", type=int, default=6, help="how many of them")
    parser.add_argument("--minutes", type=float, default=10.0, help="of the video that is made")
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    if import_torchcodec() is None:
        print("torchcodec does not import here (pip install 'clipset[torchcodec]', and FFmpeg's")
        print("shared libraries): there is nothing to compare, and no record is written")
        return
    torch.set_num_threads(1)
    request = cut_request(plan(ExtractConfig(), options.seed)[0])
    with tempfile.TemporaryDirectory() as name:
        paths = choose(options, Path(name))
        figures = {path.name: Contest(path, request).measure(options.rounds) for path in paths}
    write_record(options.out, "decoders", ratios=ratio(figures), figures={**figures})


if __name__ == "__main__":
    main()
