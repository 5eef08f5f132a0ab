"""A training step: a simple implementation, the presets `official` and `recommended`.

The simple one predicts every clip, projects every clip, and holds all similarities of a batch at
once, with the published head sizes. It has the weights of the `official` model and must give the
same loss. All take turns, and each round compares them; ratios are the median over the rounds of
CPU seconds, which depend less on other work on the machine than wall times. The simple one computes
in float32, the presets as `clipset pretrain` does: in bfloat16 on processors that have it.
`recommended` is also measured in float32.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch is imported
os.environ.setdefault("GOMP_SPINCOUNT", "0")

import torch
import torch.nn.functional as F
from record import make_parser, write_record
from torch import Tensor, nn, optim

from clipset.recipe import load_settings
from clipset.sets.batch import ClipBatch
from clipset.sets.sampling import SetPair, draw_set_indices
from clipset.training.checkpoint import ScaleModel
from clipset.training.config import PretrainConfig
from clipset.training.optim import choose_precision, decay_groups

CURVE = (128, 256, 512, 1024, 2048)
Step = Callable[[], float]


class PlainBlock(nn.Module):
    """A pre-norm layer with the usual dropout."""

    def __init__(self, width: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.drop = nn.Dropout(dropout)
        self.mlp = nn.Sequential(
            nn.Linear(width, hidden), nn.GELU(), nn.Dropout(dropout),
            nn.Linear(hidden, width), nn.Dropout(dropout),
        )  # fmt: skip

    def forward(self, tokens: Tensor) -> Tensor:
        batch, length, width = tokens.shape
        qkv = self.qkv(self.norm1(tokens)).view(batch, length, 3, self.heads, -1)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        dropout = self.drop.p if self.training else 0.0
        attended = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout)
        mixed = self.out(attended.transpose(1, 2).reshape(batch, length, width))
        tokens = tokens + self.drop(mixed)
        return tokens + self.mlp(self.norm2(tokens))  # type: ignore[no-any-return]


def plain_head(dim: int, hidden: int, layers: int, out: int) -> nn.Sequential:
    """Linear layers with GELU between."""
    middle = [
        m for _ in range(layers - 2) for m in (nn.Linear(hidden, hidden, bias=False), nn.GELU())
    ]
    first, last = nn.Linear(dim, hidden, bias=False), nn.Linear(hidden, out, bias=False)
    return nn.Sequential(first, nn.GELU(), *middle, last)


class PlainModel(nn.Module):
    """The published network and losses, written down without thinking about cost."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.project = nn.Linear(dim, 256)
        self.first, self.last = nn.Linear(7, 512), nn.Linear(512, 256)
        self.mask_token, self.set_token = (nn.Parameter(torch.zeros(256)) for _ in range(2))
        self.blocks = nn.Sequential(*(PlainBlock(256, 8, 512, 0.1) for _ in range(2)))
        self.norm = nn.LayerNorm(256)
        self.predict_clip, self.project_set = (plain_head(256, 4096, 2, 128) for _ in range(2))
        self.project_clip = plain_head(dim, 2048, 3, 128)

    def forward(self, features: Tensor, boxes: Tensor, masked: Tensor) -> Tensor:
        features, boxes, masked = (x.flatten(0, 1) for x in (features, boxes, masked))
        clips = torch.where(masked[..., None], self.mask_token, self.project(features))
        clips = clips + self.last(F.relu(self.first(boxes)))
        tokens = torch.cat([self.set_token.expand(len(clips), 1, -1), clips], dim=1)
        tokens = self.norm(self.blocks(tokens))
        guesses = F.normalize(self.predict_clip(tokens[:, 1:]).flatten(0, 1), dim=-1)
        truths = F.normalize(self.project_clip(features).flatten(0, 1), dim=-1)
        logits = guesses @ truths.T / 0.2
        answer = torch.arange(len(logits))
        each = F.cross_entropy(logits, answer, reduction="none")
        masked_clip = each[masked.flatten()].mean()
        one, two = F.normalize(self.project_set(tokens[:, 0]), dim=-1).chunk(2)
        sets = one @ two.T / 0.2
        which = torch.arange(len(one))
        contrast = (F.cross_entropy(sets, which) + F.cross_entropy(sets.T, which)) / 2
        return (masked_clip + contrast) / 2


