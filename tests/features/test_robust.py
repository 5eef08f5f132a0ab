"""What happens to the disk, to a worker or to the terminal does not happen to the store."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from jaxtyping import Float, UInt8
from tests.conftest import SMALL
from torch import Tensor

from clipset.backbones.registry import load_backbone
from clipset.backbones.runtime import PendingFeatures, TorchEngine, open_engine
from clipset.clips.decode import decode_video
from clipset.data.catalog import Catalog
from clipset.errors import BackboneError, StoreError, VideoError
from clipset.features import decode_pool, encode, writer
from clipset.features import extract as extraction
from clipset.features.decode_pool import DecodeResult
from clipset.features.encode import EncodedVideo, encode_videos
from clipset.features.extract import decode_request, extract
from clipset.features.store import FeatureStore, open_store, store_digest
from clipset.features.verify import verify_store

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def few(small_store: FeatureStore) -> Catalog:
    return small_store.catalog.only(small_store.catalog.videos[:6])


@pytest.fixture(scope="module")
def whole(few: Catalog, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return extract(few, tmp_path_factory.mktemp("whole") / "store", SMALL).folder


@pytest.mark.slow
@pytest.mark.parametrize("calls", [0, 1, 7, 20, 36])
def test_a_full_disk_stops_in_one_line_and_leaves_a_store_that_goes_on(
    calls: int, few: Catalog, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, left = os.pwrite, [calls]

    def pwrite(file: int, content: bytes, place: int) -> int:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(file, content, place)

    monkeypatch.setattr(os, "pwrite", pwrite)
    with pytest.raises(StoreError, match="No space left on device; finished videos are kept"):
        extract(few, tmp_path / "store", SMALL)
    monkeypatch.undo()
    assert all(id.endswith(".npy") for id, _ in verify_store(tmp_path / "store"))  # headers
    extract(few, tmp_path / "store", SMALL)
    assert store_digest(tmp_path / "store") == store_digest(whole)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("mount") is None, reason="no mount")
@pytest.mark.parametrize("kilobytes", [16, 48, 100])
def test_a_disk_that_is_really_full_leaves_a_store_that_goes_on(
    kilobytes: int, few: Catalog, whole: Path, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(disk)]
    if subprocess.run(words, capture_output=True, check=False).returncode:
        pytest.skip("only the superuser may mount a small disk")
    try:
        with pytest.raises(StoreError, match=r"cannot (write|be used)"):
            extract(few, disk / "store", SMALL)
        subprocess.run(["mount", "-o", "remount,size=10m", str(disk)], check=True)
        extract(few, disk / "store", SMALL)
        assert store_digest(disk / "store") == store_digest(whole)
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def start_extraction(
    catalog: Path, folder: Path, workers: int, *, slowly: float = 0.0
) -> subprocess.Popen[str]:
    """The command itself, in a session of its own; every video is committed at once."""
    program = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a background job ignores it
        "from clipset.features import extract, writer\n"
        "from clipset import cli\n"
        "writer.COMMIT_SECONDS = 0.0\n"
        "put = writer.StoreWriter.put\n"
        f"writer.StoreWriter.put = lambda *a: (put(*a), time.sleep({slowly}))\n"
        "cli.main(sys.argv[1:])\n"
    )
    size = ["--frames", "2", "--set=extract.stride=4", "--size", "32", "--set=extract.engine=torch"]
    clips = [
        "--set=extract.sampling.num_clips=8",
        "--set=extract.sampling.num_times=2",
        "--set=extract.sampling.num_crops=2",
    ]
    words = ["extract", str(catalog), "--out", str(folder), "--workers", str(workers)]
    return subprocess.Popen(
        [sys.executable, "-c", program, *words, *size, *clips, "--quiet"],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def count_done(folder: Path) -> int:
    try:
        return len(FeatureStore(folder)) if (folder / "ledger.sqlite").is_file() else 0
    except StoreError:
        return 0


def processes_of(session: int) -> list[str]:
    """The processes of a session that have not ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, its_session = path.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(its_session) == session and state != "Z":
            found.append(path.parent.name)
    return found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_ctrl_c_ends_with_130_without_orphans_and_the_store_goes_on(
    small_store: FeatureStore, tmp_path: Path
) -> None:
    folder = tmp_path / "store"
    process = start_extraction(small_store.folder / "catalog.csv", folder, 2, slowly=1.0)
    while process.poll() is None and count_done(folder) < 2:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said == "clipset: stopped; run the same command again to resume\n"
    assert processes_of(process.pid) == []
    assert 2 <= count_done(folder) < 24
    assert verify_store(folder) == []
    extract(small_store.catalog, folder, SMALL)
    assert store_digest(folder) == store_digest(small_store.folder)


