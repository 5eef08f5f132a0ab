"""Features that somebody already has become a store that every later step takes."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from clipset.cli import main
from clipset.data.catalog import Catalog, Video
from clipset.errors import StoreError
from clipset.features.config import ImportConfig
from clipset.features.importers import catalog_of_features, import_features
from clipset.features.store import FeatureStore, open_store, store_digest
from clipset.features.verify import verify_store

WITHOUT_H5PY = pytest.mark.skipif(find_spec("h5py") is not None, reason="h5py is here")


def rows(seed: int, clips: int = 4, dim: int = 6) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=(clips, dim)).astype(np.float32)


def bring(source: Path, out: Path, catalog: Catalog | None = None, **options: Any) -> FeatureStore:
    return import_features(
        source, out, catalog or catalog_of_features(source), ImportConfig(**options)
    )


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "features"
    folder.mkdir()
    return folder


def test_a_folder_of_arrays_is_a_store_with_the_same_rows_for_both_kinds(
    source: Path, tmp_path: Path
) -> None:
    for label in ("run", "jump"):
        (source / label).mkdir()
        for number in (1, 2, 10):
            np.save(source / label / f"v{number}.npy", rows(number))
    store = bring(source, tmp_path / "store", dtype="float32", clip_seconds=2.0)
    assert store.ids == ("jump/v1", "jump/v2", "jump/v10", "run/v1", "run/v2", "run/v10")
    assert store.catalog.classes == ("jump", "run")
    for table in (store.random, store.regular):
        assert set(table.count.tolist()) == {4}
        assert np.array_equal(table.features[4:8], rows(2))
        assert table.boxes[1].tolist() == [2, 4, 0, 0, 1, 1, 0]
        assert table.times[1].tolist() == [3]
    assert store.durations.tolist() == [8.0] * 6
    assert store.manifest.backbone.name == "imported"
    assert verify_store(tmp_path / "store") == []


def test_every_format_gives_the_same_store(tmp_path: Path) -> None:
    digests = set()
    for form in ("npy", "npz", "pt", "pth"):
        folder = tmp_path / form
        folder.mkdir()
        for number in range(3):
            path = folder / f"{number}.{form}"
            features, times = rows(number), np.array([[0, 1], [2, 3], [4, 5], [6, 7.5]])
            if form == "npy":
                np.save(path, features)
                np.save(folder / f"{number}.times.npy", times)
            elif form == "npz":
                np.savez(path, features=features, times=times)
            else:
                tensors = {"features": torch.tensor(features), "times": torch.tensor(times)}
                torch.save(tensors, path)
        store = bring(folder, tmp_path / f"{form} store")
        assert store.durations.tolist() == [7.5] * 3
        digests.add(store_digest(tmp_path / f"{form} store"))
    assert len(digests) == 1


def test_h5_files_are_read(source: Path, tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(source / "a.h5", "w") as file:
        file["features"] = rows(1)
        file["times"] = np.arange(4.0)
    store = bring(source, tmp_path / "store", dtype="float32")
    assert np.array_equal(store.random.features, rows(1))


def test_h5_files_as_people_have_them_become_a_store(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    h5py = pytest.importorskip("h5py")
    for label, number in (("run", 1), ("run", 2), ("jump", 3)):
        (source / label).mkdir(exist_ok=True)
        with h5py.File(source / label / f"v{number}.hdf5", "w") as file:
            file.create_dataset(
                "clip_features", data=rows(number), chunks=(2, 3), compression="gzip"
            )
            file["times"] = np.arange(4)[:, None] * 2.0 + [0.0, 2.0]
            file["frame_rate"] = 25.0  # a scalar, a group and text are passed over
            file.create_group("about")["model"] = "of mine"
    (source / "broken.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(40))
    words = ["import", source, "--out", tmp_path / "store", "--dtype", "float32", "--json"]
    with pytest.raises(SystemExit, match="0"):
        main([str(word) for word in words])
    said = json.loads(capsys.readouterr().out)
    assert (said["videos"], said["clips"], said["dim"]) == (3, 4, 6)
    assert list(said["failed"]) == ["broken"]
    store = open_store(tmp_path / "store")
    assert store.ids == ("jump/v3", "run/v1", "run/v2")
    assert np.array_equal(store.random.features[:4], rows(3))
    assert store.random.boxes[1, :2].tolist() == [2.0, 4.0]
    assert verify_store(tmp_path / "store") == []


@WITHOUT_H5PY
def test_h5_files_without_h5py_say_what_to_install(source: Path, tmp_path: Path) -> None:
    (source / "a.h5").write_bytes(b"\x89HDF")
    with pytest.raises(StoreError, match="pip install 'clipset\\[h5\\]'"):
        bring(source, tmp_path / "store")


def test_times_and_boxes_say_where_clips_are(source: Path, tmp_path: Path) -> None:
    quarter = np.tile([0.0, 0.5, 0.5, 1.0], (4, 1))
    np.savez(source / "a.npz", features=rows(1), times=np.arange(4) * 3.0, boxes=quarter)
    whole = np.tile([1.0, 2.0, 0.0, 0.0, 0.5, 0.5, 1.0], (4, 1))
    np.savez(source / "b.npz", features=rows(2), boxes=whole)
    store = bring(source, tmp_path / "store", clip_seconds=0.5)
    assert store.random.boxes[1].tolist() == [3, 3.5, 0, 0.5, 0.5, 1, 0]
    assert np.array_equal(store.random.boxes[4:], whole)


def test_one_vector_for_each_video_is_one_clip(source: Path, tmp_path: Path) -> None:
    np.save(source / "a.npy", rows(1)[0])
    np.savez(source / "b.npz", whatever=rows(2)[0])
    store = bring(source, tmp_path / "store")
    assert store.random.features.shape == (2, 6)


def test_different_numbers_of_clips_need_a_number(source: Path, tmp_path: Path) -> None:
    np.save(source / "long.npy", rows(1, clips=9))
    np.save(source / "short.npy", rows(2, clips=2))
    with pytest.raises(StoreError, match=r"long.npy: 9, short.npy: 2.*--clips 9"):
        bring(source, tmp_path / "store")
    assert not (tmp_path / "store").exists()
    store = bring(source, tmp_path / "store", clips=3, dtype="float32")
    assert np.array_equal(store.regular.features[:3], rows(1, clips=9)[[0, 4, 8]])
    assert store.durations.tolist() == [9.0, 2.0]


def test_a_catalog_gives_ids_labels_and_splits(source: Path, tmp_path: Path) -> None:
    (source / "deep").mkdir()
    for number, name in enumerate(("by_id", "deep/by_name", "own")):
        np.save(source / f"{name}.npy", rows(number))
    videos = [
        ("by_id", Path("elsewhere/x.mp4")),
        ("second", Path("elsewhere/by_name.avi")),
        ("third", source / "own.npy"),
        ("nobody", Path("elsewhere/nobody.mp4")),
    ]
    catalog = Catalog(
        name="mine",
        videos=tuple(Video(id=id, path=path, label="x", split="train") for id, path in videos),
    )
    store = bring(source, tmp_path / "store", catalog, dtype="float32")
    assert store.ids == ("by_id", "second", "third")
    assert np.array_equal(store.random.features[4:8], rows(1))
    assert [(entry.id, entry.reason) for entry in store.failed] == [
        ("nobody", "it has no feature file")
    ]
    strangers = Catalog(name="other", videos=(Video(id="q", path=Path("q.mp4")),))
    with pytest.raises(StoreError, match="no video of the catalog 'other'"):
        bring(source, tmp_path / "store2", strangers)


def test_a_bad_file_is_noted_and_the_others_are_stored(source: Path, tmp_path: Path) -> None:
    np.save(source / "a good.npy", rows(1))
    (source / "b text.npy").write_text("hello")
    (source / "c cut.npz").write_bytes(b"PK\x03\x04 and no more")
    np.save(source / "d objects.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    np.save(source / "e wide.npy", rows(1, dim=7))
    np.save(source / "f nan.npy", rows(1) * np.nan)
    np.save(source / "g huge.npy", rows(1) * 1e6)
    np.save(source / "h deep.npy", np.zeros((4, 2, 6)))
    np.savez(source / "i two.npz", one=rows(1), two=rows(2))
    np.savez(source / "j times.npz", features=rows(1), times=np.zeros(3))
    np.savez(source / "k backwards.npz", features=rows(1), times=np.tile([2.0, 1.0], (4, 1)))
    torch.save({"features": Path("code")}, source / "l code.pt")
    store = bring(source, tmp_path / "store", clips=4)
    assert store.ids == ("a good",)
    reasons = {entry.id[0]: entry.reason or "" for entry in store.failed}
    for letter, part in {
        "b": "something else", "c": "cannot be read", "d": "something else", "e": "7 numbers",
        "f": "NaN", "g": "float32", "h": "(V, D)", "i": "--key", "j": "times must be",
        "k": "end after it starts", "l": "something else",
    }.items():  # fmt: skip
        assert part in reasons[letter], reasons[letter]


def test_folders_without_features_are_refused(source: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="has no feature files"):
        bring(source, tmp_path / "store")
    with pytest.raises(StoreError, match="folder not found"):
        bring(tmp_path / "nowhere", tmp_path / "store")
    np.save(source / "a.npy", rows(1))
    np.savez(source / "a.npz", rows(1))
    with pytest.raises(StoreError, match="both of one video"):
        bring(source, tmp_path / "store")
    (source / "a.npz").unlink()
    (source / "a.npy").write_text("hello")
    with pytest.raises(StoreError, match=r"no file in .* could be read"):
        bring(source, tmp_path / "store")


def test_videos_that_come_later_are_added(source: Path, tmp_path: Path) -> None:
    np.save(source / "a.npy", rows(1))
    bring(source, tmp_path / "store")
    np.save(source / "b.npy", rows(2))
    assert bring(source, tmp_path / "store").ids == ("a", "b")


def answer(capfd: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    with pytest.raises(SystemExit) as stop:
        main([*map(str, words), "--json", "--quiet"])
    said = capfd.readouterr()
    assert not stop.value.code, said.err
    found: dict[str, Any] = json.loads(said.out)
    return found


def test_imported_features_are_trained_on_and_judged(
    source: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for number in range(24):
        label = source / ("a", "b", "c")[number % 3]
        label.mkdir(exist_ok=True)
        np.save(label / f"{number}.npy", rows(number, clips=8, dim=12) + 9 * np.eye(12)[number % 3])
    store, model = tmp_path / "store", tmp_path / "model"
    words = ("import", source, "--out", store, "--clip-seconds", 2)
    assert answer(capfd, *words)["videos"] == 24
    assert open_store(store).catalog.splits == ("test", "train")
    answer(
        capfd, "pretrain", store, "--out", model, "--epochs", 2,
        "--set=pretrain.clips_per_set=4", "--set=pretrain.model.width=32",
        "--set=pretrain.model.projection_hidden=[16, 16]",
    )  # fmt: skip
    records = answer(
        capfd, "evaluate", store, "--model", model, "--seeds", 1,
        "--set=evaluate.training.epochs=2", "--set=evaluate.training.num_clips=4",
        "--set=evaluate.mlp_hidden=16", "--set=evaluate.training.learning_rates=[0.003]",
        "--set=evaluate.training.head_learning_rates=[0.03]",
    )["scores"]  # fmt: skip
    knn = next(r for r in records if (r["features"], r["probe"]) == ("backbone", "knn"))
    assert knn["value"] == 1.0


def test_the_help_of_import_has_an_example(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["import", "--help"])
    text = capfd.readouterr().out
    for part in ("Example: clipset import", "--json", "--clip-seconds", "--catalog"):
        assert part in text