def plain_copy(model: ScaleModel, dim: int) -> PlainModel:
    """The plain model with the weights of an official one."""
    plain = PlainModel(dim)
    state = {
        name.removeprefix("encoder.").removeprefix("embed_box."): value
        for name, value in model.state_dict().items()
        if not name.startswith("encoder.feature_")
    }
    plain.load_state_dict(state)
    return plain


def draw(preset: str, batch: int, dim: int, seed: int) -> SetPair:
    """A batch as the preset draws it, of random features."""
    config = load_settings(PretrainConfig, preset)
    generator = torch.Generator().manual_seed(seed)
    clips = ClipBatch(
        torch.randn(batch, 2 * config.clips_per_set, dim, generator=generator),
        torch.rand(batch, 2 * config.clips_per_set, config.model.box_dim, generator=generator),
    )
    sets = draw_set_indices(
        batch, clips.num_clips, config.clips_per_set, config.mask_ratio, generator,
        mask_rule=config.mask_rule,
    )  # fmt: skip
    index = (torch.arange(batch)[None, :, None], sets.clip_index)
    return SetPair(clips.features[index], clips.boxes[index], sets.masked)


def our_step(preset: str, batch: int, dim: int, seed: int, precision: str = "auto") -> Step:
    """One step of training as `clipset pretrain` does it."""
    dtype = choose_precision(precision, torch.device("cpu"))
    torch.manual_seed(seed)
    model = ScaleModel(dim, load_settings(PretrainConfig, preset).model).train()
    pair = draw(preset, batch, dim, seed)
    config = load_settings(PretrainConfig, preset)
    adam = optim.AdamW(decay_groups(model, 1e-4), lr=3e-4, fused=True)

    def step() -> float:
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            total = model.losses(pair.features, pair.boxes, pair.masked).total
        adam.zero_grad(set_to_none=True)
        total.backward()
        nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm or float("inf"))
        adam.step()
        return float(total.detach())

    return step


def plain_step(batch: int, dim: int, seed: int) -> Step:
    """The same step, plainly."""
    torch.manual_seed(seed)
    model = plain_copy(
        ScaleModel(dim, load_settings(PretrainConfig, "official").model), dim
    ).train()
    pair = draw("official", batch, dim, seed)
    adam = optim.AdamW(model.parameters(), lr=3e-4, weight_decay=1e-4)

    def step() -> float:
        total = model(pair.features, pair.boxes, pair.masked)
        adam.zero_grad()
        total.backward()
        adam.step()
        return float(total.detach())

    return step


@torch.no_grad()
def check_same_loss(batch: int, dim: int, seed: int) -> dict[str, float]:
    """The loss of both ways on the same weights and batch; they must agree."""
    torch.manual_seed(seed)
    ours = ScaleModel(dim, load_settings(PretrainConfig, "official").model).eval()
    plain = plain_copy(ours, dim).eval()
    pair = draw("official", batch, dim, seed)
    one = float(ours.losses(pair.features, pair.boxes, pair.masked).total)
    two = float(plain(pair.features, pair.boxes, pair.masked))
    if abs(one - two) > 1e-4:
        raise SystemExit(f"the official preset's loss is {one}, the plain one is {two}")
    return {"official": one, "plain": two}


def timed(step: Step) -> tuple[float, float]:
    """CPU seconds and seconds of the wall."""
    wall, cpu = time.perf_counter(), time.process_time()
    step()
    return time.process_time() - cpu, time.perf_counter() - wall


