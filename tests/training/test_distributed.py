"""Several real processes that train one model together."""

import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from clipset.errors import TrainingError
from clipset.features.store import FeatureStore
from clipset.model.config import ModelConfig
from clipset.training.config import PretrainConfig
from clipset.training.distributed import ProcessGroup
from clipset.training.pretrain import pretrain, training_videos

ROOT = Path(__file__).parents[2]
SMALL = PretrainConfig(
    model=ModelConfig(
        width=32, num_layers=1, projection_hidden=(32, 32), projection_dim=16, dropout=0.0
    ),
    epochs=4,
    batch_size=7,
    clips_per_set=4,
    precision="float32",  # exact comparisons, also where a processor has bfloat16
)
PRETRAIN = """
import os, signal, sys
from pathlib import Path
from clipset.cli import main
from clipset.training import trainer
epoch = trainer.PretrainingRun._epoch
trainer.CHECKPOINT_SECONDS = 0.0

def killed_once(run):
    if "killed" in sys.argv and run.processes.rank == 1 and run.epoch == 2:
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
    return epoch(run)

trainer.PretrainingRun._epoch = killed_once
options = "--epochs=4 --set=pretrain.batch_size=7 "
options += "--set=pretrain.precision=float32 "
options += "--set=pretrain.clips_per_set=4 --set=pretrain.model.dropout=0 "
options += "--set=pretrain.model.width=32 --set=pretrain.model.num_layers=1 "
options += "--set=pretrain.model.projection_hidden=[32,32] --set=pretrain.model.projection_dim=16"
if "nowhere" in sys.argv:
    try:
        main(["pretrain", sys.argv[1] + "/nowhere", "--out", sys.argv[2], "--device", "cpu"])
    except SystemExit as end:
        assert end.code == 2
main(["pretrain", sys.argv[1], "--out", sys.argv[2], "--device", "cpu", *options.split()])
"""

STOPPED_RANK = """
import os
from clipset.training.distributed import join_process_group

with join_process_group("cpu") as processes:
    processes.barrier()
    if processes.rank == 1:
        os._exit(7)
    while True:
        processes.barrier()
"""
LIST_THREADS = """
import atexit
from pathlib import Path

def list_threads():
    print([(thread / "comm").read_text() for thread in Path("/proc/self/task").iterdir()])

atexit.register(list_threads)
"""


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def start(rank: int, port: str, code: str, *arguments: str) -> subprocess.Popen[str]:
    world = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank)}
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env=os.environ | world | address,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_two(code: str, *arguments: str) -> list[tuple[int, str, str]]:
    port = free_port()
    children = [start(rank, port, code, *arguments) for rank in range(2)]
    outputs = [child.communicate(timeout=500) for child in children]
    return [(child.returncode, *output) for child, output in zip(children, outputs, strict=True)]


def lines(folder: Path) -> list[dict[str, float]]:
    return [msgspec.json.decode(x) for x in (folder / "metrics.jsonl").read_bytes().splitlines()]


@pytest.fixture(scope="module")
def alone(small_store: FeatureStore, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model of one process."""
    folder = tmp_path_factory.mktemp("alone")
    pretrain(small_store, folder, SMALL)
    return folder


def assert_same_model(one: Path, two: Path) -> None:
    first, second = load_file(one / "model.safetensors"), load_file(two / "model.safetensors")
    assert set(first) == set(second)
    for name, value in first.items():
        torch.testing.assert_close(second[name], value, rtol=1e-4, atol=1e-5)
    for expected, metrics in zip(lines(one), lines(two), strict=True):
        for name in set(expected) - {"seconds", "samples_per_second", "spread", "effective_rank"}:
            assert metrics[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-5), name


@pytest.mark.slow
def test_two_ranks_learn_what_one_learns_and_end_together_with_one_line(
    small_store: FeatureStore, tmp_path: Path, alone: Path
) -> None:
    outputs = run_two(PRETRAIN, str(small_store.folder), str(tmp_path), "nowhere")
    assert [code for code, _, _ in outputs] == [0, 0], outputs
    assert_same_model(alone, tmp_path)
    assert [out != "" for _, out, _ in outputs] == [True, False]  # the first rank speaks for all
    assert outputs[0][2].count("not a feature store") == 1
    assert outputs[1][2] == ""


@pytest.mark.slow
def test_torchrun_starts_again_from_the_last_checkpoint(
    small_store: FeatureStore, tmp_path: Path, alone: Path
) -> None:
    (tmp_path / "train.py").write_text(PRETRAIN, "utf-8")
    options = ["--nproc-per-node", "2", "--max-restarts", "1", "--master-port", free_port()]
    arguments = [str(small_store.folder), str(tmp_path / "model"), "killed"]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            *options,
            str(tmp_path / "train.py"),
            *arguments,
        ],
        env=os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "SIGKILL" in done.stderr or "-9" in done.stderr
    assert_same_model(alone, tmp_path / "model")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are not listed")
@pytest.mark.parametrize(
    ("code", "codes"), [(PRETRAIN, [0, 0]), (STOPPED_RANK, [1, 7])], ids=["trained", "broken off"]
)
def test_no_thread_of_the_group_is_left_at_the_end(
    code: str, codes: list[int], small_store: FeatureStore, tmp_path: Path
) -> None:
    """One that lets go of a tensor while Python ends would abort the process."""
    outputs = run_two(LIST_THREADS + code, str(small_store.folder), str(tmp_path))
    assert [code for code, _, _ in outputs] == codes, outputs
    assert "python" in outputs[0][1]
    assert not any("gloo" in out or "tcpstore" in out for _, out, _ in outputs)


def test_the_parts_of_the_ranks_cover_a_batch_and_do_not_overlap() -> None:
    for count in (7, 8, 9):
        parts = [ProcessGroup(rank, 4, torch.device("cpu")).shard(count) for rank in range(4)]
        assert np.concatenate([np.arange(count)[part] for part in parts]).tolist() == list(
            range(count)
        )
        sizes = [part.stop - part.start for part in parts]
        assert max(sizes) - min(sizes) <= 1


def test_more_ranks_than_videos_are_refused(small_store: FeatureStore) -> None:
    ranks = ProcessGroup(0, 3, torch.device("cpu"))
    with pytest.raises(TrainingError, match="start fewer processes"):
        training_videos(small_store, replace(SMALL, batch_size=2), ranks)
