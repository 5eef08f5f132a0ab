"""The shortest way: one call from a folder of videos to scores, vectors and a report.

python examples/quickstart.py VIDEOS OUT
"""

import sys

import clipset


def main(videos: str, out: str) -> None:
    """Run the pipeline, then embed a video with the finished run."""
    result = clipset.run(videos, out=out)
    for score in result.scores:
        print(f"{score.features} {score.probe}: {score.value:.1%}")
    print(f"report: {result.report}")

    first = next(iter(clipset.read_catalog(videos)))
    vectors = clipset.embed([first.path], run=out)
    print(f"vector of {first.id}: {vectors.pooled.shape[1]} numbers")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python examples/quickstart.py VIDEOS OUT")
    main(*sys.argv[1:])
