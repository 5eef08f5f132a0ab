"""The table of vectors: its parts, its windows, and who can read it."""

import builtins
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save
from sklearn.linear_model import LogisticRegression

from clipset.checksums import seal
from clipset.cli import main
from clipset.errors import ConfigError, StoreError
from clipset.features.store import FeatureStore
from clipset.model.config import ModelConfig
from clipset.representation import (
    VectorTable,
    embed_store,
    encode_clips,
    parse_parts,
    read_vectors,
    write_vectors,
)
from clipset.representation.encode import cut_windows
from clipset.representation.time_course import COURSE_LENGTH, time_course, video_vectors
from clipset.sets.batch import ClipBatch
from clipset.sets.reading import paper_boxes
from clipset.training.checkpoint import ScaleModel

WINDOW = 0.5  # seconds; the small videos last 0.8 to 2 s


@pytest.fixture(scope="module")
def model(small_store: FeatureStore) -> ScaleModel:
    torch.manual_seed(0)
    config = ModelConfig(width=32, num_layers=1, projection_hidden=(32, 32), projection_dim=16)
    return ScaleModel(small_store.manifest.backbone.dim, config).eval()


def test_each_part_can_be_had_alone(small_store: FeatureStore, model: ScaleModel) -> None:
    alone = [
        embed_store(small_store, model.encoder, parts=parse_parts(p))
        for p in ("clip", "token", "set")
    ]
    together = embed_store(small_store, model.encoder, parts=parse_parts("clip,token,set"))
    assert [table.vectors.shape[2] for table in alone] == [1280, 32, 32]
    joined = np.concatenate([table.vectors for table in alone], axis=2)
    np.testing.assert_allclose(together.vectors, joined, atol=1e-6)
    assert np.ptp(alone[2].vectors, axis=1).max() == 0  # the set token is the same for all clips


@pytest.mark.parametrize("text", ["clip,view", "clip,clip", "", "clip set"])
def test_a_part_that_there_is_not_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="some of clip, token, set"):
        parse_parts(text)


def test_windows_share_out_a_videos_clips(small_store: FeatureStore) -> None:
    spans = cut_windows(small_store, WINDOW)
    for place, entry in enumerate(small_store.entries):
        whole, *windows = [span for span in spans if span.video_index == place]
        assert (whole.start, whole.end, whole.window_index) == (0.0, entry.duration, None)
        assert sorted(row for span in windows for row in span.row_indices) == sorted(
            whole.row_indices
        )
        for span in windows:
            assert span.end - span.start <= WINDOW + 1e-9
            for row in span.row_indices:
                start, end = small_store.regular.boxes[row, :2]
                assert span.start - 1e-5 <= (start + end) / 2 <= span.end + 1e-5
    with pytest.raises(StoreError, match="longer than 0 s"):
        cut_windows(small_store, 0.0)


def test_a_video_shorter_than_a_window_has_one_row(small_store: FeatureStore) -> None:
    table = embed_store(small_store, None, window=60.0)
    assert table.video_ids == small_store.ids
    assert set(table.windows) == {None}


def test_a_window_is_encoded_as_a_video_of_its_own(
    small_store: FeatureStore, model: ScaleModel
) -> None:
    table = embed_store(small_store, model.encoder, window=WINDOW)
    usual = embed_store(small_store, model.encoder)
    whole = [place for place, number in enumerate(table.windows) if number is None]
    np.testing.assert_allclose(table.pooled[whole], usual.pooled, atol=1e-5)
    spans = cut_windows(small_store, WINDOW)
    place = next(p for p, span in enumerate(spans) if span.window_index == 1)
    span, rows = spans[place], list(spans[place].row_indices)
    boxes = small_store.regular.boxes[rows].copy()[None]
    boxes[..., :2] = np.clip(boxes[..., :2] - span.start, 0, span.end - span.start)
    clips = ClipBatch(
        torch.from_numpy(small_store.regular.features[rows].astype(np.float32))[None],
        torch.from_numpy(paper_boxes(boxes, np.array([span.end - span.start]))),
    )
    by_hand = video_vectors(encode_clips(model.encoder, clips), None, table.part_widths)[0]
    np.testing.assert_allclose(table.pooled[place], by_hand.numpy(), atol=1e-5)


def test_what_is_written_is_read_again(
    small_store: FeatureStore, model: ScaleModel, tmp_path: Path
) -> None:
    for window in (None, WINDOW):
        table = embed_store(small_store, model.encoder, window=window)
        write_vectors(table, tmp_path)
        again = read_vectors(tmp_path)
        assert np.array_equal(again.vectors, table.vectors)
        for name in ("video_ids", "labels", "splits", "starts", "ends", "windows", "parts"):
            assert getattr(again, name) == getattr(table, name), name


