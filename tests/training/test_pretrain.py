"""Pre-training on a small real store."""

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from clipset.data.catalog import write_catalog
from clipset.errors import ModelError, TrainingError
from clipset.features.store import FeatureStore, open_store
from clipset.model.config import ModelConfig
from clipset.training.checkpoint import load_model, read_card
from clipset.training.config import PretrainConfig
from clipset.training.distributed import ProcessGroup
from clipset.training.pretrain import open_clip_source, pretrain, ssl_videos, training_videos

SMALL = PretrainConfig(
    model=ModelConfig(width=32, num_layers=1, projection_hidden=(32, 32), projection_dim=16),
    epochs=12,
    batch_size=8,
    clips_per_set=4,
)


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def test_the_loss_falls_and_every_epoch_leaves_a_line(
    small_store: FeatureStore, tmp_path: Path
) -> None:
    pretrain(small_store, tmp_path, replace(SMALL, epochs=40))
    lines = [msgspec.json.decode(x) for x in (tmp_path / "metrics.jsonl").read_bytes().splitlines()]
    assert [line["epoch"] for line in lines] == list(range(1, 41))
    assert np.mean([x["loss"] for x in lines[-5:]]) < np.mean([x["loss"] for x in lines[:5]])
    assert {"masked_clip", "set_contrast", "masked_clip_accuracy", "gradient_norm"} <= set(lines[0])


def test_the_same_seed_gives_the_same_weights_and_another_seed_others(
    small_store: FeatureStore, tmp_path: Path
) -> None:
    for name, seed in (("one", 0), ("two", 0), ("three", 1)):
        pretrain(small_store, tmp_path / name, SMALL, seed=seed)
    assert weights(tmp_path / "one") == weights(tmp_path / "two")
    assert weights(tmp_path / "one") != weights(tmp_path / "three")


KILLED = """
import sys
from pathlib import Path
from clipset.features.store import open_store
from clipset.training import trainer
from clipset.training.pretrain import pretrain
from tests.training.test_pretrain import SMALL
trainer.CHECKPOINT_SECONDS = 0.0
pretrain(open_store(Path(sys.argv[1])), Path(sys.argv[2]), SMALL)
"""


def test_a_killed_run_goes_on_and_ends_with_the_same_weights(
    small_store: FeatureStore, tmp_path: Path
) -> None:
    pretrain(small_store, tmp_path / "whole", SMALL)
    root = Path(__file__).parents[2]
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(small_store.folder), str(tmp_path / "killed")],
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root)},
    )
    while child.poll() is None and not any(tmp_path.glob("killed/checkpoints/*")):
        time.sleep(0.002)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert not (tmp_path / "killed" / "model.json").exists()
    pretrain(small_store, tmp_path / "killed", SMALL)
    assert weights(tmp_path / "killed") == weights(tmp_path / "whole")
    lines = (tmp_path / "killed" / "metrics.jsonl").read_bytes().splitlines()
    assert [msgspec.json.decode(line)["epoch"] for line in lines] == list(range(1, 13))


def test_what_is_trained_is_not_trained_again(small_store: FeatureStore, tmp_path: Path) -> None:
    pretrain(small_store, tmp_path, SMALL)
    stamp = (tmp_path / "model.safetensors").stat().st_mtime_ns
    pretrain(small_store, tmp_path, SMALL)
    assert (tmp_path / "model.safetensors").stat().st_mtime_ns == stamp
    pretrain(small_store, tmp_path, replace(SMALL, epochs=13))
    assert (tmp_path / "model.safetensors").stat().st_mtime_ns != stamp


def test_test_videos_are_not_learned_from_unless_asked(small_store: FeatureStore) -> None:
    splits = {video.id: video.split for video in small_store.catalog}
    learned = {splits[small_store.ids[index]] for index in ssl_videos(small_store, "train")}
    assert learned == {"train"}
    assert len(ssl_videos(small_store, "all")) == len(small_store)


def test_a_saved_model_comes_back_as_it_was(small_store: FeatureStore, tmp_path: Path) -> None:
    model = pretrain(small_store, tmp_path, SMALL)
    again = load_model(tmp_path)
    assert again.card.videos == len(ssl_videos(small_store, "train"))
    for name, value in model.state_dict().items():
        assert torch.equal(value, again.state_dict()[name])


def test_a_broken_or_missing_model_is_one_clear_line(
    small_store: FeatureStore, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match="clipset pretrain"):
        read_card(tmp_path)
    pretrain(small_store, tmp_path, replace(SMALL, epochs=1))
    content = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(content[: len(content) // 2])
    with pytest.raises(ModelError, match="is damaged: its checksum is another"):
        load_model(tmp_path)


def test_too_few_clips_or_videos_are_refused_before_any_work(
    small_store: FeatureStore, tmp_path: Path
) -> None:
    with pytest.raises(TrainingError, match="two sets of 5 need 10 clips"):
        pretrain(small_store, tmp_path, replace(SMALL, clips_per_set=5))
    with pytest.raises(TrainingError, match="between 0 and 1"):
        replace(SMALL, mask_ratio=1.0)


def with_groups(store: FeatureStore, names: list[str | None], folder: Path) -> FeatureStore:
    groups = dict(zip(store.ids, names, strict=True))
    videos = [replace(video, group=groups.get(video.id)) for video in store.catalog]
    shutil.copytree(store.folder, folder)
    write_catalog(store.catalog.only(videos), folder / "catalog.csv")
    return open_store(folder)


def test_batches_can_be_of_one_group_each(small_store: FeatureStore, tmp_path: Path) -> None:
    names: list[str | None] = ["anna" if index % 3 else "ben" for index in range(len(small_store))]
    store = with_groups(small_store, names, tmp_path / "store")
    config = replace(SMALL, ssl_split="all", batch_from="group")
    source = open_clip_source(store, np.arange(len(store)), config)
    batches = list(
        source.batches(
            config, torch.Generator().manual_seed(0), ProcessGroup(0, 1, torch.device("cpu"))
        )
    )
    assert len(batches) == source.batches_in_epoch(config)
    assert sum(size for size, _ in batches) == len(store)
    pretrain(store, tmp_path / "model", config)
    pretrain(store, tmp_path / "mixed", replace(config, batch_from="all"))
    assert weights(tmp_path / "model") != weights(tmp_path / "mixed")


@pytest.mark.parametrize(
    ("first", "reason"),
    [(None, "1 of .* have none"), ("alone", "'alone' has one")],
)
def test_batches_of_one_group_need_groups_of_several_videos(
    small_store: FeatureStore, tmp_path: Path, first: str | None, reason: str
) -> None:
    names = [first, *["anna"] * (len(small_store) - 1)]
    store = with_groups(small_store, names, tmp_path / "store")
    with pytest.raises(TrainingError, match=reason):
        pretrain(store, tmp_path / "m", replace(SMALL, ssl_split="all", batch_from="group"))


def test_ranks_that_cannot_share_the_smallest_batch_of_a_group_are_refused(
    small_store: FeatureStore, tmp_path: Path
) -> None:
    videos = len(small_store)
    names: list[str | None] = ["anna"] * (videos - 5) + ["ben"] * 5
    store = with_groups(small_store, names, tmp_path / "store")
    config = replace(
        SMALL, ssl_split="all", batch_from="group", batch_size=4
    )  # ben: 3 and 2 videos
    processes = ProcessGroup(0, 3, torch.device("cpu"))
    with pytest.raises(TrainingError, match="batches of 4 of 5 videos"):
        training_videos(store, config, processes)
    assert len(training_videos(store, config, ProcessGroup(0, 2, torch.device("cpu")))) == videos
