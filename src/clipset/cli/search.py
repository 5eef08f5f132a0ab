"""`clipset search`: videos and moments of a run that are similar to examples or to a text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from clipset.cli import flags
from clipset.cli.app import app, make_table, show_result
from clipset.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from clipset.retrieval.search import SearchAnswer


USAGE = """clipset search --run PATH [OPTIONS] EXAMPLES...
       clipset search --run PATH --text STR [OPTIONS] [EXAMPLES...]"""


@app.command(name="search", usage=USAGE)
def search_command(
    *examples: str,
    run: Path,
    unlike: Annotated[tuple[str, ...], Parameter(metavar="EXAMPLE"), flags.SWITCH] = (),
    text: str | None = None,
    moments: flags.Switch = False,
    where: Annotated[tuple[str, ...], Parameter(metavar="COLUMN=VALUE"), flags.SWITCH] = (),
    top: flags.Int | None = None,
    backbone: flags.OwnBackbone = None,
    workers: flags.Workers = None,
    common: flags.Computing = flags.COMPUTING,
) -> None:
    """Find videos or moments of a run that are similar to examples or to a text, best first.

    An example is a video of the run (its id or file), any other file, or a moment of a video, in
    seconds. The score is the mean cosine similarity to the examples (1: the same). With --unlike,
    half of the mean similarity to those examples is subtracted.

    Example: clipset search goal.mp4 --run runs/first

    Example: clipset search match.mp4@12.5-16 --run runs/first --moments

    Example: clipset search a.mp4 b.mp4 --unlike c.mp4 --run runs/first \\
        --where split=train

    Example: clipset search --text "an animal jumps" --run runs/first \\
        --where label=dog --where label=cat

    Args:
        examples: Videos of the run, files, or moments such as `clip.mp4@12.5-16`. At least one, or
            --text.
        run: The folder of a finished run.
        unlike: A negative example; repeat the flag for more.
        text: A description, if the backbone has a text tower (CLIP, SigLIP, VideoPrism, …).
        moments: Find moments of videos instead of whole videos.
        where: Only videos with this value in a column of the catalog, such as `label=goal`
            (`label=`: videos without a label). Repeat the flag with the same column to allow
            another value, with another column to add a condition.
        top: Number of results (10 by default).
    """
    from clipset.api import search

    answer = search(
        examples, run=run, unlike=unlike, text=text, unit="moment" if moments else "video",
        where=parse_conditions(where), top=top, device=common.device, workers=workers,
        backbone=backbone,
    )  # fmt: skip
    facts = {"results": answer.results, "exact": answer.is_exact, "seconds": answer.seconds}
    show_result({"run": run, **facts}, common, answer_lines(answer))


def parse_conditions(conditions: Sequence[str]) -> dict[str, list[str | None]]:
    """`column=value` words as the allowed values of each column."""
    allowed: dict[str, list[str | None]] = {}
    for condition in conditions:
        name, sign, value = condition.partition("=")
        if not sign or not name:
            raise ConfigError(f"--where needs COLUMN=VALUE, such as label=goal; got {condition!r}")
        allowed.setdefault(name, []).append(value or None)
    return allowed


def answer_lines(answer: SearchAnswer) -> Iterator[str | Table]:
    """A table of what was found."""
    if not answer.results:
        yield "nothing was found beside the examples themselves"
        return
    has_times = any(found.start is not None for found in answer.results)
    columns = ("score", "video", "moment", "label") if has_times else ("score", "video", "label")
    rows = []
    for found in answer.results:
        times = [f"{found.start:.1f}–{found.end:.1f} s"] if has_times else []
        rows.append((f"{found.score:.3f}", found.video, *times, found.label or "–"))
    yield make_table(columns, rows)
    if not answer.is_exact:
        yield "found by an index, which misses a few of the nearest; scores are exact"
