"""The command `clipset`: one verb is one function that calls one library function.

Nothing heavy is imported until a verb runs, so that `--help` answers at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, CycloptsError, Parameter

from clipset.errors import ClipsetError
from clipset.features.config import ExtractConfig
from clipset.features.import_config import ImportConfig
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
    suppress_keyboard_interrupt=False,  # `main` says what to do next
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
IMPORT = ImportConfig()
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


catalog_app = App(name="catalog", help_format="plaintext")
app.command(catalog_app)


@catalog_app.default
def catalog(
    videos: Path,
    *,
    out: Path = Path("catalog.csv"),
    test_fraction: float = 0.25,
    dataset: Literal["ucf101", "hmdb51", "kinetics", "ssv2", "lvu"] | None = None,
    lists: Path | None = None,
    fold: int = 1,
    task: str | None = None,
    keep: float | None = None,
    common: Common = COMMON,
) -> None:
    """List videos with their labels and splits in a .csv that every verb takes and you may edit.

    Example: clipset catalog ~/videos --out catalog.csv

    Example: clipset catalog UCF-101 --dataset ucf101 --lists ucfTrainTestlist --fold 1

    Parameters
    ----------
    videos
        A folder (sub-folders are labels) or another catalog.
    out
        The file to write.
    test_fraction
        Share of the labelled videos set aside for the test, where nothing says which.
    dataset
        The folder holds this dataset; its official lists say what is in it.
    lists
        Where the official lists are (for Kinetics, one of the .csv files or their folder).
    fold
        Which of the official splits of UCF101 or HMDB51.
    task
        Which task of LVU, such as relationship or view_count.
    keep
        Keep only this share of the training videos of each class (low-shot).
    """
    from clipset.videos.catalog import describe, write_catalog
    from clipset.videos.datasets import read_dataset, read_videos
    from clipset.videos.splits import assign_splits, keep_fraction

    if dataset:
        found = read_dataset(dataset, videos, lists, fold=fold, task=task)
    else:
        found = assign_splits(read_videos(videos), test_fraction=test_fraction, seed=common.seed)
    if keep is not None:
        found = keep_fraction(found, keep)
    write_catalog(found, out)
    result = {
        "catalog": out,
        "videos": len(found),
        "classes": found.classes,
        "splits": {name: len(found.split(name)) for name in found.splits},
    }
    _show(result, common, lambda: _print(f"{describe(found)} → {out}"))


@catalog_app.command
def check(videos: Path, *, common: Common = COMMON) -> None:
    """Read every file's packets and say what is wrong, before hours are spent. Exits with 1 if so.

    Example: clipset catalog check catalog.csv

    Parameters
    ----------
    videos
        A folder or a catalog.
    """
    from clipset.progress import bar
    from clipset.videos.check import check_catalog, find_coverage
    from clipset.videos.datasets import read_videos

    found = read_videos(videos)
    with bar("checking", len(found), "videos") as advance:
        problems = check_catalog(found, lambda _: advance())
    coverage = find_coverage(found)
    result = {"videos": len(found), "problems": dict(problems), "missing": coverage.missing}

    def show() -> None:
        for video, problem in problems:
            _print(f"{video}: {problem}")
        for line in coverage.lines:
            _print(line)
        _print(f"{len(found)} videos, {len(problems)} with problems")

    _show(result, common, show)
    if problems:
        raise SystemExit(1)


backbones_app = App(name="backbones", help_format="plaintext")
app.command(backbones_app)


@backbones_app.command(name="list")
@backbones_app.default
def backbones(*, common: Common = COMMON) -> None:
    """List the frozen networks that clips can be shown to, or check one of them.

    Every verb that takes --backbone also takes hf:FOLDER (a model of Hugging Face), file.py:make,
    or a TorchScript, ONNX or OpenVINO file.

    Example: clipset backbones

    Example: clipset backbones check efficientnet_lite0
    """
    from clipset.backbones.check import list_rows

    rows = list_rows()
    _show({"backbones": rows}, common, lambda: _print_backbones(rows))


@backbones_app.command(name="check")
def backbones_check(
    name: str,
    *,
    frames: int | None = None,
    stride: int | None = None,
    size: int | None = None,
    engine: str = "auto",
    common: Common = COMMON,
) -> None:
    """Load a backbone, show it a clip, print what its feature looks like and its speed.

    Example: clipset backbones check efficientnet_lite0

    Example: clipset backbones check mine.py:make --frames 8 --size 112

    Parameters
    ----------
    name
        A name of the list, hf:FOLDER, file.py:make, or a TorchScript, ONNX or OpenVINO file.
    frames
        Frames of a clip (the backbone's own number if not given).
    stride
        Distance of a clip's frames, counted at 30 frames a second.
    size
        Height and width of a clip in pixels.
    engine
        auto, torch or openvino.
    """
    from clipset.backbones.check import check_backbone

    result = check_backbone(
        name, frames=frames, stride=stride, size=size, engine=engine, device=common.device,
        seed=common.seed,
    )  # fmt: skip
    _show(result, common, lambda: _print_check(result))


@app.command
def extract(
    videos: Path,
    *,
    out: Path,
    config: Annotated[ExtractConfig, Flat] = EXTRACT,
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    ray: str | None = None,
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
    dry_run
        Say what time, disk and memory it will take, measured on a few videos; write nothing.
    ray
        Work on the Ray cluster at this address (without one: on a cluster within this process).
    """
    from clipset.features.extract import extract
    from clipset.videos.datasets import read_videos

    catalog = read_videos(videos)
    if dry_run:
        _estimate(catalog, out, config, common)
        return
    if ray is None:
        store = extract(catalog, out, config, seed=common.seed, device=common.device)
    else:
        from clipset.features.cluster import extract_on_ray

        store = extract_on_ray(
            catalog, out, config, seed=common.seed, device=common.device, address=ray
        )
    result = {
        "store": out,
        "videos": len(store),
        "failed": {entry.id: entry.reason for entry in store.failed},
        "clips": int(store.random.count.sum() + store.regular.count.sum()) if len(store) else 0,
    }
    line = f"{len(store)} videos, {result['clips']} clips, {len(store.failed)} failed → {out}"
    _show(result, common, lambda: _print(line))


def _estimate(catalog: Any, out: Path, config: ExtractConfig, common: Common) -> None:
    from clipset.config import to_mapping
    from clipset.features.estimate import estimate, free_bytes

    cost = estimate(catalog, config, seed=common.seed, device=common.device)
    free = free_bytes(out)

    def show() -> None:
        memory = "unknown" if cost.memory_bytes is None else f"{cost.memory_bytes / 2**30:.1f} GB"
        _print(f"{cost.videos} videos, {cost.clips} clips (measured on {cost.sampled} videos)")
        _print(f"time    about {cost.seconds:.0f} s")
        _print(f"disk    {cost.disk_bytes / 2**20:.1f} MB, {free / 2**20:.0f} MB are free")
        _print(f"memory  about {memory}")

    _show(to_mapping(cost) | {"free_bytes": free}, common, show)


@app.command(name="import")
def import_features(
    features: Path,
    *,
    out: Path,
    catalog: Path | None = None,
    test_fraction: float = 0.25,
    config: Annotated[ImportConfig, Flat] = IMPORT,
    common: Common = COMMON,
) -> None:
    """Make a store of features that you already have: one file (npy, npz, pt, h5) for each video.

    A file holds an array (V, D), one row for each clip; arrays `times` and `boxes` may say where
    the clips are. Random and regular clips are the same rows.

    Example: clipset import features --out store --clip-seconds 2

    Parameters
    ----------
    features
        A folder of files; sub-folders are labels.
    out
        The store's folder.
    catalog
        A catalog with the ids, labels and splits of the videos.
    test_fraction
        Share of the labelled videos set aside for the test, where nothing says which.
    """
    from clipset.features.imports import catalog_of, import_features
    from clipset.videos.datasets import read_videos
    from clipset.videos.splits import assign_splits

    listed = read_videos(catalog) if catalog else catalog_of(features)
    listed = assign_splits(listed, test_fraction=test_fraction, seed=common.seed)
    store = import_features(features, out, listed, config)
    result = {
        "store": out,
        "videos": len(store),
        "failed": {entry.id: entry.reason for entry in store.failed},
        "clips": store.manifest.sampling.clips,
        "dim": store.manifest.backbone.dim,
    }
    line = f"{len(store)} videos × {result['clips']} clips × {result['dim']} numbers"
    _show(result, common, lambda: _print(f"{line}, {len(store.failed)} failed → {out}"))


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
def repair(
    store: Path,
    *,
    workers: int | None = None,
    timeout: float = EXTRACT.timeout,
    common: Common = COMMON,
) -> None:
    """Make the rows again that `verify` finds wrong, and only those. Exits with 1 if some are lost.

    Example: clipset repair store

    Parameters
    ----------
    store
        The store's folder.
    workers
        Processes that decode (as many as cores, at most 8; 0: decode in the main process).
    timeout
        Seconds after which a video counts as failed.
    """
    from clipset.features.upkeep import repair_store

    done = repair_store(store, workers=workers, timeout=timeout, device=common.device)

    def show() -> None:
        for video, reason in done.failed.items():
            _print(f"{video}: {reason}")
        _print(
            f"{len(done.redone)} made again as they were, {len(done.changed)} with other rows, "
            f"{len(done.failed)} lost → {store}"
        )

    result = {"store": store, "redone": done.redone, "changed": done.changed, "lost": done.failed}
    _show(result, common, show)
    if done.failed:
        raise SystemExit(1)


@app.command
def merge(*stores: Path, out: Path, common: Common = COMMON) -> None:
    """Make one store of several that were made in the same way, on one machine or many.

    Example: clipset merge half-1 half-2 --out store

    Parameters
    ----------
    stores
        The folders of the stores, in the order that their videos shall have.
    out
        The merged store's folder.
    """
    from clipset.features.upkeep import merge_stores

    merged = merge_stores(stores, out)
    counts = {
        "videos": len(merged),
        "failed": len(merged.failed),
        "pending": len(merged.pending),
    }
    line = f"{len(merged)} videos, {len(merged.failed)} failed → {out}"
    _show({"store": out, **counts}, common, lambda: _print(line))


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
    words = _complete(list(sys.argv[1:] if arguments is None else arguments))
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


def _complete(words: list[str]) -> list[str]:
    """`--ray` without an address means the cluster within this process."""
    ends = [*words[1:], "-"]
    return (
        [
            "--ray=local" if word == "--ray" and after.startswith("-") else word
            for word, after in zip(words, ends, strict=True)
        ]
        if words
        else []
    )


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


def _print_backbones(rows: Sequence[Any]) -> None:
    from rich.console import Console
    from rich.table import Column, Table

    from clipset.backbones.registry import weights_folder

    names = ("dim", "frames", "stride", "size", "licence")
    table = Table(Column("name", no_wrap=True), *names, Column("weights", no_wrap=True))
    for row in rows:
        facts = ("–" if getattr(row, name) is None else str(getattr(row, name)) for name in names)
        table.add_row(row.name, *facts, "here" if row.here else "not here")
    Console().print(table)
    for row in rows:
        _print(f"{row.name}: {row.file + ' from ' if row.file else ''}{row.source}")
    _print(f"Downloaded files go into {weights_folder()} (CLIPSET_WEIGHTS names another folder).")


def _print_check(result: Any) -> None:
    spec = result.spec
    _print(f"{spec.name}: {spec.frames} frames, stride {spec.stride}, {spec.size} pixels")
    weights = f", {result.parameters:,} parameters" if result.parameters else ""
    _print(f"{result.engine} on {result.device}{weights}")
    _print(f"loaded in {result.load_seconds:.1f} s, {result.clips_per_second:.1f} clips/s")
    statistics = ("mean", "std", "min", "max", "norm")
    values = "  ".join(f"{name} {getattr(result, name):.4g}" for name in statistics)
    _print(f"feature of {spec.dim} numbers: {values}  zeros {result.zeros:.1%}")
    if not result.repeatable:
        _print("the same clip gave another feature the second time: it is no frozen backbone")


if __name__ == "__main__":
    main()
