"""A backbone trained from small real videos: it learns, resumes, and other verbs load it."""

import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import av
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sklearn.linear_model import Ridge
from sklearn.preprocessing import StandardScaler
from tests.miniatures import run
from torch import Tensor

import clipset
from clipset.backbones.custom import is_installed
from clipset.backbones.registry import load_backbone, load_recorded_backbone
from clipset.backbones.trained import read_header
from clipset.data.catalog import Catalog, Video, read_catalog
from clipset.errors import BackboneError, TrainingError
from clipset.features.store import open_store
from clipset.ssl import frames as frames_module
from clipset.ssl import memory, methods
from clipset.ssl import train as train_module
from clipset.ssl.config import WIDTHS, BackboneTraining
from clipset.ssl.frames import FrameRequest, VideoPool
from clipset.ssl.methods import MoCo
from clipset.ssl.train import BackboneRun, train_backbone

NUM_CLASSES = 4
TINY = BackboneTraining(
    vit="mini", frames=4, stride=4, size=32, patch_size=8, drop=0.75, epochs=2, batch_size=46,
    learning_rate=3e-3, flip=False,
)  # fmt: skip


@pytest.fixture(autouse=True)
def _small_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WIDTHS, "mini", (64, 2, 2))
    monkeypatch.setattr(methods, "MoCo", partial(MoCo, hidden_dim=256))


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    return write_catalog_of_waves(tmp_path_factory.mktemp("waves"), num_train=92, num_test=4)


def write_catalog_of_waves(folder: Path, *, num_train: int, num_test: int) -> Catalog:
    """Drifting waves in four directions, of any length, speed and colours; real MP4 files."""
    lines = ["path,label,split"]
    for number in range(num_train + num_test):
        label = number % NUM_CLASSES
        write_waves(folder / f"{number:03d}.mp4", label * math.pi / NUM_CLASSES, seed=number)
        split = "train" if number < num_train else "test"
        lines.append(f"{number:03d}.mp4,direction{label},{split}")
    (folder / "catalog.csv").write_text("\n".join(lines))
    return read_catalog(folder / "catalog.csv")


def write_waves(path: Path, angle: float, *, seed: int) -> None:
    random = np.random.default_rng(seed)
    rows, columns = np.mgrid[:36, :48]
    frequency, phase = math.pi / 32 * random.uniform(0.5, 1), random.uniform(0, 2 * math.pi)
    speed, colours = random.uniform(-0.3, 0.3), random.uniform(0, 255, (2, 3))
    along = columns * math.cos(angle) + rows * math.sin(angle)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=15)
        stream.width, stream.height, stream.pix_fmt = 48, 36, "yuv420p"
        stream.codec_context.thread_count = 1
        for time in range(12):
            wave = 0.5 + 0.5 * np.sin(frequency * along + phase + speed * time)[..., None]
            picture = (wave * colours[0] + (1 - wave) * colours[1]).astype(np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "epochs", "drop"),
    [("videomae", 300, 0.75), ("moco", 60, 0.5), ("sparse-moco", 60, 0.5)],
)
def test_the_loss_falls_and_a_linear_probe_of_the_features_rises(
    method: str, epochs: int, drop: float, tmp_path: Path
) -> None:
    waves = write_catalog_of_waves(tmp_path, num_train=96, num_test=96)
    config = replace(TINY, method=method, epochs=epochs, drop=drop, learning_rate=1e-3)
    untrained = replace(config, epochs=1, learning_rate=1e-9)
    before = train_backbone(waves, tmp_path / "untrained", untrained, device="cpu")
    after = train_backbone(waves, tmp_path / "trained", config, device="cpu")
    lines = (tmp_path / "trained" / "metrics.jsonl").read_text().splitlines()
    losses = [json.loads(line)["loss"] for line in lines]
    assert np.mean(losses[-3:]) < 0.9 * losses[0]
    assert linear_accuracy(after, waves, tmp_path) > linear_accuracy(before, waves, tmp_path) + 0.05


