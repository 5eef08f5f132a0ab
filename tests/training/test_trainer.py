"""What the training loop offers besides training."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import pytest
import torch
from tests.conftest import record_rows

from clipset.data.catalog import read_catalog_table, write_catalog
from clipset.data.tasks import DataConfig, read_tasks
from clipset.errors import StoreError, TrainingError
from clipset.features.ledger import Ledger
from clipset.features.store import FeatureStore
from clipset.model.config import ModelConfig
from clipset.probes.task import make_task
from clipset.row_files import HEADER_BYTES
from clipset.sets.reading import read_clips
from clipset.training import data as source_module
from clipset.training.checkpoint import load_model, read_card
from clipset.training.config import PretrainConfig
from clipset.training.data import ClipSource, prefetch
from clipset.training.distributed import ProcessGroup
from clipset.training.monitor import Monitor, effective_rank, spread
from clipset.training.pretrain import pretrain
from clipset.training.validation import validation_videos

SMALL = PretrainConfig(
    model=ModelConfig(width=32, num_layers=1, projection_hidden=(32, 32), projection_dim=16),
    epochs=6,
    batch_size=8,
    clips_per_set=4,
)
ALONE = ProcessGroup(0, 1, torch.device("cpu"))


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def lines(folder: Path) -> list[dict[str, float]]:
    return [msgspec.json.decode(x) for x in (folder / "metrics.jsonl").read_bytes().splitlines()]


def copy_of(store: FeatureStore, folder: Path) -> FeatureStore:
    return FeatureStore(Path(shutil.copytree(store.folder, folder)))


def change_features(store: FeatureStore, rows: slice, value: float) -> None:
    """Write a value into some rows of the random clips' features."""
    path = store.folder / "random" / "features.npy"
    shape = (-1, store.manifest.backbone.dim)
    array = np.memmap(path, store.manifest.dtype, "r+", offset=HEADER_BYTES).reshape(shape)
    array[rows] = value
    array.flush()