def test_a_table_without_windows_is_read_and_one_without_checksum_is_not(tmp_path: Path) -> None:
    rows, path = b"id,label,split\na,x,train\nb,,\n", tmp_path / "vectors.safetensors"
    (tmp_path / "videos.csv").write_bytes(rows)
    plain = save({"vectors": np.ones((2, 3, 4), np.float32)})
    for content in (plain, seal(plain)):
        path.write_bytes(content)
        with pytest.raises(StoreError, match="has no checksum"):
            read_vectors(tmp_path)
    path.write_bytes(seal(plain, {"videos.csv": rows}))
    table = read_vectors(tmp_path)
    assert (table.video_ids, table.labels, table.splits) == (
        ("a", "b"),
        ("x", None),
        ("train", None),
    )
    assert (table.starts, table.windows, table.parts) == ((), (), ())


def test_one_line_reads_the_table(small_store: FeatureStore, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    table = embed_store(small_store, None)
    write_vectors(table, tmp_path)
    columns = parquet.read_table(tmp_path / "videos.parquet").to_pydict()
    assert columns["label"] == list(table.labels)
    np.testing.assert_array_equal(np.stack(columns["vector"]).astype(np.float32), table.pooled)
    pooled = load_file(tmp_path / "vectors.safetensors")["pooled"]
    assert LogisticRegression().fit(pooled, columns["label"]).score(pooled, columns["label"]) > 0.5
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_parquet(tmp_path / "videos.parquet")
    assert np.stack(frame["vector"]).shape == table.pooled.shape


def test_without_pyarrow_there_is_a_csv_and_no_stale_parquet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return plain(name, *rest)

    table = VectorTable(
        video_ids=("a",), labels=("x",), splits=(None,), vectors=np.ones((1, 2, 3), np.float32)
    )
    (tmp_path / "videos.parquet").write_bytes(b"old")
    monkeypatch.setattr(builtins, "__import__", without)
    write_vectors(table, tmp_path)
    monkeypatch.undo()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["vectors.safetensors", "videos.csv"]
    assert read_vectors(tmp_path).video_ids == ("a",)


def test_the_command_takes_parts_and_a_window(
    small_store: FeatureStore, model: ScaleModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model.save_pretrained(tmp_path / "model")
    words = ["embed", str(small_store.folder), "--out", str(tmp_path / "out"), "--json"]
    model_and_more = ["--model", str(tmp_path / "model"), "--parts", "token,set", "--window", "0.5"]
    with pytest.raises(SystemExit) as end:
        main([*words, *model_and_more])
    assert end.value.code == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["parts"], said["shape"][1:]) == (["token", "set"], [4, 64])
    assert said["shape"][0] > len(small_store)
    with pytest.raises(SystemExit):
        main([*words, "--parts", "set"])
    assert "needs a model; give one with --model" in capsys.readouterr().err


def test_a_table_of_the_users_own_is_not_replaced_by_vectors(
    small_store: FeatureStore, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["embed", str(small_store.folder), "--out", str(tmp_path), "--quiet"]
    table = tmp_path / "videos.csv"
    table.write_text("my,notes\n")
    with pytest.raises(SystemExit, match="2"):
        main(words)
    assert f"{table} exists, and clipset did not write it; use another" in capfd.readouterr().err
    assert table.read_text() == "my,notes\n"
    table.unlink()
    for _ in range(2):  # its own it replaces
        with pytest.raises(SystemExit, match="0"):
            main(words)


def test_a_time_course_tells_what_happens_when() -> None:
    generator = torch.Generator().manual_seed(0)
    clips = torch.randn(2, 16, 5, generator=generator)
    by_hand = []
    for video in clips:
        times = [video[2 * time : 2 * time + 2].mean(dim=0) for time in range(COURSE_LENGTH)]
        mean = sum(times) / COURSE_LENGTH
        deviations = torch.cat([time - mean for time in times])
        by_hand.append(torch.cat([mean / mean.norm(), deviations / deviations.norm()]))
    torch.testing.assert_close(time_course(clips), torch.stack(by_hand))
    backwards = time_course(clips.flip(1))
    torch.testing.assert_close(backwards[:, :5], time_course(clips)[:, :5])
    assert not torch.allclose(backwards, time_course(clips))


@pytest.mark.parametrize("num_clips", [1, 5, 8, 15, 200])
def test_any_number_of_clips_has_a_time_course(num_clips: int) -> None:
    still = torch.ones(1, num_clips, 3)
    assert time_course(still).shape == (1, 3 * (1 + COURSE_LENGTH))
    assert time_course(still)[0, 3:].abs().max() == 0  # nothing happens


def test_refined_tokens_weigh_half_as_much_as_features_in_the_vector_of_a_video() -> None:
    clips = torch.randn(3, 9, 6, generator=torch.Generator().manual_seed(1))
    features, tokens = clips.split((4, 2), dim=-1)
    expected = torch.cat([time_course(features), 0.5 * time_course(tokens)], dim=1)
    torch.testing.assert_close(video_vectors(clips, None, (4, 2)), expected)


def test_padding_does_not_change_a_time_course() -> None:
    clips = torch.randn(3, 9, 6, generator=torch.Generator().manual_seed(1))
    valid = torch.arange(9) < torch.tensor([9, 4, 9])[:, None]
    vectors = video_vectors(clips, valid, (4, 2))
    alone = video_vectors(clips[1:2, :4], None, (4, 2))
    torch.testing.assert_close(vectors[1:2], alone)
    assert vectors.shape == (3, 6 * (1 + COURSE_LENGTH))