def linear_accuracy(backbone: Path, waves: Catalog, folder: Path) -> float:
    """The accuracy on test videos of a ridge regression on the training videos' features."""
    sampling = {"num_clips": 1, "num_times": 2, "num_crops": 1}
    store_folder = folder / f"store of {backbone.parent.name}"
    store = clipset.extract(waves, store_folder, backbone=str(backbone), sampling=sampling)
    features = np.asarray(store.regular.features, np.float64)
    features = features.reshape(len(waves), 2, -1).mean(axis=1)
    labels = np.array([video.label for video in waves])[:, None] == np.unique(
        [video.label for video in waves]
    )
    is_train = np.array([video.split == "train" for video in waves])
    features = StandardScaler().fit(features[is_train]).transform(features)
    ridge = Ridge(alpha=1.0).fit(features[is_train], labels[is_train])
    predictions = ridge.predict(features[~is_train])
    return float(np.mean(predictions.argmax(axis=1) == labels[~is_train].argmax(axis=1)))


def test_a_resumed_training_is_that_of_one_go(
    videos: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train_module, "CHECKPOINT_SECONDS", -1.0)
    config = replace(TINY, epochs=4)
    whole = train_backbone(videos, tmp_path / "whole", config, device="cpu")

    def stop_in_third_epoch(run: BackboneRun, step: int, views: Tensor) -> float:
        if step == 5:
            raise KeyboardInterrupt
        return plain_step(run, step, views)

    plain_step = BackboneRun._step
    monkeypatch.setattr(BackboneRun, "_step", stop_in_third_epoch)
    with pytest.raises(KeyboardInterrupt):
        train_backbone(videos, tmp_path / "stopped", config, device="cpu")
    monkeypatch.setattr(BackboneRun, "_step", plain_step)
    assert not (tmp_path / "stopped" / "backbone.safetensors").exists()
    other = replace(config, learning_rate=0.5)
    with pytest.raises(
        TrainingError, match=r"another run that was stopped at epoch 2 .learning_rat"
    ):
        train_backbone(videos, tmp_path / "stopped", other, device="cpu")
    resumed = train_backbone(videos, tmp_path / "stopped", config, device="cpu")
    for name, tensor in load_file(whole).items():
        torch.testing.assert_close(load_file(resumed)[name], tensor, rtol=0, atol=0)
    names = sorted(path.name for path in (tmp_path / "stopped").iterdir())
    assert names == [
        "backbone.safetensors",
        "half.safetensors",
        "metrics.jsonl",
        "quarter.safetensors",
    ]
    assert read_header(tmp_path / "stopped" / "half.safetensors").training["progress"] == 0.5
    written = resumed.stat().st_mtime_ns
    assert train_backbone(videos, tmp_path / "stopped", config, device="cpu") == resumed
    assert resumed.stat().st_mtime_ns == written