@pytest.fixture(scope="module")
def usual(small_store: FeatureStore, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model of a plain run."""
    folder = tmp_path_factory.mktemp("usual")
    pretrain(small_store, folder, SMALL)
    return folder


def test_a_streamed_store_gives_the_same_model_as_one_in_memory(
    small_store: FeatureStore, tmp_path: Path, usual: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_module, "STATISTICS_CHUNK", 5)
    pretrain(small_store, tmp_path / "memory", SMALL)
    monkeypatch.setattr(source_module, "available_memory", lambda: 0)
    pretrain(small_store, tmp_path / "streamed", SMALL)
    assert weights(tmp_path / "streamed") == weights(tmp_path / "memory")
    monkeypatch.undo()
    monkeypatch.setattr(source_module, "available_memory", lambda: 0)
    pretrain(small_store, tmp_path / "one chunk", SMALL)
    assert weights(tmp_path / "one chunk") == weights(usual)


def test_the_statistics_of_chunks_are_those_of_all_clips(small_store: FeatureStore) -> None:
    videos = np.arange(len(small_store))
    clip_features = read_clips(small_store, "random", videos).features.flatten(0, 1)
    std, mean = torch.std_mean(clip_features, dim=0, correction=0)
    std[std < 1e-6] = 1  # of constant channels
    source = ClipSource(small_store, videos, SMALL.model, in_memory=False)
    torch.testing.assert_close(source.mean, mean, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(source.std, std, rtol=1e-5, atol=1e-6)


def test_features_that_do_not_fit_into_memory_are_streamed(
    small_store: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ClipSource(small_store, np.arange(4), SMALL.model).in_memory
    monkeypatch.setattr(source_module, "available_memory", lambda: 1000)
    assert not ClipSource(small_store, np.arange(4), SMALL.model).in_memory


def test_reading_ahead_keeps_the_order_and_passes_errors_on() -> None:
    assert list(prefetch(iter(range(50)))) == list(range(50))

    def breaks() -> object:
        yield 1
        raise StoreError("gone")

    items = prefetch(breaks())  # type: ignore[arg-type]
    assert next(items) == 1
    with pytest.raises(StoreError, match="gone"):
        next(items)


def test_validation_picks_the_best_and_changes_nothing_of_the_training(
    small_store: FeatureStore, tmp_path: Path, usual: Path
) -> None:
    pretrain(small_store, tmp_path, replace(SMALL, validate_every=4))
    assert weights(tmp_path) == weights(usual)
    scores = {
        line["epoch"]: line["validation_knn"]
        for line in lines(tmp_path)
        if "validation_knn" in line
    }
    assert list(scores) == [4, 6]
    best = read_card(tmp_path / "best").validation
    assert best["knn"] == max(scores.values())
    assert best["split"] == "part of train"
    load_model(tmp_path / "best")


def test_validation_never_uses_the_test_split(small_store: FeatureStore, tmp_path: Path) -> None:
    train, validation, _ = validation_videos(small_store, seed=0)
    assert {video.split for video in (*train.values(), *validation.values())} == {"train"}
    assert not set(train) & set(validation)
    assert {video.label for video in validation.values()} == {"red", "green", "blue"}
    store = copy_of(small_store, tmp_path / "store")
    catalog = read_catalog_table(store.folder / "catalog.csv")
    some = catalog.split("train").videos[::4]
    moved = catalog.only(replace(v, split="val") if v in some else v for v in catalog)
    write_catalog(moved, store.folder / "catalog.csv")
    train, validation, name = validation_videos(FeatureStore(store.folder), seed=0)
    assert (name, {video.split for video in validation.values()}) == ("val", {"val"})
    assert {video.split for video in train.values()} == {"train"}


@pytest.mark.parametrize("test_split", ["auto", "test", "val"])
@pytest.mark.parametrize("splits", [("train", "val", "test"), ("train", "val"), ("train", "test")])
def test_validation_never_uses_the_scored_split(
    small_store: FeatureStore, splits: tuple[str, ...], test_split: Literal["auto", "test", "val"]
) -> None:
    """With the catalog of the task, as `clipset run` does; the scored videos are the task's."""
    if test_split not in ("auto", *splits):
        return
    moved = small_store.catalog.only(
        replace(video, split=splits[index // 3 % len(splits)])  # three classes in turn
        for index, video in enumerate(
            sorted(small_store.catalog, key=lambda v: v.id.rpartition("/")[2])
        )
    )
    [task] = read_tasks(moved, DataConfig(test_split=test_split))
    store = FeatureStore(small_store.folder, task.catalog)
    scored = make_task(store, task.catalog).test.ids
    train, validation, _ = validation_videos(store, seed=0)
    assert scored
    assert validation
    assert not {video.id for video in (*train.values(), *validation.values())} & set(scored)


def test_spread_tells_collapsed_tokens_from_others() -> None:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randn(64, 32, generator=generator)
    assert spread(tokens) == pytest.approx(1.0, abs=0.1)
    assert 20 < effective_rank(tokens) <= 32
    same = tokens[:1].expand(64, 32)
    assert spread(same) == pytest.approx(0.0, abs=1e-6)
    assert effective_rank(same) == 1.0
    assert effective_rank(tokens[:1] * torch.randn(64, 1, generator=generator)) < 1.01


def test_a_collapsed_model_is_said_once_in_one_line(
    small_store: FeatureStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = copy_of(small_store, tmp_path / "store")
    change_features(store, slice(None), 1.0)
    (store.folder / "random" / "boxes.npy").write_bytes(
        (path := store.folder / "random" / "boxes.npy").read_bytes()[:HEADER_BYTES]
        + bytes(path.stat().st_size - HEADER_BYTES)
    )
    record_rows(store.folder)
    pretrain(FeatureStore(store.folder), tmp_path / "model", SMALL)
    assert capsys.readouterr().err.count("the model has collapsed") == 1


def test_features_that_are_no_numbers_are_refused_before_any_work(
    small_store: FeatureStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = copy_of(small_store, tmp_path / "store")
    change_features(store, slice(None), float("nan"))
    record_rows(store.folder)
    store = FeatureStore(store.folder)
    for memory in (2**40, 0):
        monkeypatch.setattr(source_module, "available_memory", lambda memory=memory: memory)
        with pytest.raises(StoreError, match="not finite"):
            pretrain(store, tmp_path / "model", SMALL)
    assert not (tmp_path / "model").exists()


def test_metrics_that_were_cut_off_go_on_in_a_line_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "metrics.jsonl"
    for cut_line, epochs in ((b'{"epoch":2}', [1, 2, 3]), (b'{"ep\xff', [1, 3])):
        path.write_bytes(b'{"epoch":1}\n' + cut_line)
        Monitor(tmp_path, num_epochs=9, done=2).write({"epoch": 3})
        assert [line["epoch"] for line in lines(tmp_path)] == epochs
        assert ("lacks 1 of the 2 epochs" in capsys.readouterr().err) == (len(epochs) == 2)


def test_a_store_with_missing_videos_or_a_single_one_is_refused(
    small_store: FeatureStore, tmp_path: Path
) -> None:
    store = copy_of(small_store, tmp_path / "store")
    ledger = Ledger(store.folder / "ledger.sqlite")
    ledger.write([replace(store.entries[0], status="pending")])
    with pytest.raises(TrainingError, match="1 pending videos"):
        pretrain(FeatureStore(store.folder), tmp_path / "model", SMALL)
    entries = ledger.entries()
    ledger.write([replace(entry, status="failed", reason="gone") for entry in entries])
    train = next(entry for entry in store.entries if entry.id in train_ids(store))
    ledger.write([train])
    ledger.close()
    with pytest.raises(TrainingError, match="at least 2 videos, got 1"):
        pretrain(FeatureStore(store.folder), tmp_path / "model", SMALL)


def train_ids(store: FeatureStore) -> set[str]:
    return {video.id for video in store.catalog.split("train")}


def test_a_batch_larger_than_the_data_is_cut_and_said(
    small_store: FeatureStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pretrain(small_store, tmp_path, replace(SMALL, batch_size=512, epochs=1))
    assert "batch_size 512 is reduced to the 18 training videos\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [({"validate_every": -1}, "validate_every")],
)
def test_settings_that_make_no_sense_are_refused(change: dict[str, float], message: str) -> None:
    with pytest.raises(TrainingError, match=message):
        replace(SMALL, **change)
