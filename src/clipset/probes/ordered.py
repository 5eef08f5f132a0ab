"""Ridge regression on the time course of a video's regular clips, solved in closed form."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from clipset.model.encoder import SetEncoder
from clipset.probes.base import Probe, Selection, TensorClassifier, Tensors, own_tensors
from clipset.probes.config import EvaluateConfig
from clipset.probes.inputs import CHUNK_SIZE, VideoInputs
from clipset.probes.search import Score, mean_score, video_scores
from clipset.probes.task import LabelledVideos, Labels
from clipset.sets.batch import MIN_STD, ClipBatch, RunningStatistics
from clipset.sets.stored_clips import Clips

PENALTIES = (1e-2, 1e-1, 1.0, 10.0, 100.0)  # to search
SHARPNESS = (1.0, 3.0, 10.0, 30.0)  # factors of the scores before the softmax, to search
SCALINGS = (False, True)  # values of `equal_parts`, to search
MIN_PENALTY = 1e-7  # relative to the trace: more than the rounding errors of the products
BLOCK_SIZE = 2048  # videos read at once
GRAM_ROWS = 2048  # channels whose products are computed at once, each with those before them
MAX_LEFT_OUT = 4096  # videos whose scores are computed without each of them
LEFT_OUT_BLOCK = 512  # of these, at once


@dataclass(frozen=True, slots=True, kw_only=True)
class RidgeSettings:
    """A point of the search space."""

    penalty: float
    sharpness: float
    equal_parts: bool = False
    """whether means and deviations, of features and of tokens, are scaled to the same variance"""


class Ridge:
    """Ridge regression of one-hot classes or targets on time courses, for several penalties.

    The solved matrix has as many rows as there are videos (`is_dual`) or channels, whichever is
    less; the solution is the same. A penalty of 1 is the mean square length of the vectors.
    """

    def __init__(self, inputs: VideoInputs, clips: Clips, labels: Labels, num_outputs: int) -> None:
        self.inputs, self.num_videos, self.num_outputs = inputs, len(clips), num_outputs
        self.is_regression = labels.is_floating_point()
        self.mean, self.part_lengths = part_statistics(inputs, clips)
        if self.is_regression:
            self.offset = labels.double().mean(dim=0, keepdim=True)
        else:
            self.offset = labels.bincount(minlength=num_outputs).double() / len(labels)
        self._last: tuple[bool, Float[Tensor, "K K"]] | None = None
        self.left_out = _spaced_videos(labels)
        self._left_out_targets = self._targets(labels[self.left_out])
        if self.is_dual:
            self.train = torch.cat(list(_blocks(inputs, clips, BLOCK_SIZE))).sub_(self.mean)
            self.right_side = self._targets(labels)
        else:
            gram, self.right_side, self.left_out_vectors = self._sum_products(clips, labels)
            self._last = False, gram

    @property
    def is_dual(self) -> bool:
        """Whether the solved matrix is that of the videos."""
        return len(self.mean) > self.num_videos

    def divisor(self, equal_parts: bool) -> Float[Tensor, " R"]:
        """What channels are divided by; infinite where nothing varies."""
        lengths = self.part_lengths
        return lengths if equal_parts else torch.where(lengths.isinf(), lengths, 1.0)

    def standardise(self, vectors: Float[Tensor, "B R"], equal_parts: bool) -> Float[Tensor, "B R"]:
        """Vectors without the mean; with `equal_parts`, their parts have a length of about 1."""
        return torch.sub(vectors, self.mean).div_(self.divisor(equal_parts))

    def solve(self, penalty: float, equal_parts: bool) -> Float[Tensor, "R C"]:
        """The weights of one penalty."""
        gram, divisor = self.gram(equal_parts), self.divisor(equal_parts)[:, None]
        diagonal = gram.diagonal()
        old_diagonal = diagonal.clone()
        trace = old_diagonal.sum()
        relative_penalty = max(penalty / self.num_videos, MIN_PENALTY)
        diagonal.add_((relative_penalty * trace).clamp_min(1e-12))
        factor = torch.linalg.cholesky(gram)
        diagonal.copy_(old_diagonal)
        right_side = self.right_side if self.is_dual else self.right_side / divisor
        solution = torch.cholesky_solve(right_side, factor)
        if not self.is_regression:
            solution *= self._slope(solution, factor, equal_parts)
        if not self.is_dual:
            return solution.float()
        weight = self.train.T @ solution.float()
        return weight.div_(divisor)

    def predict(
        self, weight: Float[Tensor, "R C"], query_vectors: Float[Tensor, "M R"], sharpness: float
    ) -> Float[Tensor, "M C"]:
        """Targets, or class probabilities."""
        scores = query_vectors @ weight + self.offset.float()
        return scores if self.is_regression else (sharpness * scores).softmax(dim=1)

    def _slope(
        self, solution: Float[Tensor, "K C"], factor: Float[Tensor, "K K"], equal_parts: bool
    ) -> Float[Tensor, ""]:
        """The factor, at least 1, with which scores of left-out videos fit their classes best.

        Ridge regression shrinks scores, and classes with more videos would win by their number.
        What a video's score would be without this video in the training has a closed form.
        """
        find_errors = self._dual_errors if self.is_dual else self._primal_errors
        blocks = torch.arange(len(self.left_out)).split(LEFT_OUT_BLOCK)
        errors = torch.cat([find_errors(block, solution, factor, equal_parts) for block in blocks])
        left_out_scores = self._left_out_targets - errors  # (L, C)
        size = left_out_scores.square().sum().clamp_min(1e-12)
        return ((left_out_scores * self._left_out_targets).sum() / size).clamp_min(1)

    def _dual_errors(
        self, block: Int[Tensor, " B"], solution: Float[Tensor, "N C"],
        factor: Float[Tensor, "N N"], equal_parts: bool,  # noqa: ARG002
    ) -> Float[Tensor, "B C"]:  # fmt: skip
        """Targets of some left-out videos minus their scores, by the inverse of the matrix."""
        videos = self.left_out[block]
        columns = factor.new_zeros(len(factor), len(videos))
        columns[videos, torch.arange(len(videos))] = 1
        inverse_diagonal = _inverse_quadratic_form(factor, columns)
        return solution[videos] / inverse_diagonal[:, None]

    def _primal_errors(
        self, block: Int[Tensor, " B"], solution: Float[Tensor, "R C"],
        factor: Float[Tensor, "R R"], equal_parts: bool,
    ) -> Float[Tensor, "B C"]:  # fmt: skip
        """Targets of some left-out videos minus their scores, by the leverage of each video."""
        vectors = (self.left_out_vectors[block] / self.divisor(equal_parts)).double()
        leverage = _inverse_quadratic_form(factor, vectors.T)
        return (self._left_out_targets[block] - vectors @ solution) / (1 - leverage)[:, None]

    def gram(self, equal_parts: bool) -> Float[Tensor, "K K"]:
        """The products of all videos, or of all channels (lower triangle); the last is kept."""
        if self._last is None or self._last[0] != equal_parts:
            last, self._last = self._last, None
            if self.is_dual:
                del last  # frees the memory of the one before
                vectors = self.train / self.divisor(equal_parts)
                gram = (vectors @ vectors.T).double()
            else:
                assert last is not None  # only its scale changes
                gram = self._rescale(*last)
            self._last = equal_parts, gram
        return self._last[1]

    def _rescale(self, equal_parts: bool, gram: Float[Tensor, "R R"]) -> Float[Tensor, "R R"]:
        """The products of all channels, in place, from one scaling to the other."""
        ratio = (self.divisor(equal_parts) / self.divisor(not equal_parts)).double()
        ratio.nan_to_num_(1.0)  # nothing varies, and all products are 0
        return gram.mul_(ratio[:, None]).mul_(ratio)

    def _sum_products(
        self, clips: Clips, labels: Labels
    ) -> tuple[Float[Tensor, "R R"], Float[Tensor, "R C"], Float[Tensor, "L R"]]:
        """The products of all channels (lower triangle), and of channels and targets.

        Parts are not scaled. The vectors of left-out videos, which are few, come third.
        """
        gram = torch.zeros(len(self.mean), len(self.mean))
        right_side = torch.zeros(len(self.mean), self.num_outputs, dtype=torch.float64)
        left_out_vectors = torch.zeros(len(self.left_out), len(self.mean))
        video_blocks = torch.arange(len(labels)).split(BLOCK_SIZE)
        for videos, block in zip(
            video_blocks, _blocks(self.inputs, clips, BLOCK_SIZE), strict=True
        ):
            vectors = self.standardise(block, equal_parts=False)
            is_left_out = torch.isin(videos, self.left_out)
            left_out_vectors[torch.isin(self.left_out, videos)] = vectors[is_left_out]
            for low in range(0, len(gram), GRAM_ROWS):
                rows = slice(low, low + GRAM_ROWS)
                gram[rows, : rows.stop].addmm_(vectors[:, rows].T, vectors[:, : rows.stop])
            right_side += vectors.T @ self._targets(labels[videos]).float()
        return gram.double(), right_side, left_out_vectors

    def _targets(self, labels: Labels) -> Float[Tensor, "B C"]:
        targets = labels[:, None] if self.is_regression else F.one_hot(labels, self.num_outputs)
        return targets.double() - self.offset


def _inverse_quadratic_form(
    factor: Float[Tensor, "K K"], columns: Float[Tensor, "K B"]
) -> Float[Tensor, " B"]:
    """The product of each column with itself through the inverse of a factorised matrix."""
    halves: Tensor = torch.linalg.solve_triangular(factor, columns, upper=False)
    return halves.square().sum(dim=0)


def _spaced_videos(labels: Labels) -> Int[Tensor, " L"]:
    """At most `MAX_LEFT_OUT` videos, evenly spaced in the order of classes; none with targets."""
    if labels.is_floating_point():
        return torch.arange(0)
    num_left_out = min(len(labels), MAX_LEFT_OUT)
    spaced = torch.arange(num_left_out) * len(labels) // num_left_out
    return labels.argsort(stable=True)[spaced].sort().values


def _blocks(inputs: VideoInputs, clips: Clips, block_size: int) -> Iterator[Float[Tensor, "B R"]]:
    """The vectors of the videos, block by block."""
    for first_video in range(0, len(clips), block_size):
        clip_block = clips.read(slice(first_video, first_video + block_size))
        chunks = torch.arange(len(clip_block)).split(CHUNK_SIZE)
        yield torch.cat([inputs(clip_block.select(chunk)) for chunk in chunks])


def part_statistics(
    inputs: VideoInputs, clips: Clips
) -> tuple[Float[Tensor, " R"], Float[Tensor, " R"]]:
    """The mean of each channel, and the length of its part's deviation from it.

    The length is the root of the mean square over the videos; infinite if a part is constant.
    """
    vector_statistics = RunningStatistics()
    for block_vectors in _blocks(inputs, clips, BLOCK_SIZE):
        vector_statistics.update(block_vectors)
    variance, lengths = (vector_statistics.sum_of_squares / vector_statistics.count).float(), []
    for part_variance in variance.split(inputs.part_widths(clips.dim)):
        length = part_variance.sum().sqrt()
        lengths.append(length.where(length > MIN_STD, torch.inf).expand(len(part_variance)))
    return vector_statistics.mean, torch.cat(lengths)


def search_ridge(ridge: Ridge, validation: LabelledVideos) -> RidgeSettings:
    """The settings with the best score on the validation videos.

    Of classes, at the least penalty that is not clearly worse: by no more than the standard error
    of the difference. A larger one that does a little better on few videos often does worse on
    others; errors of targets vary too much for this.
    """
    weights = {(p, equal): ridge.solve(p, equal) for equal in SCALINGS for p in PENALTIES}
    scores: dict[RidgeSettings, list[Tensor]] = {}
    blocks = _blocks(ridge.inputs, validation.regular, CHUNK_SIZE)
    for block, labels in zip(blocks, torch.split(validation.labels, CHUNK_SIZE), strict=True):
        vectors = {equal_parts: ridge.standardise(block, equal_parts) for equal_parts in SCALINGS}
        for (penalty, equal_parts), weight in weights.items():
            for sharpness in SHARPNESS:
                point = RidgeSettings(penalty=penalty, sharpness=sharpness, equal_parts=equal_parts)
                outputs = ridge.predict(weight, vectors[equal_parts], sharpness)
                scores.setdefault(point, []).append(video_scores(outputs, labels))

    joined_scores = {point: torch.cat(own, dim=1) for point, own in scores.items()}

    def score(point: RidgeSettings) -> tuple[Score, float, float]:
        return mean_score(joined_scores[point]), -point.penalty, point.sharpness

    best_point = max(joined_scores, key=score)
    if ridge.is_regression:
        return best_point
    best_scores = joined_scores[best_point][0]

    def is_as_good(point: RidgeSettings) -> bool:
        losses = best_scores - joined_scores[point][0]
        return bool(losses.mean() <= losses.std(correction=0) / len(losses) ** 0.5)

    good_points = [point for point in joined_scores if is_as_good(point)]
    least_penalty = min(point.penalty for point in good_points)
    return max((p for p in good_points if p.penalty == least_penalty), key=score)


class RidgeClassifier(TensorClassifier):
    """A linear layer on the time course of a video."""

    def forward(self, clips: ClipBatch) -> Float[Tensor, "B 1 C"]:
        vectors = (self.inputs(clips) - self.get_buffer("mean")) / self.get_buffer("scale")
        return torch.addmm(self.get_buffer("bias"), vectors, self.get_buffer("weight"))[:, None]


class OrderedProbe(Probe):
    """A linear classifier of the clips in order: of their features, and of refined tokens."""

    kind = "ordered"
    is_seeded = False
    has_course = True
    _last: tuple[Tensor, Ridge] | None = None

    def search_space(self) -> list[RidgeSettings]:
        sharpness_factors = (1.0,) if self.setup.task.is_regression else SHARPNESS
        return [
            RidgeSettings(penalty=penalty, sharpness=sharpness, equal_parts=equal_parts)
            for penalty, sharpness, equal_parts in product(PENALTIES, sharpness_factors, SCALINGS)
        ]

    def search(self) -> Selection:
        split = self.setup.split_validation()
        if split.validation is None:
            default_settings = RidgeSettings(penalty=PENALTIES[len(PENALTIES) // 2], sharpness=10.0)
            return Selection(settings=default_settings)
        ridge = self._ridge(split.train)
        return Selection(
            settings=search_ridge(ridge, split.validation),
            num_candidates=len(self.search_space()),
            selected_on=split.description,
        )

    def fit(
        self, selection: Selection, video_index: Int[Tensor, " B"], seed: int  # noqa: ARG002
    ) -> RidgeClassifier:  # fmt: skip
        settings: RidgeSettings = selection.settings
        ridge = self._ridge(video_index)
        score_factor = 1.0 if ridge.is_regression else settings.sharpness
        tensors = {
            "mean": ridge.mean,
            "scale": ridge.divisor(settings.equal_parts),
            "weight": score_factor * ridge.solve(settings.penalty, settings.equal_parts),
            "bias": score_factor * ridge.offset.float(),
        }
        return RidgeClassifier(tensors, ridge.inputs).eval()

    def _ridge(self, video_index: Int[Tensor, " B"]) -> Ridge:
        """The regression on some training videos; the last one is reused for the same videos."""
        if self._last is None or not torch.equal(self._last[0], video_index):
            self._last = None  # frees the memory of the one before
            train = self.setup.task.train.select(video_index)
            inputs = VideoInputs(self.encoder, has_course=True)
            ridge = Ridge(inputs, train.regular, train.labels, self.setup.task.num_outputs)
            self._last = video_index, ridge
        return self._last[1]

    @classmethod
    def rebuild(
        cls, state: Tensors, config: EvaluateConfig, num_outputs: int, encoder: SetEncoder | None  # noqa: ARG003
    ) -> RidgeClassifier:  # fmt: skip
        return RidgeClassifier(own_tensors(state), VideoInputs(encoder, has_course=True))
