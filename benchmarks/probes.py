"""Probes: twenty heads at once against one after another, and all probes on one store.

Features are synthetic: as many as UCF101 has, normal noise with a mean for each class. One after
another is the simple way: a torch module, an optimizer and a loop for each point of the grid, with
the same batches and the same scoring of the validation videos after each epoch. For SCALE linear
the simple way runs the frozen encoder in every step. `--part` measures one of them; `--scale 0.1`
uses a tenth of the videos. Times are wall times: on a busy machine only ratios are meaningful.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch is imported

import torch
import torch.nn.functional as F
from record import make_parser, write_record
from torch import Generator, Tensor, nn, optim

from clipset.evaluation.suite import run_suite
from clipset.model.config import ModelConfig
from clipset.model.encoder import SetEncoder
from clipset.probes.base import ProbeSetup
from clipset.probes.config import EvaluateConfig, ProbeTraining
from clipset.probes.grid import HeadSettings, head_grid
from clipset.probes.head_inputs import HeadInputs
from clipset.probes.heads import EPSILON, MIN_STEPS, HeadGrid
from clipset.probes.linear import LinearProbe, LinearStack
from clipset.probes.registry import PROBES, probe_key
from clipset.probes.search import count_epochs, make_validation_split, score_outputs
from clipset.probes.task import EvaluationTask, HeldOut, LabelledVideos
from clipset.progress import set_quiet
from clipset.representation import concat_parts
from clipset.sets.batch import ClipBatch
from clipset.sets.sampling import draw_batches
from clipset.training.checkpoint import ScaleModel
from clipset.training.optim import cosine_schedule

TRAIN, TEST, RANDOM, REGULAR, WIDTH, CLASSES = 9537, 3783, 16, 15, 768, 101  # UCF101, split 1
PARTS = ("linear", "scale_linear", "rows")


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
    data: HeadInputs, setting: HeadSettings, learn: Tensor, check: Tensor,
    statistics: tuple[Tensor, Tensor], *, epochs: int, seed: int,
    encoder: SetEncoder | None = None, clips: ClipBatch | None = None,
) -> Tensor:  # fmt: skip
    """One point of the grid the simple way: its predictions for the validation videos.

    An encoder runs in every step.
    """
    width = data.dim
    norm, layer = nn.BatchNorm1d(width, affine=False), nn.Linear(width, CLASSES)
    mean, std = statistics  # those of training at once; a running mean would cost nothing either
    norm.get_buffer("running_mean").copy_(mean)
    norm.get_buffer("running_var").copy_(std**2 - norm.eps)
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
            if encoder is not None and clips is not None:
                members = data.sets[videos, 0]
                part = ClipBatch(
                    clips.features[videos[:, None], members], clips.boxes[videos[:, None], members]
                )
                with torch.no_grad():
                    concat_parts(encoder, part)  # instead of the cache
            truth = data.labels[videos].repeat_interleave(rows.shape[1])
            loss = F.cross_entropy(layer(norm(rows.flatten(0, 1))), truth)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            step += 1
        norm.eval()
        with torch.inference_mode():
            outputs = [
                layer(norm(data.regular[part].flatten(0, 1))).softmax(dim=-1).unflatten(
                    0, (len(part), -1)
                ).mean(dim=1)
                for part in check.split(256)
            ]  # fmt: skip
            predictions = torch.cat(outputs)
            score_outputs(predictions, data.labels[check])
    return predictions


def head_inputs(
    task: EvaluationTask, model: ScaleModel | None, config: ProbeTraining, seed: int
) -> HeadInputs:
    """What linear heads see, with a model the cached tokens of its encoder, too."""
    setup = ProbeSetup(task=task, model=model, config=EvaluateConfig(training=config), seed=seed)
    return LinearProbe(setup, "backbone" if model is None else "scale").inputs


def compare_heads(
    data: HeadInputs, task: EvaluationTask, config: ProbeTraining, *, epochs: int, seed: int,
    encoder: SetEncoder | None = None,
) -> dict[str, float]:  # fmt: skip
    """Seconds of all heads at once and one after another, and the gap of their results."""
    split, settings = make_validation_split(task.train, seed), head_grid(config)
    assert split.validation is not None
    check = split.validation
    start, cpu_start = time.perf_counter(), time.process_time()
    grid = HeadGrid(
        LinearStack, data, settings, videos=split.train, num_outputs=CLASSES,
        num_epochs=epochs, seed=seed,
    )  # fmt: skip
    for _ in range(epochs):
        grid.run_epoch()
        for outputs in grid.predict(data.regular[check]).values():
            score_outputs(outputs, data.labels[check])
    together, together_cpu = time.perf_counter() - start, time.process_time() - cpu_start
    predictions = grid.predict(data.regular[check])
    gap, score_gap, statistics = 0.0, 0.0, data.statistics(split.train)
    start, cpu_start = time.perf_counter(), time.process_time()
    for index, setting in enumerate(settings):
        single = train_alone(
            data, setting, split.train, check, statistics, epochs=epochs, seed=seed,
            encoder=encoder, clips=task.train.random,
        )  # fmt: skip
        gap = max(gap, float((single - predictions[index]).abs().mean()))
        scores = [score_outputs(p, data.labels[check])[0] for p in (single, predictions[index])]
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


def main() -> None:
    parser = make_parser("probes", __doc__)
    parser.add_argument("--part", choices=(*PARTS, "all"), default="all")
    parser.add_argument("--scale", type=float, default=1.0, help="fraction of UCF101's videos")
    parser.add_argument("--epochs", type=int, default=2, help="epochs of the comparison of heads")
    parser.add_argument("--probes", nargs="*", default=None, help="names of probes")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    set_quiet(True)
    optim.AdamW([nn.Parameter(torch.zeros(1))])  # warm-up
    task = synthetic_task(options.scale, options.seed)
    torch.manual_seed(options.seed)
    model = ScaleModel(WIDTH, ModelConfig()).eval()
    config = ProbeTraining()
    ratios: dict[str, float] = {}
    figures: dict[str, object] = {
        "train": list(task.train.random.features.shape),
        "test": list(task.test.clips.features.shape),
        "classes": CLASSES,
        "grid": len(head_grid(config)),
        "threads": torch.get_num_threads(),
        "epochs_of_the_race": options.epochs,
    }
    if options.part in ("linear", "all"):
        found = compare_heads(
            head_inputs(task, None, config, options.seed),
            task,
            config,
            epochs=options.epochs,
            seed=options.seed,
        )
        ratios["grid20_over_sequential"] = found["ratio"]
        figures["linear"] = found
    if options.part in ("scale_linear", "all"):
        began = time.perf_counter()
        data = head_inputs(task, model, config, options.seed)
        caching = time.perf_counter() - began
        found = compare_heads(
            data, task, config, epochs=options.epochs, seed=options.seed, encoder=model.encoder
        )
        share = caching * options.epochs / count_epochs(TRAIN, config, MIN_STEPS)
        found |= {"caching": caching, "caching_share": share}
        ratios["scale_grid20_over_sequential"] = found["alone"] / (found["together"] + share)
        figures["scale_linear"] = found
    if options.part in ("rows", "all"):
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
    write_record(options.out, "probes", ratios=ratios, figures=figures)


if __name__ == "__main__":
    main()
