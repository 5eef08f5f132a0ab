"""A run is used on videos that it has never seen."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.conftest import SMALL, write_video

import clipset
from clipset.clips.sampling import WindowGrid
from clipset.data.catalog import read_catalog_table, write_catalog
from clipset.errors import BackboneError, ClipError, ConfigError, ModelError, ProbeError, StoreError
from clipset.inference.clips import list_new_videos
from clipset.inference.head import load_head
from clipset.inference.run import TrainedRun, embed_with_backbone, load_run
from clipset.probes.config import EvaluateConfig, ProbeName
from clipset.probes.registry import PROBES
from clipset.probes.transformer import SetClassifier
from clipset.representation import embed_store, read_vectors
from clipset.sets.reading import read_clips

COLOURS = ("red", "green", "blue")


@pytest.fixture(scope="module")
def new_videos(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Six new videos, two of each class, in the order of COLOURS."""
    folder = tmp_path_factory.mktemp("new")
    return [
        write_video(folder / f"new {number}.mp4", seed=100 + number, colour=number % 3)
        for number in range(6)
    ]


@pytest.fixture(scope="module")
def long_video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Red for six seconds, then blue for six."""
    import av

    path = tmp_path_factory.mktemp("long") / "long.mp4"
    rng = np.random.default_rng(0)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=12)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for number in range(144):
            picture = rng.integers(0, 60, (48, 64, 3), dtype=np.uint8)
            picture[..., 0 if number < 72 else 2] += 120
            picture[10:26, number % 48 : number % 48 + 16] = 250
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
    return path


def test_new_videos_get_their_labels(trained: TrainedRun, new_videos: list[Path]) -> None:
    found = trained.predict(new_videos)
    assert [each.label for each in found] == [COLOURS[number % 3] for number in range(6)]
    for each, path in zip(found, new_videos, strict=True):
        assert each.video == str(path)
        assert sorted(top.label for top in each.classes) == sorted(COLOURS)
        probabilities = [top.probability for top in each.classes]
        assert probabilities == sorted(probabilities, reverse=True)
        assert sum(probabilities) == pytest.approx(1, abs=1e-5)
        assert each.probability == probabilities[0] < 1
        assert each.timeline == ()


def test_only_as_many_labels_as_asked_for_come_back(
    trained: TrainedRun, new_videos: list[Path]
) -> None:
    [found] = trained.predict(new_videos[0], top=1)
    assert len(found.classes) == 1
    for top in (0, 1.5, float("inf"), float("nan")):
        with pytest.raises(
            ConfigError, match=f"top must be a whole number of at least 1, got {top}"
        ):
            trained.predict(new_videos, top=top)  # type: ignore[arg-type]


def test_a_file_that_cannot_be_read_says_why_and_the_others_go_on(
    trained: TrainedRun, new_videos: list[Path], tmp_path: Path
) -> None:
    broken = tmp_path / "broken.mp4"
    broken.write_bytes(b"no video")
    found = trained.predict([new_videos[0], broken, tmp_path / "gone.mp4", new_videos[1]])
    assert [each.label for each in found] == ["red", None, None, "green"]
    assert found[1].reason
    assert found[2].reason
    assert found[0].reason is None


def test_a_video_of_the_run_is_embedded_as_the_run_represents_it(
    trained: TrainedRun, run_folder: Path
) -> None:
    table = read_vectors(run_folder / "vectors")
    paths = {video.id: video.path for video in trained.catalog}
    wanted = [0, 7, 23]
    found = trained.embed([paths[table.video_ids[place]] for place in wanted])
    assert found.failed == {}
    np.testing.assert_allclose(found.vectors, table.vectors[wanted], atol=1e-6)
    np.testing.assert_allclose(found.pooled, table.pooled[wanted], atol=1e-6)


def test_the_parts_of_a_vector_can_be_chosen(trained: TrainedRun, new_videos: list[Path]) -> None:
    assert trained.model is not None
    for parts in (("set",), ("token", "clip")):
        found = trained.embed(new_videos[:1], parts=parts)
        encoder = trained.model.encoder
        widths = {"clip": encoder.project.in_features, "token": 32, "set": 32}
        assert found.vectors.shape == (1, 4, sum(widths[part] for part in parts))


def test_a_backbone_alone_embeds_without_a_run(trained: TrainedRun) -> None:
    video = trained.catalog.videos[5]
    found = embed_with_backbone(SMALL, [video.path])
    own = embed_store(trained.store, None)
    place = own.video_ids.index(video.id)
    np.testing.assert_array_equal(found.vectors[0], own.vectors[place])


def test_folders_and_catalogs_name_videos_too(
    trained: TrainedRun, small_videos: Path, run_folder: Path
) -> None:
    folder = trained.predict(small_videos / "red")
    assert [each.label for each in folder] == ["red"] * 8
    assert folder[0].video.startswith(str(small_videos / "red"))
    few = run_folder.parent / "few.csv"
    write_catalog(trained.catalog.only(trained.catalog.videos[:2]), few)
    found = trained.predict(few)
    assert [each.video for each in found] == [video.id for video in trained.catalog.videos[:2]]


def test_the_classifier_is_made_once_and_kept(
    trained: TrainedRun, run_folder: Path, new_videos: list[Path]
) -> None:
    first = trained.predict(new_videos)
    stamps = {path.name: path.stat().st_mtime_ns for path in (run_folder / "head").iterdir()}
    assert set(stamps) == {"head.json", "head.safetensors"}
    again = load_run(run_folder, workers=0)
    assert again.predict(new_videos) == first
    assert stamps == {p.name: p.stat().st_mtime_ns for p in (run_folder / "head").iterdir()}


def test_the_classifier_is_chosen_on_training_videos_only(trained: TrainedRun) -> None:
    card = trained.head.card
    train = trained.catalog.split("train")
    assert card.videos == len(train) == 18
    assert card.selected_on == "4 of 18 training videos (stratified)"
    assert tuple(each.probe for each in card.candidates) == EvaluateConfig().probes
    best = max(card.candidates, key=lambda candidate: candidate.rank)
    assert card.probe == best.probe
    assert card.calibration_error is not None
    assert (
        card.reason == f"the best of 11 probes, {best.accuracy:.1%} correct on {card.selected_on}"
    )


@pytest.mark.parametrize("probe", PROBES)
def test_every_probe_can_be_the_classifier(
    run_folder: Path, trained: TrainedRun, probe: ProbeName, tmp_path: Path
) -> None:
    """And a kept one answers as the fitted one did."""
    videos = list(range(6))
    clips = read_clips(trained.store, "regular", np.array(videos), trained.architecture)
    copied = tmp_path / "run"
    shutil.copytree(run_folder, copied, ignore=shutil.ignore_patterns("head*"))
    fitted = load_run(copied, workers=0, probe=probe).head
    assert fitted.card.probe == probe
    assert fitted.card.reason.startswith("the requested probe, ")
    kept = load_head(copied / f"head-{probe}", fitted.card.fingerprint)
    assert kept is not None
    assert kept.card == fitted.card
    found = fitted.predict(clips)
    torch.testing.assert_close(found.sum(dim=1), torch.ones(6))
    torch.testing.assert_close(kept.predict(clips), found, atol=1e-6, rtol=0)


def test_a_transformer_that_classifies_by_the_set_token_alone_is_kept_as_such(
    run_folder: Path, tmp_path: Path
) -> None:
    copied = tmp_path / "run"
    shutil.copytree(run_folder, copied, ignore=shutil.ignore_patterns("head*"))
    content = json.loads((copied / "run.json").read_text())
    content["recipe"]["evaluate"]["training"]["set_token_only"] = True
    (copied / "run.json").write_text(json.dumps(content))
    head = load_run(copied, workers=0, probe="finetune").head
    assert isinstance(head.network, SetClassifier)
    assert head.network.set_token_only
    kept = load_head(copied / "head-finetune", head.card.fingerprint)
    assert kept is not None
    assert isinstance(kept.network, SetClassifier)
    assert kept.network.set_token_only


def test_pretraining_goes_on_while_the_classifier_is_fine_tuned_if_the_recipe_says_so(
    run_folder: Path, trained: TrainedRun, tmp_path: Path
) -> None:
    clips = read_clips(trained.store, "regular", np.arange(6), trained.architecture)
    said = []
    for weight in (0.0, 0.1):
        copied = tmp_path / str(weight)
        shutil.copytree(run_folder, copied, ignore=shutil.ignore_patterns("head*"))
        content = json.loads((copied / "run.json").read_text())
        content["recipe"]["evaluate"]["training"]["joint_weight"] = weight
        (copied / "run.json").write_text(json.dumps(content))
        head = load_run(copied, workers=0, probe="finetune").head
        kept = load_head(copied / "head-finetune", head.card.fingerprint)
        assert kept is not None
        said.append(kept.predict(clips))
    assert not torch.allclose(*said)


def test_the_split_for_choices_chooses_and_calibrates_where_there_is_one(
    run_folder: Path, tmp_path: Path
) -> None:
    copied = tmp_path / "run"
    shutil.copytree(run_folder, copied, ignore=shutil.ignore_patterns("head*"))
    catalog = read_catalog_table(copied / "catalog.csv")
    train = [video.id for video in catalog if video.split == "train"]
    some = set(train[::3])
    split = (replace(v, split="val") if v.id in some else v for v in catalog)
    write_catalog(catalog.only(split), copied / "catalog.csv")
    card = load_run(copied, workers=0, probe="linear").head.card
    assert card.selected_on == "the 6 videos of the split 'val'"
    assert card.videos == 12
    assert card.calibration_error is not None
    alone = (replace(v, split="train" if v.split == "test" else v.split)
             for v in read_catalog_table(copied / "catalog.csv"))  # fmt: skip
    write_catalog(catalog.only(alone), copied / "catalog.csv")
    judged = load_run(copied, workers=0, probe="linear").head.card
    assert "training videos" in judged.selected_on  # the table is judged on `val`: it has no say


def test_a_row_that_needs_a_model_is_refused_where_there_is_none(
    run_folder: Path, tmp_path: Path
) -> None:
    copied = tmp_path / "run"
    shutil.copytree(run_folder, copied, ignore=shutil.ignore_patterns("head*", "model"))
    with pytest.raises(ProbeError, match=r"none of the probes \(scale_linear\) can predict"):
        load_run(copied, workers=0, probe="scale_linear").head  # noqa: B018
    with pytest.raises(
        ProbeError, match="unknown probe 'best'; known: attentive, course_knn, finetune"
    ):
        load_run(copied, workers=0, probe="best")


def test_labels_of_test_videos_do_not_change_the_classifier(
    run_folder: Path, trained: TrainedRun, tmp_path: Path
) -> None:
    copied = tmp_path / "run"
    shutil.copytree(run_folder, copied)
    shutil.rmtree(copied / "head", ignore_errors=True)
    catalog = read_catalog_table(copied / "catalog.csv")
    wrong = (replace(video, label="red") if video.split == "test" else video for video in catalog)
    write_catalog(catalog.only(wrong), copied / "catalog.csv")
    other = load_run(copied, workers=0).head
    assert other.card.candidates == trained.head.card.candidates
    for one, two in zip(other.network.parameters(), trained.head.network.parameters(), strict=True):
        assert torch.equal(one, two)


def test_new_labels_make_a_new_classifier(
    run_folder: Path, trained: TrainedRun, tmp_path: Path
) -> None:
    before = trained.head.card
    copied = tmp_path / "run"
    shutil.copytree(run_folder, copied)
    catalog = read_catalog_table(copied / "catalog.csv")
    renamed = (replace(v, label=f"very {v.label}") for v in catalog)
    write_catalog(catalog.only(renamed), copied / "catalog.csv")
    after = load_run(copied, workers=0).head.card
    assert before.classes == ("blue", "green", "red")
    assert after.classes == ("very blue", "very green", "very red")
    assert after.fingerprint != before.fingerprint


def test_a_broken_classifier_is_said_to_be_broken(
    run_folder: Path, trained: TrainedRun, tmp_path: Path
) -> None:
    assert trained.head
    copied = tmp_path / "run"
    shutil.copytree(run_folder, copied)
    (copied / "head" / "head.safetensors").write_bytes(b"nothing")
    with pytest.raises(ModelError, match="delete the folder"):
        load_run(copied, workers=0).head  # noqa: B018


def test_without_labels_one_can_embed_but_not_predict(
    run_folder: Path, new_videos: list[Path], tmp_path: Path
) -> None:
    copied = tmp_path / "run"
    shutil.copytree(run_folder, copied)
    catalog = read_catalog_table(copied / "catalog.csv")
    bare = (replace(video, label=None, split=None) for video in catalog)
    write_catalog(catalog.only(bare), copied / "catalog.csv")
    run = load_run(copied, workers=0)
    assert len(run.embed(new_videos[:1]).vectors) == 1
    with pytest.raises(ProbeError, match="predicting needs at least 2, embedding none"):
        run.predict(new_videos)
    numbers = (replace(video, label=None, target=float(n)) for n, video in enumerate(catalog))
    write_catalog(catalog.only(numbers), copied / "catalog.csv")
    with pytest.raises(ProbeError, match=r"have targets \(numbers\); predicting needs labels"):
        load_run(copied, workers=0).predict(new_videos)


def test_a_classifier_is_not_fitted_to_damaged_rows(
    run_folder: Path, new_videos: list[Path], tmp_path: Path
) -> None:
    copied = tmp_path / "run"
    shutil.copytree(run_folder, copied)
    shutil.rmtree(copied / "head", ignore_errors=True)
    rows = copied / "store" / "regular" / "features.npy"
    content = bytearray(rows.read_bytes())
    content[-1] ^= 1
    rows.write_bytes(content)
    with pytest.raises(StoreError, match=r"1 video of .* cannot be used .*`clipset repair "):
        load_run(copied, workers=0).predict(new_videos)
    assert not (copied / "head").exists()


def test_a_long_video_gets_a_timeline_by_itself(trained: TrainedRun, long_video: Path) -> None:
    [found] = trained.predict([long_video])
    assert found.timeline[0].start == 0
    assert found.timeline[-1].end == pytest.approx(12.0, abs=0.01)
    for moment in found.timeline:
        if moment.end < 5.9:
            assert moment.label == "red"
        if moment.start > 6.1:
            assert moment.label == "blue"
    assert trained.predict([long_video], timeline=False)[0].timeline == ()


def test_windows_have_the_length_and_step_that_were_asked_for(
    trained: TrainedRun, long_video: Path, new_videos: list[Path]
) -> None:
    found = trained.predict([long_video, new_videos[0]], window=4.0, step=3.0)
    spans = [(moment.start, moment.end) for moment in found[0].timeline]
    np.testing.assert_allclose(spans, [(0, 4), (3, 7), (6, 10), (8, 12)], atol=0.01)
    assert len(found[1].timeline) == 1
    with pytest.raises(ClipError, match="must be more than 0 s"):
        trained.predict([long_video], window=-1.0)


def test_a_window_over_the_whole_video_is_the_video(
    trained: TrainedRun, new_videos: list[Path]
) -> None:
    [video] = list_new_videos(new_videos[0]).videos
    [seen] = trained.reader.read([video])
    [window] = trained.reader.read_windows([video], WindowGrid(seen.duration, 1.0))
    assert seen.clips is not None
    assert window.clips is not None
    torch.testing.assert_close(window.clips.features, seen.clips.features, rtol=0, atol=0)
    torch.testing.assert_close(window.clips.boxes, seen.clips.boxes, rtol=0, atol=0)


def test_importing_clipset_is_light() -> None:
    code = "import sys, clipset; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
    assert clipset.load_run is load_run


def test_a_run_with_another_backbone_is_refused(
    run_folder: Path, new_videos: list[Path], tmp_path: Path
) -> None:
    copied = tmp_path / "run"
    shutil.copytree(run_folder, copied)
    manifest = json.loads((copied / "store" / "manifest.json").read_text())
    manifest["backbone"]["weights"]["sha256"] = "0" * 64
    (copied / "store" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BackboneError, match="efficientnet_lite0 is not the backbone"):
        load_run(copied, workers=0).embed(new_videos)