def test_minutes_end_a_training_and_mark_its_quarters(
    videos: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter(range(10_000))
    monkeypatch.setattr(train_module.time, "monotonic", lambda: float(next(now)))
    config = replace(TINY, epochs=None, minutes=0.5)
    training = read_header(train_backbone(videos, tmp_path, config, device="cpu")).training
    assert training["minutes"] >= 0.5
    assert training["progress"] == 1
    quarter, half = (
        read_header(tmp_path / f"{name}.safetensors").training for name in ("quarter", "half")
    )
    assert 0.25 <= quarter["progress"] < half["progress"] < 1
    assert 0 < quarter["steps"] < half["steps"] < training["steps"]


@pytest.mark.slow
def test_the_trained_file_is_a_backbone_of_the_other_verbs(
    videos: Catalog, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    catalog = videos.videos[0].path.parent / "catalog.csv"
    settings = ("vit=mini", "patch_size=8", "batch_size=46", "drop=0.75", "stride=4")
    changes = [f"--set={change}" for change in settings]
    words = ("--out", tmp_path / "vit", "--frames", 4, "--size", 32, "--epochs", 1, *changes)
    assert run("pretrain-backbone", catalog, *words, "--json", "--quiet") == 0
    result = json.loads(capfd.readouterr().out)
    assert (result["videos"], result["steps"], result["method"]) == (92, 2, "videomae")
    file = tmp_path / "vit" / "backbone.safetensors"
    tiny = ["--set=extract.workers=0", "--set=extract.engine=torch"]
    out = tmp_path / "store"
    assert run("extract", catalog, "--out", out, "--backbone", file, "--quiet", *tiny) == 0
    store = open_store(out)
    spec = store.manifest.backbone
    assert (spec.dim, spec.frames, spec.size) == (64, 4, 32)
    assert is_installed(str(file))
    load_recorded_backbone(spec, str(file))
    moved = file.rename(tmp_path / "moved.safetensors")
    assert not is_installed(str(file))
    load_recorded_backbone(spec, str(moved))
    assert load_backbone(str(moved), layers=(0, 1))[0].dim == 128
    with pytest.raises(BackboneError, match="needs a multiple of 2 frames and of 8 pixels, got 3"):
        load_backbone(str(moved), frames=3)


def test_files_that_are_no_backbones_are_refused_in_one_line(tmp_path: Path) -> None:
    save_file({"weight": torch.zeros(2)}, tmp_path / "plain.safetensors")
    with pytest.raises(BackboneError, match="does not say which network it belongs to"):
        load_backbone(str(tmp_path / "plain.safetensors"))
    header = {"clipset_backbone": '{"format": 1, "network": {"depth": 100000}, "spec": {}}'}
    save_file({"weight": torch.zeros(2)}, tmp_path / "hostile.safetensors", metadata=header)
    with pytest.raises(BackboneError, match="missing required field"):
        load_backbone(str(tmp_path / "hostile.safetensors"))
    with pytest.raises(BackboneError, match="not found"):
        load_backbone(str(tmp_path / "none.safetensors"))


def test_videos_that_cannot_be_read_are_named_and_left_out(
    videos: Catalog, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.mp4").write_bytes(b"no video")
    broken = replace(videos.videos[0], id="broken", path=tmp_path / "broken.mp4")
    request = FrameRequest(short_side=36, interval=0.1)
    pool = VideoPool([broken, *videos.videos[:3]], request, tmp_path)
    assert len(pool) == 3
    assert "broken is left out: " in capfd.readouterr().err
    assert pool.frames(1).pixels.shape == (8, 36, 48, 3)
    pool.close()
    with pytest.raises(TrainingError, match="at least 2 videos, 1 can be read"):
        VideoPool([broken, videos.videos[0]], request, tmp_path)


@pytest.mark.slow
def test_videos_without_room_are_read_again_when_needed(
    videos: Catalog,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    request = FrameRequest(short_side=36, interval=0.1)
    kept = VideoPool(videos.videos[:4], request, tmp_path)
    monkeypatch.setattr(frames_module, "DISK_FRACTION", 1e-9)
    again = VideoPool(videos.videos[:4], request, tmp_path)
    assert "of 4 videos fit into 0.0 GB" in capfd.readouterr().err
    for index in range(4):
        np.testing.assert_array_equal(kept.frames(index).pixels, again.frames(index).pixels)
    assert any(frames is None for frames in again.kept)
    assert not list(tmp_path.iterdir())  # the file has no name
    kept.close()
    again.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"drop": 1.0}, "with 1 nothing is seen"),
        ({"drop": 0.0}, "with 0 nothing is hidden"),
        ({"size": 100}, "a multiple of 2 frames and of 8 pixels, got 4 frames of 100 pixels"),
        ({"frames": 3}, "a multiple of 2 frames"),
        ({"epochs": 1, "minutes": 1.0}, "exclude each other"),
        ({"epochs": None, "minutes": 0.0}, "minutes must be more than 0"),
        ({"batch_size": 1}, "batch_size must be at least 2"),
    ],
)
def test_settings_that_cannot_work_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(TrainingError, match=message):
        replace(TINY, **change)


def test_a_batch_that_cannot_fit_is_refused_before_a_video_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    videos = tuple(Video(id=str(number), path=tmp_path / "missing.mp4") for number in range(64))
    monkeypatch.setattr(memory, "available_memory", lambda: 10**9)
    config = BackboneTraining(method="moco", vit="small", batch_size=32)
    message = (
        r"batches of 32 videos need about \d+\.\d GB, 1\.0 GB are free; batch_size (\d+) would"
    )
    with pytest.raises(TrainingError, match=message) as error:
        train_backbone(Catalog(name="many", videos=videos), tmp_path / "vit", config, device="cpu")
    fitting = int(str(error.value).split("batch_size ")[1].split()[0])
    assert memory.step_bytes("moco", config.network, drop=0.9, batch=fitting) <= 10**9
    assert memory.step_bytes("moco", config.network, drop=0.9, batch=fitting + 1) > 10**9
    assert list(tmp_path.iterdir()) == []
