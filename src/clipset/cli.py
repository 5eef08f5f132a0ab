"""The command `clipset`: one verb is one function that calls one library function.

Nothing heavy is imported until a verb runs, so that `--help` answers at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, CycloptsError, Parameter

from clipset.errors import ClipsetError
from clipset.features.config import ExtractConfig
from clipset.probes.config import ProbeConfig
from clipset.training.config import PretrainConfig

app = App(
    name="clipset",
    help="""Learn from sets of clips: better video features from any frozen backbone.

    From a folder of videos to a report:

        clipset run VIDEOS --out DIR

    Each step is also a verb of its own; `clipset VERB --help` shows an example.""",
    version_flags=["--version"],
    help_format="plaintext",
)


@Parameter(name="*")
@dataclass(frozen=True)
class Common:
    """What every verb understands."""

    seed: int = 0
    """where all chance comes from: same seed, same result"""
    device: str = "auto"
    """auto, cpu, cuda or mps"""
    json: Annotated[bool, Parameter(negative="")] = False
    """print the result as one JSON object and nothing else on standard output"""
    quiet: Annotated[bool, Parameter(negative="")] = False
    """show no progress"""
    debug: Annotated[bool, Parameter(negative="")] = False
    """show the traceback of an error"""


COMMON = Common()
EXTRACT, PRETRAIN, PROBE = ExtractConfig(), PretrainConfig(), ProbeConfig()
Flat = Parameter(name="*")


@app.command
def run(
    videos: Path,
    *,
    out: Path,
    recipe: Path | None = None,
    set: Annotated[tuple[str, ...], Parameter(name="--set", negative="")] = (),
    common: Common = COMMON,
) -> None:
    """The main job: from videos to a report. Run again, it goes on where it stopped.

    Example: clipset run ~/videos --out runs/first

    Parameters
    ----------
    videos
        A folder (sub-folders are labels) or a catalog (.csv with a column `path`).
    out
        Where everything goes: store, model, results.json, report.html.
    recipe
        A TOML file with the settings of all steps; the defaults otherwise.
    set
        One setting, such as `--set pretrain.epochs=100`; may be repeated.
    """
    from clipset.recipe import read_recipe
    from clipset.walk import walk

    summary = walk(videos, out, read_recipe(recipe, set), seed=common.seed, device=common.device)
    _show(summary, common, lambda: _print_summary(summary))


@app.command
def demo(*, out: Path = Path("demo"), videos: int = 240, common: Common = COMMON) -> None:
    """Render videos, run the main job on them, and print the table. CPU only, in minutes.

    The label of a video is the order in which four things happen: no single clip tells it.

    Example: clipset demo --out demo

    Parameters
    ----------
    out
        Where the videos and the run go.
    videos
        How many videos are rendered (at least 16).
    """
    from clipset.walk import walk_demo

    summary = walk_demo(out, videos=videos, seed=common.seed, device=common.device)
    _show(summary, common, lambda: _print_summary(summary))


@app.command
def catalog(
    videos: Path,
    *,
    out: Path = Path("catalog.csv"),
    test_fraction: float = 0.25,
    common: Common = COMMON,
) -> None:
    """List videos with their labels and splits in a .csv that every verb takes and you may edit.

    Example: clipset catalog ~/videos --out catalog.csv

    Parameters
    ----------
    videos
        A folder (sub-folders are labels) or another catalog.
    out
        The file to write.
    test_fraction
        Share of the labelled videos set aside for the test, where nothing says which.
    """
    from clipset.videos.catalog import write_catalog
    from clipset.videos.datasets import read_videos
    from clipset.videos.splits import assign_splits
    from clipset.walk import describe

    found = assign_splits(read_videos(videos), test_fraction=test_fraction, seed=common.seed)
    write_catalog(found, out)
    result = {
        "catalog": out,
        "videos": len(found),
        "classes": found.classes,
        "splits": {name: len(found.split(name)) for name in found.splits},
    }
    _show(result, common, lambda: _print(f"{describe(found)} → {out}"))


@app.command
def backbones(*, common: Common = COMMON) -> None:
    """List the frozen networks that clips can be shown to.

    Example: clipset backbones
    """
    from clipset.backbones.registry import list_backbones

    rows = [
        {
            "name": entry.spec.name,
            "dim": entry.spec.dim,
            "frames": entry.spec.frames,
            "stride": entry.spec.stride,
            "size": entry.spec.size,
            "licence": entry.spec.weights.licence,
            "source": entry.spec.weights.source,
            "here": entry.find_weights() is not None,
        }
        for entry in list_backbones()
    ]
    _show({"backbones": rows}, common, lambda: _print_rows(rows))


@app.command
def extract(
    videos: Path,
    *,
    out: Path,
    config: Annotated[ExtractConfig, Flat] = EXTRACT,
    common: Common = COMMON,
) -> None:
    """Show the clips of every video to a backbone and store the features. Goes on where it stopped.

    Example: clipset extract catalog.csv --out store --size 112 --sampling.no-flip

    Parameters
    ----------
    videos
        A folder or a catalog.
    out
        The store's folder.
    """
    from clipset.features.extract import extract
    from clipset.videos.datasets import read_videos

    store = extract(read_videos(videos), out, config, seed=common.seed, device=common.device)
    result = {
        "store": out,
        "videos": len(store),
        "failed": {entry.id: entry.reason for entry in store.failed},
        "clips": int(store.random.count.sum() + store.regular.count.sum()) if len(store) else 0,
    }
    line = f"{len(store)} videos, {result['clips']} clips, {len(store.failed)} failed → {out}"
    _show(result, common, lambda: _print(line))


@app.command
def verify(store: Path, *, common: Common = COMMON) -> None:
    """Check every stored row against its checksum. Exits with 1 if something is wrong.

    Example: clipset verify store

    Parameters
    ----------
    store
        The store's folder.
    """
    from clipset.features.store import FeatureStore, store_digest, verify_store

    problems = verify_store(store)
    found = FeatureStore(store)
    result = {
        "store": store,
        "videos": len(found),
        "failed": len(found.failed),
        "pending": len(found.pending),
        "problems": dict(problems),
        "digest": store_digest(store) if not problems else None,
    }

    def show() -> None:
        for video, problem in problems:
            _print(f"{video}: {problem}")
        verdict = f"{len(problems)} with problems" if problems else "all rows as written"
        counts = f"{len(found)} videos, {len(found.failed)} failed, {len(found.pending)} pending"
        _print(f"{counts}: {verdict}")

    _show(result, common, show)
    if problems:
        raise SystemExit(1)


@app.command
def pretrain(
    store: Path,
    *,
    out: Path,
    config: Annotated[PretrainConfig, Flat] = PRETRAIN,
    common: Common = COMMON,
) -> None:
    """Train the set transformer on a store (masked clips, set contrast). Goes on where it stopped.

    Example: clipset pretrain store --out model --epochs 500

    Parameters
    ----------
    store
        The store's folder.
    out
        The model's folder.
    """
    from clipset.features.store import open_store
    from clipset.training.checkpoint import read_card
    from clipset.training.pretrain import pretrain

    pretrain(open_store(store), out, config, seed=common.seed, device=common.device)
    card = read_card(out)
    result = {"model": out, "videos": card.videos, "ssl_split": card.split, "seed": card.seed}
    line = f"trained on {card.videos} videos (ssl_split = {card.split}) → {out}"
    _show(result, common, lambda: _print(line))


@app.command
def represent(
    store: Path, *, out: Path, model: Path | None = None, common: Common = COMMON
) -> None:
    """Write one vector for every clip and video of a store.

    Example: clipset represent store --model model --out vectors

    Parameters
    ----------
    store
        The store's folder.
    out
        Where `vectors.safetensors` and `videos.csv` go.
    model
        A trained model's folder; the backbone's features alone if not given.
    """
    from clipset.devices import find_device
    from clipset.features.store import open_store
    from clipset.representation import represent, write_representations
    from clipset.training.checkpoint import load_model

    encoder = load_model(model)[0].encoder if model else None
    table = represent(open_store(store), encoder, device=find_device(common.device))
    write_representations(table, out)
    result = {"representation": out, "shape": table.vectors.shape}
    videos, clips, width = table.vectors.shape
    line = f"{videos} videos × {clips} clips × {width} numbers → {out}"
    _show(result, common, lambda: _print(line))


@app.command
def probe(
    store: Path,
    *,
    model: Path | None = None,
    out: Path | None = None,
    catalog: Path | None = None,
    config: Annotated[ProbeConfig, Flat] = PROBE,
    common: Common = COMMON,
) -> None:
    """Judge features by the labels: k-NN, linear, MLP, transformer, fine-tune. Needs labels.

    Learning rates and epochs are chosen on a part of the training videos, never on the test split.

    Example: clipset probe store --model model --out results.json

    Parameters
    ----------
    store
        The store's folder.
    model
        A trained model's folder; only the backbone is judged if not given.
    out
        A file for the records.
    catalog
        Labels and splits from this catalog instead of the store's own.
    """
    from clipset.config import to_mapping, write_json
    from clipset.features.store import open_store
    from clipset.probes.problem import pose_problem
    from clipset.probes.suite import run_probes
    from clipset.training.checkpoint import load_model
    from clipset.videos.datasets import read_videos

    trained = load_model(model)[0] if model else None
    problem = pose_problem(open_store(store), read_videos(catalog) if catalog else None)
    records = to_mapping(run_probes(problem, trained, config, seed=common.seed))
    if out:
        write_json(out, records)
    _show({"records": records}, common, lambda: _print_records(records))


@app.command
def report(run: Path, *, common: Common = COMMON) -> None:
    """Write the report of a run again: one HTML file that opens offline.

    Example: clipset report runs/first

    Parameters
    ----------
    run
        The folder of a run.
    """
    from clipset.report.gather import gather_content
    from clipset.report.page import write_report

    write_report(gather_content(run), run / "report.html")
    _show({"report": run / "report.html"}, common, lambda: _print(run / "report.html"))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a verb. What clipset says on purpose is one line and exit code 2."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GOMP_SPINCOUNT", "0")
    words = list(sys.argv[1:] if arguments is None else arguments)
    from clipset.progress import set_quiet

    set_quiet("--quiet" in words)
    try:
        app(words, exit_on_error=False, print_error=False)
    except (ClipsetError, CycloptsError) as error:
        if "--debug" in words:
            raise
        _complain(str(error))
    except KeyboardInterrupt:
        _complain("stopped; run the same command again to go on", code=130)
    except BrokenPipeError:
        raise SystemExit(1) from None


def _complain(message: str, code: int = 2) -> None:
    line = " ".join(message.split())
    sys.stderr.write(f"clipset: {line}\n")
    raise SystemExit(code)


def _show(result: Any, common: Common, show: Callable[[], None]) -> None:
    """The result as JSON if that was asked for, else as a person likes it."""
    if not common.json:
        show()
        return
    import msgspec

    def plain(value: object) -> object:
        return str(value)

    sys.stdout.write(msgspec.json.encode(result, enc_hook=plain).decode() + "\n")


def _print(line: object) -> None:
    sys.stdout.write(f"{line}\n")


def _print_summary(summary: Any) -> None:
    if summary.records:
        _print_records(summary.records)
    if summary.note:
        _print(summary.note)
    if summary.failed:
        _print(f"{summary.failed} videos could not be read; the report lists them")
    _print("  ".join(f"{name} {seconds:.1f} s" for name, seconds in summary.seconds.items()))
    _print(f"report: {summary.report}")


def _print_records(records: Sequence[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    from clipset.report.wording import row_name

    table = Table("probe", "top-1", "95 % interval", "videos", "seeds", "chosen on")
    for record in records:
        low, high = record["interval"]
        table.add_row(
            row_name(record["features"], record["probe"]),
            f"{record['value']:.1%}",
            f"{low:.1%} – {high:.1%}",
            str(record["n"]),
            str(len(record["seeds"])),
            record["selected_on"],
        )
    Console().print(table)


def _print_rows(rows: Sequence[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*rows[0])
    for row in rows:
        table.add_row(
            *("yes" if v is True else "no" if v is False else str(v) for v in row.values())
        )
    Console().print(table)


if __name__ == "__main__":
    main()
