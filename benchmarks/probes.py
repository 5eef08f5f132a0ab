"""Probes: twenty heads at once against one after another, all probes on one store, peak memory.

Features are synthetic: as many as UCF101 has, normal noise with a mean for each class. One after
another is the simple way: a torch module, an optimizer and a loop for each point of the grid, with
the same batches and the same scoring of the validation videos after each epoch. For SCALE linear
the simple way runs the frozen encoder in every step. `--parts` measures some of them; `--scale 0.1`
uses a tenth of the videos. Times are wall times: on a busy machine only ratios are meaningful.

The part `kinetics` measures the peak memory of every probe on stores of a twelfth and a quarter of
Kinetics-400's length, which need 4 GB on the disk (`--folder`) for some minutes. The line through
both peaks gives a fixed part and a part for each video, and so the peak for all of Kinetics-400.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch is imported

import torch
import torch.nn.functional as F
from probe_memory import CLASSES as KINETICS_CLASSES
from probe_memory import TEST_FRACTION, make_store
from record import make_parser, write_record
from torch import Generator, Tensor, nn, optim

from clipset.evaluation.suite import run_suite
from clipset.model.config import ModelConfig
from clipset.model.encoder import SetEncoder
from clipset.probes.base import ProbeSetup
from clipset.probes.config import EvaluateConfig, ProbeTraining
from clipset.probes.heads import EPSILON, MIN_STEPS, HeadGrid, HeadSettings, head_axes
from clipset.probes.linear import LinearProbe
from clipset.probes.registry import PROBES, probe_key
from clipset.probes.search import count_epochs, grid_points, score_outputs
from clipset.probes.task import EvaluationTask, HeldOut, LabelledVideos
from clipset.progress import set_quiet
from clipset.representation import concat_parts
from clipset.sets.batch import ClipBatch
from clipset.sets.sampling import draw_batches
from clipset.training.checkpoint import ScaleModel
from clipset.training.optim import cosine_schedule

TRAIN, TEST, RANDOM, REGULAR, WIDTH, CLASSES = 9537, 3783, 16, 15, 768, 101  # UCF101, split 1
PARTS = ("linear", "scale_linear", "rows", "kinetics")
KINETICS_VIDEOS = 240_000
MEASURED_VIDEOS = (20_000, 60_000)


def synthetic_features(
    videos: int, clips: int, class_means: Tensor, generator: Generator
) -> tuple[Tensor, ...]:
    """Classes, features and boxes; all clips of a video share an offset."""
    classes = torch.arange(videos) % CLASSES
    features = torch.randn(videos, clips, WIDTH, generator=generator)
    own = torch.randn(videos, 1, WIDTH, generator=generator)
    features.add_(own).add_(class_means[classes][:, None])
    return classes, features, torch.rand(videos, clips, 6, generator=generator)


def synthetic_task(scale: float, seed: int) -> EvaluationTask:
    """A task of UCF101's size, or a fraction of it."""
    generator = Generator().manual_seed(seed)
    class_means = 0.25 * torch.randn(CLASSES, WIDTH, generator=generator)
    train, test = (max(round(count * scale), 4 * CLASSES) for count in (TRAIN, TEST))
    classes, random, boxes = synthetic_features(train, RANDOM, class_means, generator)
    regular = random[:, :REGULAR] + 0.1 * torch.randn(train, REGULAR, WIDTH, generator=generator)
    test_classes, test_features, test_boxes = synthetic_features(
        test, REGULAR, class_means, generator
    )
    return EvaluationTask(
        tuple(f"class {number:03d}" for number in range(CLASSES)),
        LabelledVideos(
            ClipBatch(random, boxes), ClipBatch(regular, boxes[:, :REGULAR]), classes,
            (None,) * train,
        ),
        HeldOut(tuple(map(str, range(test))), ClipBatch(test_features, test_boxes), test_classes),
    )  # fmt: skip


