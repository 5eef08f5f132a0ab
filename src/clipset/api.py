"""The functions of `import clipset`: one call for each step, settings as keywords."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clipset.errors import ConfigError

if TYPE_CHECKING:
    from clipset.data.catalog import Catalog
    from clipset.evaluation.results import ProbeResult
    from clipset.features.store import FeatureStore
    from clipset.inference.run import Prediction
    from clipset.representation import VectorPart, VectorTable
    from clipset.retrieval.index import Unit
    from clipset.retrieval.search import SearchAnswer, Where, Words
    from clipset.training.checkpoint import ScaleModel


def extract(
    videos: str | Path | Catalog,
    out: str | Path,
    *,
    preset: str = "recommended",
    device: str = "auto",
    **settings: Any,
) -> FeatureStore:
    """Store the features of every video in the folder `out`. Run again, it resumes.

    `settings` are those of the section `extract`, such as `backbone="i3d_kinetics400"` or
    `sampling={"num_clips": 32}`; `clipset settings extract` lists them. Videos without a split are
    divided into train and test.
    """
    from clipset.features.config import ExtractConfig
    from clipset.features.extract import extract
    from clipset.features.store import check_any_read, open_store
    from clipset.recipe import load_settings

    config = load_settings(ExtractConfig, preset, **settings)
    catalog = _read_videos(videos)
    check_any_read(extract(catalog, Path(out), config, device=device))
    return open_store(Path(out))


def pretrain(
    store: FeatureStore | str | Path,
    out: str | Path,
    *,
    preset: str = "recommended",
    seed: int = 0,
    device: str = "auto",
    allow_leaks: bool = False,
    **settings: Any,
) -> ScaleModel:
    """Train the set transformer on a store and save it in the folder `out`. Resumes.

    `settings` are those of the section `pretrain`, such as `epochs=200` or `model={"width": 128}`.
    """
    from clipset.data.leaks import check_leaks
    from clipset.recipe import load_settings
    from clipset.training.config import PretrainConfig
    from clipset.training.pretrain import pretrain

    config = load_settings(PretrainConfig, preset, **settings)
    feature_store = _open_store(store)
    if config.ssl_split == "train":
        check_leaks([feature_store.catalog], allow_leaks=allow_leaks)
    return pretrain(feature_store, Path(out), config, seed=seed, device=device)


def pretrain_end_to_end(
    videos: str | Path | Catalog,
    out: str | Path,
    *,
    backbone: str | Path,
    drop: float | None = None,
    checkpointing: bool | None = None,
    extract: Mapping[str, Any] | None = None,
    preset: str = "recommended",
    seed: int = 0,
    device: str = "auto",
    allow_leaks: bool = False,
    **settings: Any,
) -> ScaleModel:
    """Train a video transformer and the set transformer together, from the videos. Resumes.

    `drop` is the fraction of dropped tokens, up to 0.95. With `checkpointing`, activations are
    computed twice instead of kept in memory. `extract` are settings of that section, such as
    `{"size": 112}`; `settings` those of the section `pretrain`, such as `backbone_lr_scale=0.1`.
    The folder also gets the trained backbone, `vit.safetensors`, for `extract(backbone=...)`.
    """
    from clipset.data.leaks import check_leaks
    from clipset.end_to_end.model import EndToEndConfig
    from clipset.end_to_end.pretrain import pretrain_end_to_end
    from clipset.features.config import ExtractConfig
    from clipset.recipe import load_settings
    from clipset.training.config import PretrainConfig

    options = {"drop": drop, "checkpointing": checkpointing}
    config = EndToEndConfig(**{k: v for k, v in options.items() if v is not None})  # type: ignore[arg-type]
    cutting = {"seed": seed, **(extract or {}), "backbone": str(backbone)}
    training = load_settings(PretrainConfig, preset, **settings)
    catalog = _read_videos(videos)
    if training.ssl_split == "train":
        check_leaks([catalog], allow_leaks=allow_leaks)
    extraction = load_settings(ExtractConfig, preset, **cutting)
    return pretrain_end_to_end(
        catalog, Path(out), extraction, training, config, seed=seed, device=device
    )


def evaluate(
    store: FeatureStore | str | Path,
    model: ScaleModel | str | Path | None = None,
    *,
    preset: str = "recommended",
    seed: int = 0,
    allow_leaks: bool = False,
    **settings: Any,
) -> list[ProbeResult]:
    """Score features by probes; without a model, only those of the backbone.

    `settings` are those of the section `evaluate`, such as `probes=["knn", "linear"]`.
    """
    from clipset.data.leaks import check_leaks
    from clipset.evaluation.suite import run_suite
    from clipset.probes.config import EvaluateConfig
    from clipset.probes.task import make_task
    from clipset.recipe import load_settings
    from clipset.training.checkpoint import training_settings

    config = load_settings(EvaluateConfig, preset, **settings)
    feature_store = _open_store(store)
    check_leaks([feature_store.catalog], allow_leaks=allow_leaks)
    trained = _open_model(model)
    training = None if trained is None else training_settings(trained.card)
    task = make_task(feature_store, training=training)
    return run_suite(task, trained, config, seed=seed).results


def embed(
    videos: str | Path | Catalog | Sequence[str | Path] | FeatureStore,
    *,
    run: str | Path | None = None,
    backbone: str | None = None,
    model: ScaleModel | str | Path | None = None,
    parts: str | Sequence[VectorPart] | None = None,
    window: float | None = None,
    device: str = "auto",
    workers: int | None = None,
) -> VectorTable:
    """The vectors of new videos, by a run or by a backbone alone; or of a store, by a model.

    `parts` of a vector are some of `clip` (the backbone's feature), `token` (the clip's output of
    the transformer) and `set` (the set token, as in the paper); clip and token by default. With a
    `window`, longer videos of a store also get a row for each window of so many seconds.
    """
    from clipset.devices import find_device
    from clipset.features.config import ExtractConfig
    from clipset.features.store import FeatureStore
    from clipset.inference.run import embed_with_backbone, load_run
    from clipset.recipe import load_settings
    from clipset.representation import DEFAULT_PARTS, embed_store, parse_parts

    vector_parts = DEFAULT_PARTS
    if parts is not None:
        vector_parts = parse_parts(parts if isinstance(parts, str) else ",".join(map(str, parts)))
        if run is None and model is None and vector_parts != ("clip",):
            raise ConfigError(f"parts {','.join(vector_parts)} need a model; without one: clip")
    if isinstance(videos, FeatureStore):
        if run is not None or backbone is not None:
            raise ConfigError("run and backbone need new videos instead of a feature store")
        trained = _open_model(model)
        encoder = None if trained is None else trained.encoder
        return embed_store(
            videos, encoder, parts=vector_parts, window=window, device=find_device(device)
        )
    if model is not None or window is not None:
        raise ConfigError("model and window need a feature store instead of videos")
    if run is not None:
        trained_run = load_run(run, device=device, workers=workers, backbone=backbone)
        return trained_run.embed(videos, parts=vector_parts)
    if backbone is None:
        raise ConfigError("embed needs a FeatureStore, or videos with run= or backbone=")
    config = load_settings(ExtractConfig, backbone=backbone, workers=workers)
    return embed_with_backbone(config, videos, device=device)


def predict(
    videos: str | Path | Catalog | Sequence[str | Path],
    *,
    run: str | Path,
    device: str = "auto",
    workers: int | None = None,
    probe: str | None = None,
    backbone: str | None = None,
    **options: Any,
) -> list[Prediction]:
    """The most probable labels of new videos, by a finished run.

    `options` are those of `TrainedRun.predict`: top, window, step, timeline.
    """
    from clipset.inference.run import load_run

    trained_run = load_run(run, device=device, workers=workers, probe=probe, backbone=backbone)
    return trained_run.predict(videos, **options)


def search(
    examples: Words = (),
    *,
    run: str | Path,
    unlike: Words = (),
    text: str | None = None,
    unit: Unit = "video",
    where: Where | None = None,
    top: int | None = None,
    device: str = "auto",
    workers: int | None = None,
    backbone: str | None = None,
) -> SearchAnswer:
    """The videos of a finished run that are most similar to examples or to a text, best first.

    An example is a video of the run (by its id or file), any other file, or a moment of one in
    seconds, such as `clip.mp4@12.5-16`; those of `unlike` are what is not meant. A `text` needs a
    backbone with a text tower. With `unit="moment"`, moments of videos are found. `where` allows
    values of columns of the catalog: `{"label": ["goal", None], "split": "train"}`. The `top`
    results (10 by default) are returned.
    """
    from clipset.retrieval.search import VideoSearch, check_search

    check_search(unit, top)
    videos = VideoSearch(run, device=device, workers=workers, backbone=backbone)
    return videos.search(examples, unlike=unlike, text=text, unit=unit, where=where, top=top)


def _read_videos(videos: str | Path | Catalog) -> Catalog:
    from clipset.data.catalog import Catalog
    from clipset.data.tasks import DataConfig, join_tasks, read_tasks

    source = videos if isinstance(videos, Catalog) else Path(videos)
    return join_tasks(read_tasks(source, DataConfig()))


def _open_store(store: FeatureStore | str | Path) -> FeatureStore:
    from clipset.features.store import FeatureStore, open_store

    return store if isinstance(store, FeatureStore) else open_store(Path(store))


def _open_model(model: ScaleModel | str | Path | None) -> ScaleModel | None:
    from clipset.training.checkpoint import ScaleModel

    if model is None or isinstance(model, ScaleModel):
        return model
    return ScaleModel.from_pretrained(model)
