"""Two real processes train one backbone and one set transformer together."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.conftest import write_video
from tests.end_to_end.tiny import write_vit
from tests.training.test_distributed import assert_same_model, run_two

from clipset import api
from clipset.end_to_end.pretrain import BACKBONE_FILE

PRETRAIN = """
import sys
from clipset.cli import main
videos, vit, out = sys.argv[1:]
options = "--epochs=2 --drop=0.5 --device=cpu --set=pretrain.batch_size=6 --set=extract.workers=0 "
options += "--set=pretrain.precision=float32 "
options += "--set=pretrain.clips_per_set=2 --set=pretrain.model.dropout=0 "
options += "--set=pretrain.model.width=32 --set=pretrain.model.num_layers=1"
main(["pretrain", "--end-to-end", videos, "--backbone", vit, "--out", out, *options.split()])
"""


@pytest.mark.slow
def test_two_ranks_train_what_one_trains_also_if_a_video_cannot_be_read(tmp_path: Path) -> None:
    vit, videos = write_vit(tmp_path), tmp_path / "videos"
    for number in range(11):
        write_video(videos / f"{number}.mp4", seed=number, seconds=0.5)
    (videos / "4.mp4").write_bytes(b"")
    outputs = run_two(PRETRAIN, str(videos), str(vit), str(tmp_path / "two"))
    assert [code for code, _, _ in outputs] == [0, 0], outputs
    api.pretrain_end_to_end(
        videos, tmp_path / "one", backbone=vit, drop=0.5, extract={"workers": 0}, epochs=2,
        batch_size=6, clips_per_set=2, precision="float32", device="cpu",
        model={"dropout": 0, "width": 32, "num_layers": 1},
    )  # fmt: skip
    assert_same_model(tmp_path / "one", tmp_path / "two")
    one, two = (load_file(tmp_path / name / BACKBONE_FILE) for name in ("one", "two"))
    before = load_file(vit)
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=1e-4, atol=1e-5)
        assert not torch.equal(value, before[name])
    assert outputs[0][2].count("left out 4.mp4: empty file") == 1
    assert outputs[1][2] == ""
