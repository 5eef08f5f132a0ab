"""One tiny run of every verb with fixed seeds, as numbers: `python -m tests.regression.record`.

It goes through the command line and the files that a run leaves, so that code may be renamed and
moved freely. A change of behaviour on purpose writes `record.json` anew, in a commit of its own
that says why.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before numpy is imported: sums depend on it

import io
import json
import math
import platform
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
from safetensors.numpy import load_file

from clipset.cli import main

RECORD = Path(__file__).with_name("record.json")
CLIPS = (
    "extract.frames=2", "extract.size=32", "extract.engine=torch", "extract.workers=0",
    "extract.sampling.num_clips=8", "extract.sampling.num_times=2", "extract.sampling.num_crops=2",
)  # fmt: skip
MODEL = (
    "pretrain.model={width = 32, num_layers = 1, projection_hidden = [16, 16], projection_dim = 8}"
)
PRECISION = "pretrain.precision=float32"  # also where a processor computes faster in bfloat16
TRAINING = ("pretrain.epochs=3", "pretrain.clips_per_set=3", PRECISION, MODEL)
ONE_MASKED = f"pretrain.mask_ratio={1 / 3}"  # one clip of each set
PROBES = (
    "evaluate.num_seeds=2", "evaluate.mlp_hidden=16",
    "evaluate.training={epochs = 2, num_clips = 4, learning_rates = [0.003], "
    "head_learning_rates = [0.03]}",
)  # fmt: skip
ALL_PROBES = (
    'evaluate.probes=["knn", "scale_knn", "linear", "scale_linear", "mlp", "transformer", '
    '"finetune", "ordered", "attentive", "scale_attentive"]'
)


def collect(folder: Path) -> dict[str, Any]:
    """The numbers of every verb, by its name."""
    torch.set_num_threads(1)
    videos = _write_videos(folder / "videos")
    run, store = folder / "run", folder / "run" / "store"
    numbers: dict[str, Any] = {
        "catalog": _call("catalog", videos, "--out", folder / "catalog.csv"),
        "run": _run(videos, run),
        "extract": _arrays_of_store(store),
        "presets": {name: _losses(store, folder, name) for name in ("paper", "official")},
        "represent": _represent(store, run, folder / "vectors"),
        "low_shot": _low_shot(store, run),
        "predict": _predict(videos, run),
        "search": _search(videos, run),
        "embed": _embed(videos, run, folder / "embedded"),
        "merge": _call("merge", store, "--out", folder / "merged"),
        "import": _import(folder),
        "reproduce": _reproduce(store, folder / "table"),
    }
    numbers["verify"] = [_call("verify", folder / name) for name in ("run/store", "merged")]
    paths = json.dumps(numbers).replace(str(folder), "FOLDER")
    return dict(json.loads(paths))


def processor() -> str:
    """On another one, sums have other last digits."""
    names = ("model name", "cpu family", "model", "stepping")
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return platform.processor()
    facts = dict(map(str.strip, line.split(":", 1)) for line in lines if ":" in line)
    capability = torch.backends.cpu.get_cpu_capability()
    return " ".join([*(facts.get(name, "") for name in names), capability])


def _write_videos(folder: Path) -> Path:
    for index in range(18):
        label = ("red", "green", "blue")[index % 3]
        _write_video(folder / label / f"{index // 3}.mp4", index)
    return folder


def _write_video(path: Path, index: int) -> None:
    """A tinted, noisy ground with a bright square that moves.

    It is drawn in the encoder's own colours and encoded by one thread: the same bytes every time.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(index)
    ground = np.full((72, 64), 128, dtype=np.uint8)  # luma (48, 64), then chroma
    ground[:48] = rng.integers(40, 120, (48, 64))
    ground[48:60] = (90, 100, 200)[index % 3]
    ground[60:] = (200, 90, 110)[index % 3]
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=12)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        stream.codec_context.thread_count = 1
        for number in range(8 + index % 4):
            picture = ground.copy()
            left = (number * 3 + index * 5) % 48
            picture[10:26, left : left + 16] = 240
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="yuv420p")))
        container.mux(stream.encode())


def _call(*words: object) -> Any:
    """What a verb prints as JSON."""
    output = io.StringIO()
    with redirect_stdout(output), no_exit():
        main([*(str(word) for word in words), "--json", "--quiet", "--device", "cpu"])
    return json.loads(output.getvalue())


@contextmanager
def no_exit() -> Iterator[None]:
    """A verb may end its process; an error is one."""
    try:
        yield
    except SystemExit as end:
        if end.code:
            raise RuntimeError(f"a verb ended with {end.code}") from None


def _settings(*settings: str) -> list[str]:
    return [f"--set={setting}" for setting in settings]