def train_alone(
    grid: HeadGrid, setting: HeadSettings, *, epochs: int, seed: int,
    encoder: SetEncoder | None = None,
) -> Tensor:  # fmt: skip
    """One point of the grid the simple way: its predictions for the validation videos.

    An encoder runs in every step.
    """
    data, learn = grid.inputs, grid.video_index
    norm, layer = nn.BatchNorm1d(data.dim, affine=False), nn.Linear(data.dim, CLASSES)
    # Those of training at once; a running mean would cost nothing either.
    norm.get_buffer("running_mean").copy_(grid.mean)
    norm.get_buffer("running_var").copy_(grid.std**2 - norm.eps)
    norm.momentum = 0.0
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    groups = [
        {"params": [layer.weight], "weight_decay": setting.weight_decay},
        {"params": [layer.bias], "weight_decay": 0.0},
    ]
    optimizer = optim.AdamW(groups, lr=setting.learning_rate, eps=EPSILON, fused=True)
    generator = Generator().manual_seed(seed)
    steps = epochs * -(-len(learn) // setting.batch_size)
    step, predictions = 0, torch.zeros(0)
    for _ in range(epochs):
        norm.train()
        for indices in draw_batches(len(learn), setting.batch_size, generator):
            for group in optimizer.param_groups:
                peak = setting.learning_rate
                group["lr"] = cosine_schedule(step, steps, peak=peak, warmup_fraction=0.05)
            videos = learn[indices]
            rows = data.draw(videos, generator)
            if encoder is not None:
                with torch.no_grad():  # instead of the cache
                    concat_parts(encoder, data.clips.select_clips(data.sets[videos, 0], videos))
            truth = data.labels[videos].repeat_interleave(rows.shape[1])
            loss = F.cross_entropy(layer(norm(rows.flatten(0, 1))), truth)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            step += 1
        norm.eval()
        predictions = predict_alone(grid, nn.Sequential(norm, layer))
    return predictions


@torch.inference_mode()
def predict_alone(grid: HeadGrid, network: nn.Module) -> Tensor:
    """The predictions of one head for the validation videos, which it scores."""
    assert grid.validation is not None
    outputs = [
        network(inputs.flatten(0, 1)).softmax(dim=-1).unflatten(0, inputs.shape[:2]).mean(dim=1)
        for _, inputs in grid.validation
    ]
    predictions = torch.cat(outputs)
    score_outputs(predictions, grid.validation.labels)
    return predictions


def linear_probe(
    task: EvaluationTask, model: ScaleModel | None, config: ProbeTraining, seed: int
) -> LinearProbe:
    """The linear probe; with a model, on its vectors, too."""
    setup = ProbeSetup(task=task, model=model, config=EvaluateConfig(training=config), seed=seed)
    return LinearProbe(setup, "backbone" if model is None else "scale")


def compare_heads(
    probe: LinearProbe, *, epochs: int, encoder: SetEncoder | None = None
) -> dict[str, float]:
    """Seconds of all heads at once and one after another, and the gap of their results."""
    settings, seed, split = probe.search_space(), probe.setup.seed, probe.setup.split_validation()
    start, cpu_start = time.perf_counter(), time.process_time()
    grid = probe.start(dict(enumerate(settings)), split)
    grid.num_epochs = epochs
    for _ in range(epochs):
        grid.run_epoch()
        grid.score()
    together, together_cpu = time.perf_counter() - start, time.process_time() - cpu_start
    assert grid.validation is not None
    chunks = [grid.predict(inputs) for _, inputs in grid.validation]
    labels, gap, score_gap = grid.validation.labels, 0.0, 0.0
    start, cpu_start = time.perf_counter(), time.process_time()
    for index, setting in enumerate(settings):
        single = train_alone(grid, setting, epochs=epochs, seed=seed, encoder=encoder)
        batched = torch.cat([outputs[index] for outputs in chunks])
        gap = max(gap, float((single - batched).abs().mean()))
        scores = [score_outputs(outputs, labels)[0] for outputs in (single, batched)]
        score_gap = max(score_gap, abs(scores[0] - scores[1]))
    alone, alone_cpu = time.perf_counter() - start, time.process_time() - cpu_start
    return {
        "together": together,
        "alone": alone,
        "together_cpu": together_cpu,
        "alone_cpu": alone_cpu,
        "largest_mean_gap_of_probabilities": gap,
        "largest_gap_of_accuracies": score_gap,
        "ratio": alone / together,
        "ratio_cpu": alone_cpu / together_cpu,
    }


def kinetics_memory(
    folder: Path | None, names: list[str], seed: int
) -> tuple[float, dict[str, object]]:
    """The largest peak memory of all probes for all of Kinetics-400 in GB, and the figures."""
    peaks: dict[str, list[float]] = {name: [] for name in names}
    seconds: dict[str, float] = dict.fromkeys(names, 0.0)
    for num_videos in MEASURED_VIDEOS:
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            store = Path(scratch) / "store"
            make_store(store, num_videos, seed)
            for name in names:
                command = [sys.executable, str(Path(__file__).with_name("probe_memory.py"))]
                output = subprocess.run(
                    [*command, str(store), name], check=True, capture_output=True, text=True
                ).stdout
                measured = json.loads(output.splitlines()[-1])
                peaks[name].append(measured["peak"] / 1e9)
                seconds[name] += measured["seconds"]
                print(f"{num_videos} videos, {name}: {peaks[name][-1]:.2f} GB", flush=True)
    few, many = MEASURED_VIDEOS
    rows: dict[str, dict[str, float]] = {}
    for name, (low, high) in peaks.items():
        growth = max(high - low, 0.0) / (many - few)
        rows[name] = {
            f"gb_{few}": round(low, 3),
            f"gb_{many}": round(high, 3),
            "fixed_gb": round(high - growth * many, 3),
            "kb_per_video": round(growth * 1e6, 3),
            "gb_all": round(high + growth * (KINETICS_VIDEOS - many), 3),
            "seconds": seconds[name],
        }
    # A suite also has the predictions of the rows before, with three seeds.
    predictions = KINETICS_VIDEOS * TEST_FRACTION * KINETICS_CLASSES * 4 * 3 * (len(rows) - 1) / 1e9
    figures: dict[str, object] = {"rows": rows, "predictions_gb": round(predictions, 3)}
    return max(row["gb_all"] for row in rows.values()) + predictions, figures


def main() -> None:
    parser = make_parser("probes", __doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--scale", type=float, default=1.0, help="fraction of UCF101's videos")
    parser.add_argument("--epochs", type=int, default=2, help="epochs of the comparison of heads")
    parser.add_argument("--probes", nargs="*", default=None, help="names of probes")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="for the stores of the part kinetics")
    options = parser.parse_args()
    set_quiet(True)
    ratios: dict[str, float] = {}
    figures: dict[str, object] = {"threads": torch.get_num_threads()}
    if "kinetics" in options.parts:
        names = list(options.probes or PROBES)
        peak, figures["kinetics"] = kinetics_memory(options.folder, names, options.seed)
        ratios["kinetics_peak_gb"] = peak
    if set(options.parts) != {"kinetics"}:
        measure_times(options, ratios, figures)
    write_record(options.out, "probes", ratios=ratios, figures=figures)


def measure_times(
    options: argparse.Namespace, ratios: dict[str, float], figures: dict[str, object]
) -> None:
    """The parts that measure time, on a task of UCF101's size."""
    optim.AdamW([nn.Parameter(torch.zeros(1))])  # warm-up
    task = synthetic_task(options.scale, options.seed)
    torch.manual_seed(options.seed)
    model = ScaleModel(WIDTH, ModelConfig()).eval()
    config = ProbeTraining()
    figures |= {
        "train": [len(task.train), RANDOM, WIDTH],
        "test": [len(task.test), REGULAR, WIDTH],
        "classes": CLASSES,
        "grid": len(grid_points(HeadSettings, head_axes(config))),
        "epochs_of_the_race": options.epochs,
    }
    if "linear" in options.parts:
        probe = linear_probe(task, None, config, options.seed)
        found = compare_heads(probe, epochs=options.epochs)
        ratios["grid20_over_sequential"] = found["ratio"]
        figures["linear"] = found
    if "scale_linear" in options.parts:
        began = time.perf_counter()
        probe = linear_probe(task, model, config, options.seed)
        assert probe.inputs.tokens is not None  # computed here
        caching = time.perf_counter() - began
        found = compare_heads(probe, epochs=options.epochs, encoder=model.encoder)
        share = caching * options.epochs / count_epochs(TRAIN, config, MIN_STEPS)
        found |= {"caching": caching, "caching_share": share}
        ratios["scale_grid20_over_sequential"] = found["alone"] / (found["together"] + share)
        figures["scale_linear"] = found
    if "rows" in options.parts:
        probes = tuple(options.probes) if options.probes else EvaluateConfig().probes
        table = replace(EvaluateConfig(), probes=probes, num_seeds=options.seeds, training=config)
        began = time.perf_counter()
        results = run_suite(task, model, table, seed=options.seed).results
        figures["all_rows_minutes"] = (time.perf_counter() - began) / 60
        figures["rows"] = {
            name: {
                "seconds": round(result.seconds, 1), "candidates": result.num_candidates,
                "top1": round(result.value, 4), "epochs": result.epochs,
            }
            for name in PROBES
            for result in results
            if result.key == probe_key(name)
        }  # fmt: skip


if __name__ == "__main__":
    main()