def take_turns(steps: dict[str, Step], rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Times of each step in each round, after one round that does not count."""
    for step in steps.values():
        step()
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            times[name].append(timed(step))
    return times


def ratio(times: dict[str, list[tuple[float, float]]], of: str, to: str, kind: int) -> float:
    """How many times less the one takes than the other: the median over the rounds."""
    pairs = zip(times[to], times[of], strict=True)
    return statistics.median(slow[kind] / fast[kind] for slow, fast in pairs)


def matmul_peak(rounds: int = 5, size: int = 1536) -> float:
    """Most GFLOPS that a product of two matrices reached, by CPU seconds of all threads."""
    one, two = torch.randn(size, size), torch.randn(size, size)
    best = min(timed(lambda: float((one @ two)[0, 0]))[0] for _ in range(rounds))
    return 2 * size**3 / best / 1e9


def step_flops(preset: str, batch: int, dim: int) -> float:
    """Floating-point operations of the matrix products of a step, as torch counts them."""
    from torch.utils.flop_counter import FlopCounterMode

    step = our_step(preset, batch, dim, 0)
    with FlopCounterMode(display=False) as counter:
        step()
    return float(counter.get_total_flops())


def peak_gb(preset: str, batch: int, dim: int) -> float:
    """Peak memory of a process that takes two steps with such a batch."""
    own = [sys.executable, __file__, "--peak-of", preset, "--batch", str(batch), "--dim", str(dim)]
    return float(subprocess.run(own, check=True, capture_output=True, text=True).stdout)


def print_peak(preset: str, batch: int, dim: int) -> None:
    """Take two steps, the second with the optimizer's memory, and print the largest size in GB."""
    step = our_step(preset, batch, dim, 0)
    step(), step()
    # `resource` is of no use: a process inherits the peak of its parent.
    peak = Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]
    print(int(peak) * 1024 / 1e9)


def curve(dim: int, rounds: int, batches: tuple[int, ...]) -> dict[str, float]:
    """CPU milliseconds for each video of a batch, by its size."""
    steps = {str(batch): our_step("recommended", batch, dim, 0) for batch in batches}
    times = take_turns(steps, rounds)
    return {name: 1000 * min(cpu for cpu, _ in found) / int(name) for name, found in times.items()}


def main() -> None:
    parser = make_parser("pretrain", __doc__)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--dim", type=int, default=768)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--large", type=int, default=4096, help="batch whose memory is measured")
    parser.add_argument("--largest-of-curve", type=int, default=max(CURVE))
    parser.add_argument("--peak-of", help="only print the peak memory of steps of a preset")
    options = parser.parse_args()
    batch, dim, seed = options.batch, options.dim, options.seed
    if options.peak_of:
        return print_peak(options.peak_of, batch, dim)
    losses = check_same_loss(batch, dim, seed)
    steps = {"plain": plain_step(batch, dim, seed)}
    steps |= {name: our_step(name, batch, dim, seed) for name in ("official", "recommended")}
    steps["recommended_float32"] = our_step("recommended", batch, dim, seed, "float32")
    times = take_turns(steps, options.rounds)
    best = {name: min(cpu for cpu, _ in found) for name, found in times.items()}
    reached = step_flops("recommended", batch, dim) / best["recommended_float32"] / 1e9
    peak = matmul_peak()
    write_record(
        options.out,
        "pretrain",
        ratios={
            "official_over_plain": ratio(times, "official", "plain", 0),
            "recommended_over_plain": ratio(times, "recommended", "plain", 0),
            "recommended_float32_over_plain": ratio(times, "recommended_float32", "plain", 0),
            "official_over_plain_wall": ratio(times, "official", "plain", 1),
            "recommended_over_plain_wall": ratio(times, "recommended", "plain", 1),
            "recommended_float32_over_matmul_peak": reached / peak,
        },
        figures={
            "batch": batch,
            "clips": "two sets of 8",
            "dim": dim,
            "threads": torch.get_num_threads(),
            "dtype": str(choose_precision("auto", torch.device("cpu"))),
            "rounds": options.rounds,
            "loss_on_the_same_weights": losses,
            "cpu_seconds": best,
            "wall_seconds": {n: min(wall for _, wall in found) for n, found in times.items()},
            "matmul_peak_gflops": peak,
            f"batch{options.large}_peak_gb": peak_gb("recommended", options.large, dim),
            f"batch{options.large}_official_peak_gb": peak_gb("official", options.large, dim),
            "cost_per_sample_by_batch": curve(
                dim, options.rounds, tuple(b for b in CURVE if b <= options.largest_of_curve)
            ),
        },
    )
    return None


if __name__ == "__main__":
    main()