def _run(videos: Path, out: Path) -> dict[str, Any]:
    settings = _settings(*CLIPS, *TRAINING, ONE_MASKED, *PROBES, ALL_PROBES)
    summary = _call("run", videos, "--out", out, *settings)
    predictions = load_file(out / "predictions.safetensors")
    return {
        "scores": {
            f"{record['features']} {record['probe']}": [record["value"], *record["interval"]]
            for record in summary["scores"]
        },
        "differences": [
            [each["difference"], *each["interval"], each["p"]] for each in summary["comparisons"]
        ],
        "losses": _read_losses(out / "model"),
        "predictions": {name: _summary(array) for name, array in sorted(predictions.items())},
    }


def _losses(store: Path, folder: Path, preset: str) -> list[float]:
    """Losses of each epoch under a preset of training."""
    out = folder / f"model-{preset}"
    settings = (f"pretrain.preset={preset}", *TRAINING)
    settings += {  # the heads of the preset, but narrow
        "paper": ("pretrain.model.target_hidden=[16, 16]",),
        "official": ("pretrain.model.projection_hidden=[16]",),
    }[preset]
    _call("pretrain", store, "--out", out, *_settings(*settings))
    return _read_losses(out)


def _read_losses(model: Path) -> list[float]:
    lines = (model / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


def _arrays_of_store(store: Path) -> dict[str, Any]:
    return {
        f"{path.parent.name} {path.stem}": _summary(np.load(path))
        for path in sorted(store.rglob("*.npy"))
    }


def _represent(store: Path, run: Path, out: Path) -> dict[str, Any]:
    words = ("embed", store, "--model", run / "model", "--out", out)
    _call(*words, "--parts", "clip,token,set")
    return {name: _summary(array) for name, array in sorted(_load(out).items())}


def _low_shot(store: Path, run: Path) -> list[Any]:
    curves = _call(
        "evaluate", store, "--model", run / "model", "--low-shot-curve",
        *_settings(*PROBES, 'evaluate.probes=["knn", "scale_linear"]'),
    )["curves"]  # fmt: skip
    return [[point["value"] for point in curve["points"]] for curve in curves]


def _predict(videos: Path, run: Path) -> Any:
    paths = [videos / label / "0.mp4" for label in ("red", "blue")]
    words = ("predict", *paths, "--run", run, "--window", 0.4, "--workers", 0)
    return _call(*words)["videos"]


def _search(videos: Path, run: Path) -> dict[str, Any]:
    """Videos by a file, and moments by a moment, with their scores to four digits."""
    example = videos / "red" / "0.mp4"
    searches = {
        "videos": (example, "--unlike", "blue/0.mp4", "--top", 4),
        "moments": (f"{example}@0-0.4", "--moments", "--where", "split=train", "--top", 4),
    }
    answers = {
        name: _call("search", *words, "--run", run, "--workers", 0)["results"]
        for name, words in searches.items()
    }
    return {
        name: [[f["video"], round(f["score"], 4), f["start"], f["end"]] for f in found]
        for name, found in answers.items()
    }


def _embed(videos: Path, run: Path, out: Path) -> dict[str, Any]:
    _call("embed", videos / "red", "--run", run, "--out", out, "--workers", 0)
    return {name: _summary(array) for name, array in sorted(_load(out).items())}


def _import(folder: Path) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    for index in range(4):
        path = folder / "features" / ("a", "b")[index % 2] / f"{index}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, rng.standard_normal((4, 8)).astype(np.float32))
    _call("import", folder / "features", "--out", folder / "imported")
    return _arrays_of_store(folder / "imported")


def _reproduce(store: Path, out: Path) -> list[Any]:
    table = _call(
        "reproduce", "ablation-masking", "--store", store, "--out", out,
        *_settings(*TRAINING, "evaluate.num_seeds=1", PROBES[-1]),
    )  # fmt: skip
    return [[cell["row"], cell["result"] and cell["result"]["value"]] for cell in table["cells"]]


def _load(folder: Path) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = load_file(folder / "vectors.safetensors")
    return arrays


def _summary(array: np.ndarray) -> list[Any]:
    """Shape, sum, sum of squares, and some of the numbers of an array."""
    flat = array.astype(np.float64).ravel()
    some = flat[np.linspace(0, len(flat) - 1, min(8, len(flat))).astype(int)] if len(flat) else []
    return [list(array.shape), math.fsum(flat), math.fsum(flat * flat), list(map(float, some))]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        content = {"processor": processor(), "numbers": collect(Path(temporary).resolve())}
    RECORD.write_text(json.dumps(content, indent=1) + "\n")
    sys.stdout.write(f"{RECORD}\n")
