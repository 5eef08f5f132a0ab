"""What an extraction will cost, before it is begun."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.conftest import SMALL
from tests.miniatures import make_clusters_small

from clipset.cli import main
from clipset.data.catalog import Catalog, Video, read_catalog
from clipset.errors import ConfigError, StoreError
from clipset.features.sprites import sprite_files
from clipset.features.store import FeatureStore
from clipset.planning import extraction_estimate
from clipset.planning.extraction_estimate import estimate_extraction, estimate_store
from clipset.planning.run_estimate import estimate_run
from clipset.recipe import Recipe, read_recipe
from clipset.training import budget, similar


def test_the_estimate_knows_the_bytes_exactly(
    small_store: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extraction_estimate, "WARM_SECONDS", 600.0)  # all videos, on a busy machine
    monkeypatch.setattr(extraction_estimate, "MEASURED_SECONDS", 600.0)
    cost = estimate_extraction(small_store.catalog, SMALL)
    files = list(small_store.folder.rglob("*.npy"))
    assert len(files) == 6
    assert cost.row_bytes == sum(path.stat().st_size for path in files)
    sprite_bytes = sum(path.stat().st_size for path in sprite_files(small_store.folder))
    assert 0.5 * sprite_bytes < cost.sprite_bytes < 2 * sprite_bytes
    assert cost.disk_bytes == cost.row_bytes + cost.sprite_bytes
    stored = estimate_store(small_store)
    assert (stored.row_bytes, stored.sprite_bytes) == (cost.row_bytes, sprite_bytes)
    assert (cost.videos, cost.clips, cost.sampled) == (24, 24 * 12, 24)
    assert cost.seconds > cost.start_seconds > 0
    assert cost.memory_bytes is None or cost.memory_bytes > 50 << 20


def test_features_of_twice_the_width_take_more(small_store: FeatureStore) -> None:
    catalog = small_store.catalog.only(small_store.catalog.videos[:2])
    cost = estimate_extraction(catalog, replace(SMALL, dtype="float32"))
    assert cost.row_bytes == 6 * 256 + 2 * 12 * 4 * (1280 + 7 + 2)


def test_the_verb_estimates_every_step_and_writes_nothing(
    small_videos: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["estimate", str(small_videos), "--json", "--videos", "2400", "--set=extract.frames=2"]
    words += [
        "--set=extract.size=32",
        "--set=extract.engine=torch",
        "--set=extract.sampling.num_clips=1",
    ]
    with pytest.raises(SystemExit, match="0"):
        main(words)
    result = json.loads(capsys.readouterr().out)
    assert (result["videos"], result["clips"]) == (2400, 2400 * 9)
    assert [step["name"] for step in result["steps"]] == [
        "extract",
        "pretrain",
        "embed",
        "evaluate",
        "report",
    ]
    assert all(step["seconds"] > 0 for step in result["steps"])
    assert result["free_bytes"] > 0
    assert list(tmp_path.iterdir()) == []


def test_a_store_has_no_extraction_and_given_speeds_are_used(small_store: FeatureStore) -> None:
    slow, fast = (
        estimate_run(small_store.folder, Recipe(), samples_per_second=speed)
        for speed in (10.0, 100.0)
    )
    assert [step.name for step in slow.steps] == ["pretrain", "embed", "evaluate", "report"]
    assert slow.steps[0].seconds == pytest.approx(10 * fast.steps[0].seconds)
    with pytest.raises(ConfigError, match="--machines must be above 0, got 0"):
        estimate_run(small_store.folder, Recipe(), num_machines=0)


def test_the_speed_of_another_backbone_engine_is_used(small_store: FeatureStore) -> None:
    catalog = small_store.catalog.only(small_store.catalog.videos[:3])
    cost = estimate_extraction(catalog, SMALL, clips_per_second=0.01)
    assert cost.seconds >= 36 / 0.01


def test_videos_that_cannot_be_read_on_the_way_do_not_end_an_estimate(
    small_videos: Path, tmp_path: Path
) -> None:
    readable = read_catalog(small_videos).videos[:2]
    (tmp_path / "broken.mp4").write_bytes(b"no video")
    broken = Video(id="broken", path=tmp_path / "broken.mp4")
    catalog = Catalog(name="some", videos=(readable[0], broken, readable[1]))
    cost = estimate_extraction(catalog, SMALL)
    assert (cost.videos, cost.sampled) == (3, 2)


def test_a_pre_training_that_may_end_early_is_estimated_at_most(
    small_store: FeatureStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["estimate", str(small_store.folder)]
    with pytest.raises(SystemExit, match="0"):
        main(words)
    assert "at most" not in capsys.readouterr().out  # too few videos to hold some out
    monkeypatch.setattr(budget, "MIN_HELD_OUT", 1)
    with pytest.raises(SystemExit, match="0"):
        main(words)
    assert "at most" not in capsys.readouterr().out  # a tenth of 18 is one, without a negative
    monkeypatch.setattr(budget, "HELD_OUT_PART", 0.2)
    with pytest.raises(SystemExit, match="0"):
        main(words)
    printed = capsys.readouterr().out
    assert "at most" in printed
    assert "pre-training ends earlier if the loss of held-out videos is flat" in printed


def test_the_features_of_a_store_decide_about_batches_of_similar_videos(
    small_store: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_clusters_small(monkeypatch)

    def estimate(*changes: str) -> tuple[float, bool]:
        recipe = read_recipe(None, (*changes, 'evaluate.probes=["knn"]'))
        result = estimate_run(small_store.folder, recipe, samples_per_second=100.0)
        return round(result.steps[0].seconds, 4), result.steps[0].at_most

    assert estimate("pretrain.batch_from=all") == (54.0, False)  # 300 steps of 18 videos
    assert estimate("pretrain.batch_from=similar") == (27.0, False)  # 300 steps of 9 videos
    assert estimate() == (27.0, False)
    monkeypatch.setattr(similar, "MAX_LABEL_EXCESS", -1.0)  # no clusters are worth it
    assert estimate() == (54.0, False)


def test_videos_without_features_may_form_other_batches_which_the_estimate_says(
    small_videos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_clusters_small(monkeypatch)
    words = ["extract.frames=1", "extract.size=32", "extract.engine=torch", "extract.workers=0"]
    words += ["extract.sampling.num_clips=1", 'evaluate.probes=["knn"]']
    for changes, other in ((["pretrain.epochs=3"], "any"), ([], "similar")):
        result = estimate_run(small_videos, read_recipe(None, words + changes))
        assert [step.name for step in result.steps if step.at_most] == ["pretrain"]
        assert result.notes == (
            f"pre-training takes less time if its batches are of {other} videos, "
            "which the features decide",
        )


def test_an_estimate_without_a_readable_video_says_why(tmp_path: Path) -> None:
    (tmp_path / "x.mp4").touch()
    with pytest.raises(StoreError, match=r"none of 1 videos could be read \(empty file\)"):
        estimate_extraction(read_catalog(tmp_path), SMALL)