BAD_WORKER = """
import ctypes, os, signal, sys, time
import numpy as np
import torch
from clipset.features import decode_pool
from clipset.data.catalog import Video
cut = decode_pool.decode_video

def spoilt(id, path, request, **options):
    if id.endswith("video 5.mp4"):
        os.kill(os.getpid(), signal.SIGSEGV)
    if id.endswith("video 8.mp4"):
        time.sleep(3600)
    if id.endswith("video 11.mp4"):
        np.ones(20 << 30, dtype=np.uint8)
    if id.endswith("video 14.mp4"):
        torch.ones(20 << 30, dtype=torch.uint8)
    if id.endswith("video 17.mp4"):
        raise ZeroDivisionError("a bug of ours")
    return cut(id, path, request, **options)

decode_pool.decode_video = spoilt
decode_pool.run_worker()
"""


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_workers_that_crash_hang_or_eat_memory_cost_only_their_video(
    workers: int, small_store: FeatureStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode_pool, "COMMAND", (sys.executable, "-c", BAD_WORKER))
    videos = small_store.catalog.videos[:8]  # blue: 2, 5, 8, 11, 14, 17, 20, 23
    names = sorted(video.id for video in videos)
    assert all(name.startswith("blue/") for name in names)
    catalog = small_store.catalog.only(videos)
    config = replace(SMALL, workers=workers, timeout=6.0)
    store = extract(catalog, tmp_path / "store", config)
    assert {entry.id: entry.reason for entry in store.failed} == {
        "blue/video 5.mp4": "the decoder crashed (SIGSEGV)",
        "blue/video 8.mp4": "took longer than 6 s",
        "blue/video 11.mp4": "needs more memory than one video may have",
        "blue/video 14.mp4": "needs more memory than one video may have",
        "blue/video 17.mp4": "ZeroDivisionError: a bug of ours",
    }
    assert len(store) == 3
    sums = {entry.id: entry.checksum for entry in small_store.entries}
    assert all(entry.checksum == sums[entry.id] for entry in store.entries)


class BrokenEngine(TorchEngine):
    """A backbone that breaks on one clip of the third video."""

    calls = 0

    def _run(self, clips: UInt8[Tensor, "B T 3 S S"]) -> Float[Tensor, "B ..."]:
        features = super()._run(clips)
        self.calls += 1
        if self.calls == 3:
            features[5] = torch.nan
        return features


def test_features_that_are_not_finite_stop_the_run_and_name_the_video(
    few: Catalog, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_broken(spec: object, network: object, **_: object) -> BrokenEngine:
        return BrokenEngine(spec, network, torch.device("cpu"))  # type: ignore[arg-type]

    monkeypatch.setattr(extraction, "open_engine", open_broken)
    with pytest.raises(BackboneError, match=f"^{few.videos[2].id}: .*not finite, for clip 5"):
        extract(few, tmp_path / "store", SMALL)
    monkeypatch.undo()
    assert count_done(tmp_path / "store") == 2
    extract(few, tmp_path / "store", SMALL)
    assert store_digest(tmp_path / "store") == store_digest(whole)


def test_a_card_that_sees_several_videos_at_once_gives_the_same_features(
    few: Catalog, whole: Path
) -> None:
    store = open_store(whole)
    spec, network = load_backbone("efficientnet_lite0", frames=2, stride=4, size=32)
    engine = open_engine(spec, network, device="cpu", engine="torch")
    sizes: list[int] = []
    run = engine._run
    engine.device = "cpu:0"  # not the name of the CPU
    engine._run = lambda clips: (sizes.append(len(clips)), run(clips))[1]  # type: ignore[method-assign]
    request = decode_request(store.manifest)
    cuts: list[DecodeResult] = [
        (place, cut)
        for place, video in enumerate(few)
        for cut in decode_video(video.id, video.path, request)
    ]
    cuts.insert(2, (6, VideoError("unreadable")))
    seen = dict(encode_videos(engine, cuts))
    assert sizes == [36, 36]  # three videos of 12 clips at a time
    assert str(seen.pop(6)) == "unreadable"
    for place, each in seen.items():
        assert isinstance(each, EncodedVideo)
        rows = store.random.row_indices(np.array([place]))[0]
        np.testing.assert_array_equal(
            each.rows.features[:8].astype(np.float16), store.random.features[rows]
        )


def test_the_seconds_of_the_videos_add_up_to_those_of_the_backbone(
    few: Catalog, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, network = load_backbone("efficientnet_lite0", frames=2, stride=4, size=32)
    engine = open_engine(spec, network, device="cpu", engine="torch")
    clock = [100.0]
    monkeypatch.setattr(encode.time, "perf_counter", lambda: clock[0])
    start = engine.start

    def start_slowly(clips: Tensor) -> PendingFeatures:  # as an engine whose requests are all busy
        clock[0] += 3.0
        return start(clips)

    monkeypatch.setattr(engine, "start", start_slowly)
    request = decode_request(open_store(whole).manifest)
    cuts = [
        (place, cut)
        for place, video in enumerate(few)
        for cut in decode_video(video.id, video.path, request)
    ]
    seen = [each for _, each in encode_videos(engine, cuts) if isinstance(each, EncodedVideo)]
    assert sum(each.seconds for each in seen) == 3.0 * len(few)


def test_features_can_be_stored_in_full_and_the_reader_knows(few: Catalog, tmp_path: Path) -> None:
    some = few.only(few.videos[:2])
    full = extract(some, tmp_path / "full", replace(SMALL, dtype="float32"))
    half = extract(some, tmp_path / "half", SMALL)
    assert full.manifest.dtype == "float32"
    assert (full.random.features.dtype, half.random.features.dtype) == (np.float32, np.float16)
    np.testing.assert_array_equal(full.regular.features.astype(np.float16), half.regular.features)
    assert (full.random.features != full.random.features.astype(np.float16)).any()


def test_features_too_large_for_the_number_type_stop_and_name_the_video() -> None:
    with pytest.raises(StoreError, match="x: a feature of 70000 is too large for float16"):
        writer.check_overflow(np.array([[1.0, -7e4]]), np.dtype("float16"), "x")
