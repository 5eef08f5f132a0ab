"""Each step as a call of its own: features, model, vectors, scores.

python examples/step_by_step.py VIDEOS OUT
"""

import sys
from pathlib import Path

import clipset


def main(videos: str, out: str) -> None:
    """Learn from a folder of videos (its sub-folders are the labels) and print the scores."""
    folder = Path(out)
    store = clipset.extract(videos, out=folder / "store", backbone="efficientnet_lite0")
    model = clipset.pretrain(store, out=folder / "model", epochs=200)
    vectors = clipset.embed(store, model=model)
    print(f"{len(vectors.video_ids)} videos, vectors of {vectors.pooled.shape[1]} numbers")

    for score in clipset.evaluate(store, model, probes=["knn", "scale_knn", "linear"]):
        low, high = score.interval
        name = f"{score.features} {score.probe}"
        print(f"{name:<20} {score.value:6.1%}  ({low:.1%} to {high:.1%}, {score.n} test videos)")

    model.save_pretrained(folder / "shared")  # clipset.ScaleModel.from_pretrained reads it


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python examples/step_by_step.py VIDEOS OUT")
    main(*sys.argv[1:])
