"""A simulated labeller: accuracy after so many labels, for several ways to choose the next video.

The videos are those of a store (LSA64: `clipset extract`), their vectors the time course of its
features. In run k of five, two of the ten signers are new: their videos are never labelled, and the
accuracy is that on them. The other videos are the collection that is labelled. As in the page, one
label in five is kept aside for the score and not trained on, whatever the rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float
from record import make_parser, write_record
from scipy.stats import t as student
from sklearn.cluster import KMeans

from clipset.features.store import open_store
from clipset.labelling.head import RidgeHead, fit_ridge
from clipset.labelling.queue import HELD_OUT_EVERY, Queue
from clipset.labelling.vectors import compute_components
from clipset.representation import embed_store

BUDGETS = (16, 32, 64, 128, 256)
BATCH = 4  # labels between two trainings
NUM_RUNS = 5
NUM_FEW = 10  # signs of the small task
NUM_NEIGHBOURS = 20  # whose similarity makes a video typical


@dataclass
class Collection:
    """The videos that are labelled, and those of new signers."""

    values: Float[np.ndarray, "N K"]
    labels: list[str]
    new_values: Float[np.ndarray, "M K"]
    new_labels: list[str]


@dataclass
class Labelling:
    """What a rule may look at: the labels so far in their order, and the head of them."""

    collection: Collection
    queue: Queue
    rng: np.random.Generator
    order: list[int]
    trained: list[int]
    head: RidgeHead | None = None

    @property
    def used(self) -> Bool[np.ndarray, " N"]:
        """Which videos have a label."""
        used = np.zeros(len(self.collection.values), dtype=bool)
        used[self.order] = True
        return used

    def random_free(self, count: int) -> list[int]:
        """Videos without a label, at random."""
        free = np.flatnonzero(~self.used)
        drawn: list[int] = self.rng.choice(free, min(count, len(free)), replace=False).tolist()
        return drawn


Rule = Callable[[Labelling, int], Sequence[int]]


def choose_random(labelling: Labelling, count: int) -> Sequence[int]:
    """Any video."""
    return labelling.random_free(count)


def choose_uncertain(labelling: Labelling, count: int) -> Sequence[int]:
    """The videos whose two most probable classes are nearest to each other."""
    if labelling.head is None:
        return labelling.random_free(count)
    probabilities = np.sort(labelling.head.predict(labelling.collection.values), axis=1)
    margins = probabilities[:, -1] - probabilities[:, -2]
    margins[labelling.used] = np.inf
    order: list[int] = np.argsort(margins, kind="stable")[:count].tolist()
    return order


def choose_typical(labelling: Labelling, count: int) -> Sequence[int]:
    """TypiClust: the most typical video of each of the largest clusters without a label."""
    directions, used = labelling.queue.directions, labelling.used
    num_clusters = len(labelling.order) + count
    seed = int(labelling.rng.integers(2**31))
    clusters = KMeans(num_clusters, n_init=1, random_state=seed).fit_predict(directions)
    similarities = np.sort(directions @ directions.T, axis=1)[:, -NUM_NEIGHBOURS - 1 : -1]
    typicality = np.where(used, -np.inf, similarities.mean(axis=1))
    sizes = np.bincount(clusters, minlength=num_clusters)
    covered = np.bincount(clusters[used], minlength=num_clusters)
    chosen: list[int] = []
    for cluster in np.lexsort((-sizes, covered)).tolist():
        members = np.flatnonzero(clusters == cluster)
        best = int(members[typicality[members].argmax()])
        if np.isfinite(typicality[best]):
            chosen.append(best)
    return chosen[:count]


def choose_thirds(labelling: Labelling, count: int) -> Sequence[int]:
    """In turn: uncertain, certain of the rarest class, unlike anything labelled."""
    head, values = labelling.head, labelling.collection.values
    if head is None:
        return choose_by_queue(labelling, count)
    used, chosen = labelling.used, list[int]()
    probabilities = head.predict(values)
    ordered = np.sort(probabilities, axis=1)
    known = [labelling.collection.labels[video] for video in labelling.trained]
    rarest = min(range(len(head.classes)), key=lambda k: known.count(head.classes[k]))
    directions = labelling.queue.directions
    for turn in range(count):
        seen = [*labelling.trained, *chosen]
        scores = (
            ordered[:, -2] - ordered[:, -1],
            probabilities[:, rarest],
            -(directions @ directions[seen].T).max(axis=1),
        )[turn % 3]
        chosen.append(int(np.where(used, -np.inf, scores).argmax()))
        used[chosen[-1]] = True
    return chosen


def choose_by_queue(labelling: Labelling, count: int) -> Sequence[int]:
    """The queue of the page, without its random fifth, which all rules have."""
    items = labelling.queue.select(
        count, covered=labelling.trained, used=labelling.used, num_labels=0, head=labelling.head
    )
    return [item.video_index for item in items]


RULES: dict[str, Rule] = {
    "random": choose_random,
    "uncertain": choose_uncertain,
    "typical": choose_typical,
    "thirds": choose_thirds,
    "queue": choose_by_queue,
}
SLOW_RULES = {"typical"}  # asked once for each budget, as in its paper


def simulate(collection: Collection, rule_name: str, seed: int) -> list[float]:
    """The accuracy on new signers after each budget."""
    labelling = Labelling(
        collection=collection,
        queue=Queue(collection.values, seed=seed),
        rng=np.random.default_rng(seed),
        order=[],
        trained=[],
    )
    accuracies = []
    for budget in BUDGETS:
        while len(labelling.order) < min(budget, len(collection.values)):
            rest = budget - len(labelling.order)
            count = rest if rule_name in SLOW_RULES else min(BATCH, rest)
            add_labels(labelling, RULES[rule_name], count)
        accuracies.append(measure(labelling))
    return accuracies


def add_labels(labelling: Labelling, rule: Rule, count: int) -> None:
    """Label the videos that a rule chooses; every fifth label is random and kept aside."""
    places = range(len(labelling.order), len(labelling.order) + count)
    kept = [place % HELD_OUT_EVERY == HELD_OUT_EVERY - 1 for place in places]
    chosen = iter(rule(labelling, count - sum(kept)) if not all(kept) else ())
    for is_kept in kept:
        video = labelling.random_free(1)[0] if is_kept else next(chosen)
        if video in labelling.order:  # drawn at random meanwhile
            video = labelling.random_free(1)[0]
        labelling.order.append(video)
        if not is_kept:
            labelling.trained.append(video)
    labels = tuple(labelling.collection.labels[video] for video in labelling.trained)
    if len(set(labels)) > 1:
        labelling.head = fit_ridge(labelling.collection.values[labelling.trained], labels)


def measure(labelling: Labelling) -> float:
    """The accuracy on the videos of new signers."""
    if labelling.head is None:
        return 0.0
    predicted = labelling.head.predict(labelling.collection.new_values).argmax(axis=1)
    names = [labelling.head.classes[index] for index in predicted]
    return float(np.mean([a == b for a, b in zip(names, labelling.collection.new_labels)]))


def open_collections(folder: Path) -> tuple[Float[np.ndarray, "N R"], list[str], list[str]]:
    """The vectors, labels and groups of a store."""
    store = open_store(folder)
    videos = {video.id: video for video in store.catalog}
    labels = [videos[video_id].label or "" for video_id in store.ids]
    groups = [videos[video_id].group or "" for video_id in store.ids]
    return embed_store(store, None).pooled, labels, groups


def split(
    vectors: Float[np.ndarray, "N R"], labels: list[str], groups: list[str], run: int, few: bool
) -> Collection:
    """Run k: the k-th fifth of the groups is new; with `few`, ten random classes."""
    rng = np.random.default_rng(run)
    names = sorted(set(groups))
    new = set(names[run % NUM_RUNS :: NUM_RUNS])
    classes = sorted(set(labels))
    if few:
        classes = rng.choice(classes, NUM_FEW, replace=False).tolist()
    inside = np.array([label in classes for label in labels])
    is_new = np.array([group in new for group in groups])
    own, other = np.flatnonzero(inside & ~is_new), np.flatnonzero(inside & is_new)
    components = compute_components(vectors[own])
    return Collection(
        values=components.values,
        labels=[labels[index] for index in own],
        new_values=(vectors[other] - components.mean) @ components.basis,
        new_labels=[labels[index] for index in other],
    )


def main() -> None:
    parser = make_parser("label_loop", __doc__)
    parser.add_argument("--store", type=Path, required=True, help="features of LSA64")
    parser.add_argument("--runs", type=int, default=NUM_RUNS)
    options = parser.parse_args()
    vectors, labels, groups = open_collections(options.store)
    figures: dict[str, object] = {"videos": len(labels), "runs": options.runs}
    ratios = {}
    for few in (False, True):
        task = f"{NUM_FEW if few else len(set(labels))} signs"
        means = {}
        for name in RULES:
            runs = [
                simulate(split(vectors, labels, groups, run, few), name, options.seed + run)
                for run in range(options.runs)
            ]
            values = 100 * np.array(runs)  # (runs, budgets)
            half = values.std(axis=0, ddof=1) * student.ppf(0.975, len(runs) - 1)
            half /= np.sqrt(len(runs))
            means[name] = values.mean(axis=0)
            for budget, mean, error in zip(BUDGETS, means[name], half, strict=True):
                figures[f"{task}, {budget} labels, {name}"] = f"{mean:.1f} ± {error:.1f}"
        for name in RULES:
            ratios[f"{task}: accuracy over budgets, {name} / random"] = float(
                np.mean(means[name] / means["random"])
            )
    write_record(options.out, "label_loop", ratios=ratios, figures=figures)


if __name__ == "__main__":
    main()
