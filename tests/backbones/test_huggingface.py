"""Models of Hugging Face are fed and pooled as their type wants, from folders saved on disk."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from clipset.backbones.huggingface_files import read_preprocessing
from clipset.backbones.registry import find_backbone, load_backbone
from clipset.clips.config import Sampling
from clipset.errors import BackboneError, StoreError
from clipset.features.extract import load_network, name_to_load
from clipset.features.store import Manifest

transformers: Any = pytest.importorskip("transformers")
transformers.utils.logging.disable_progress_bar()

GOLDEN = Path(__file__).parents[1] / "golden"
IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
SHAPE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "image_size": 32,
}
PATCHED = SHAPE | {"patch_size": 16}
WORDS = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 50,
    "max_position_embeddings": 8,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
PRISM = {
    "hidden_size": 32,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "image_size": 36,
    "num_frames": 4,
    "num_spatial_layers": 1,
    "num_temporal_layers": 1,
    "num_auxiliary_layers": 1,
}
JEPA = {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "crop_size": 32,
    "patch_size": 16,
    "frames_per_clip": 4,
    "pred_hidden_size": 24,
    "pred_num_attention_heads": 2,
    "pred_num_hidden_layers": 1,
    "pred_num_mask_tokens": 2,
    "num_pooler_layers": 1,
}


def save(folder: Path, model: Any, **preprocessor: Any) -> str:
    """Save a random model and its preprocessor file; the name by which it is loaded."""
    model.save_pretrained(folder)
    settings = {"size": 32} | IMAGENET | preprocessor
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return f"hf:{folder}"


def make(model: str, config: str, **settings: Any) -> Any:
    torch.manual_seed(0)
    network = getattr(transformers, model)(getattr(transformers, config)(**settings))
    for tensor in network.parameters():  # some parts start at zero and would hide a mistake
        nn.init.normal_(tensor, std=0.3)
    return network.eval()


def clips(frames: int, size: int = 32) -> Tensor:
    return torch.randn(2, frames, 3, size, size, generator=torch.Generator().manual_seed(1))


def run(network: nn.Module, pixels: Tensor) -> Tensor:
    with torch.inference_mode():
        return network(pixels)


def frame_by_frame(pooled: Callable[[Tensor], Tensor], pixels: Tensor) -> Tensor:
    return torch.stack([pooled(frames) for frames in pixels.unbind(1)]).mean(dim=0)


VIDEO_MODELS: list[tuple[str, str, dict[str, Any], Callable[[Any, Tensor], Tensor]]] = [
    (
        "VideoMAEModel",
        "VideoMAEConfig",
        PATCHED | {"num_frames": 4, "use_mean_pooling": False},
        lambda model, x: model(x).last_hidden_state.mean(1),
    ),
    (
        "VideoMAEForPreTraining",
        "VideoMAEConfig",
        PATCHED
        | {"num_frames": 4, "use_mean_pooling": False}
        | {"decoder_hidden_size": 16, "decoder_num_attention_heads": 2}
        | {"decoder_intermediate_size": 32, "decoder_num_hidden_layers": 1},
        lambda model, x: model.videomae(x).last_hidden_state.mean(1),
    ),
    (
        "VideoMAEForVideoClassification",
        "VideoMAEConfig",
        PATCHED | {"num_frames": 4, "use_mean_pooling": True},
        lambda model, x: model.fc_norm(model.videomae(x).last_hidden_state.mean(1)),
    ),
    (
        "TimesformerForVideoClassification",
        "TimesformerConfig",
        PATCHED | {"num_frames": 4},
        lambda model, x: model.timesformer(x).last_hidden_state[:, 0],
    ),
    (
        "VivitForVideoClassification",
        "VivitConfig",
        SHAPE | {"num_frames": 4, "tubelet_size": [2, 16, 16]},
        lambda model, x: model.vivit(x).last_hidden_state[:, 0],
    ),
    (
        "VJEPA2Model",
        "VJEPA2Config",
        JEPA,
        lambda model, x: model(x, skip_predictor=True).last_hidden_state.mean(1),
    ),
    (
        "VJEPA2ForVideoClassification",
        "VJEPA2Config",
        JEPA,
        lambda model, x: model.vjepa2(x, skip_predictor=True).last_hidden_state.mean(1),
    ),
    (
        "VideoPrismVisionModel",
        "VideoPrismVisionConfig",
        PRISM,
        lambda model, x: model(x).last_hidden_state.mean(1),
    ),
    (
        "VideoPrismClipModel",
        "VideoPrismConfig",
        {"vision_config": PRISM, "text_config": WORDS},
        lambda model, x: model.video_model(x).pooler_output[:, 0],
    ),
]

IMAGE_MODELS: list[tuple[str, str, dict[str, Any], Callable[[Any, Tensor], Tensor]]] = [
    ("Dinov2Model", "Dinov2Config", PATCHED, lambda model, x: model(x).last_hidden_state[:, 0]),
    (
        "Dinov2ForImageClassification",
        "Dinov2Config",
        PATCHED,
        lambda model, x: model.dinov2(x).last_hidden_state[:, 0],
    ),
    (
        "Dinov2WithRegistersModel",
        "Dinov2WithRegistersConfig",
        PATCHED,
        lambda model, x: model(x).last_hidden_state[:, 0],
    ),
    (
        "DINOv3ViTModel",
        "DINOv3ViTConfig",
        PATCHED,
        lambda model, x: model(x).last_hidden_state[:, 0],
    ),
    (
        "CLIPModel",
        "CLIPConfig",
        {"vision_config": PATCHED, "text_config": WORDS},
        lambda model, x: model.vision_model(x).pooler_output,
    ),
    ("CLIPVisionModel", "CLIPVisionConfig", PATCHED, lambda model, x: model(x).pooler_output),
    (
        "SiglipModel",
        "SiglipConfig",
        {"vision_config": PATCHED, "text_config": WORDS},
        lambda model, x: model.vision_model(x).pooler_output,
    ),
    (
        "ViTForImageClassification",
        "ViTConfig",
        PATCHED,
        lambda model, x: model.vit(x).last_hidden_state[:, 0],
    ),
    (  # a type that clipset has no line for
        "ConvNextModel",
        "ConvNextConfig",
        {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2, "image_size": 32},
        lambda model, x: model(x).pooler_output,
    ),
]


@pytest.mark.parametrize(
    ("model", "config", "settings", "pooled"), VIDEO_MODELS, ids=[line[0] for line in VIDEO_MODELS]
)
def test_a_video_model_is_pooled_as_its_type_wants(
    tmp_path: Path, model: str, config: str, settings: Any, pooled: Any
) -> None:
    network = make(model, config, **settings)
    size = 36 if "Prism" in model else 32
    spec, backbone = load_backbone(save(tmp_path, network, size=size))
    assert (spec.frames, spec.size) == (4, size)
    pixels = clips(4, size)
    with torch.inference_mode():
        expected = pooled(network, pixels)
    torch.testing.assert_close(run(backbone, pixels), expected, atol=1e-5, rtol=0)
    assert expected.shape == (2, spec.dim)


@pytest.mark.parametrize(
    ("model", "config", "settings", "pooled"), IMAGE_MODELS, ids=[line[0] for line in IMAGE_MODELS]
)
def test_an_image_model_is_averaged_over_the_frames(
    tmp_path: Path, model: str, config: str, settings: Any, pooled: Any
) -> None:
    network = make(model, config, **settings)
    spec, backbone = load_backbone(save(tmp_path, network), frames=3)
    pixels = clips(3)
    with torch.inference_mode():
        expected = frame_by_frame(lambda frames: pooled(network, frames), pixels)
    torch.testing.assert_close(run(backbone, pixels), expected, atol=1e-5, rtol=0)
    assert expected.shape == (2, spec.dim)


def dinov2(folder: Path, **preprocessor: Any) -> str:
    return save(folder, make("Dinov2Model", "Dinov2Config", **PATCHED), **preprocessor)


def test_a_loaded_model_is_frozen_and_its_weights_are_known_by_their_hash(tmp_path: Path) -> None:
    spec, backbone = load_backbone(dinov2(tmp_path))
    assert not any(tensor.requires_grad for tensor in backbone.parameters())
    assert not backbone.training
    assert spec.weights.sha256 is not None


def test_the_golden_hugging_face_files_give_the_golden_features(tmp_path: Path) -> None:
    for folder, expected in (("videomae_pretrain", "expected"), ("videomae_finetuned", "expected")):
        copy = tmp_path / folder
        copy.mkdir()
        for file in (GOLDEN / folder / "hf").iterdir():
            (copy / file.name).write_bytes(file.read_bytes())
        (copy / "preprocessor_config.json").write_text(json.dumps({"size": 64} | IMAGENET))
        _, backbone = load_backbone(f"hf:{copy}")
        with np.load(GOLDEN / folder / "golden.npz") as golden:
            found = run(backbone, torch.from_numpy(golden["input"]).transpose(1, 2))
            wanted = torch.from_numpy(golden[expected])
        torch.testing.assert_close(found, wanted, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("size", "pixels", "expected"),
    [(70, "input", "expected_per_frame"), (56, "input_56px", "expected_hf_per_frame_56px")],
)
def test_the_golden_dinov2_gives_the_golden_features_and_resizes_by_the_rule_of_hugging_face(
    tmp_path: Path, size: int, pixels: str, expected: str
) -> None:
    for file in (GOLDEN / "dinov2_vits14" / "hf").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"size": 70} | IMAGENET))
    _, backbone = load_backbone(f"hf:{tmp_path}", frames=4, size=size)
    with np.load(GOLDEN / "dinov2_vits14" / "golden.npz") as golden:
        found = run(backbone, torch.from_numpy(golden[pixels]).transpose(1, 2))
        wanted = torch.from_numpy(golden[expected]).mean(dim=1)
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=0)


def test_v_jepa_2_turns_by_the_real_grid_at_another_size(tmp_path: Path) -> None:
    network = make("VJEPA2Model", "VJEPA2Config", **JEPA)
    _, backbone = load_backbone(save(tmp_path, network), frames=6, size=48)
    grown = make("VJEPA2Model", "VJEPA2Config", **JEPA | {"crop_size": 48, "frames_per_clip": 6})
    with torch.inference_mode():
        expected = grown(clips(6, 48), skip_predictor=True).last_hidden_state.mean(1)
        kept = network(clips(6, 48), skip_predictor=True).last_hidden_state.mean(1)
    torch.testing.assert_close(run(backbone, clips(6, 48)), expected, atol=1e-5, rtol=0)
    assert (kept - expected).abs().max() > 1e-4


@pytest.mark.parametrize(
    ("model", "config", "settings", "frames", "size"),
    [
        ("TimesformerModel", "TimesformerConfig", PATCHED | {"num_frames": 4}, 6, 48),
        ("CLIPVisionModel", "CLIPVisionConfig", PATCHED, 2, 48),
        ("SiglipVisionModel", "SiglipVisionConfig", PATCHED, 2, 48),
        ("DINOv3ViTModel", "DINOv3ViTConfig", PATCHED, 2, 48),
        ("VideoPrismVisionModel", "VideoPrismVisionConfig", PRISM, 6, 54),
    ],
)
def test_models_that_can_take_other_sizes_take_them(
    tmp_path: Path, model: str, config: str, settings: Any, frames: int, size: int
) -> None:
    name = save(tmp_path, make(model, config, **settings))
    spec, backbone = load_backbone(name, frames=frames, size=size)
    assert run(backbone, clips(frames, size)).shape == (2, spec.dim)


def test_a_model_that_cannot_take_another_size_refuses_it(tmp_path: Path) -> None:
    name = save(
        tmp_path,
        make("VideoMAEModel", "VideoMAEConfig", **PATCHED, num_frames=4, use_mean_pooling=False),
    )
    with pytest.raises(BackboneError, match="takes 4 frames of 32 pixels only, got 4 of 48"):
        load_backbone(name, size=48)
    with pytest.raises(BackboneError, match="multiple of 16 pixels, got 40"):
        load_backbone(name, size=40)


def test_normalisation_comes_from_the_preprocessor_file(tmp_path: Path) -> None:
    spec = find_backbone(dinov2(tmp_path, size={"shortest_edge": 256}, crop_size=224)).spec
    assert spec.size == 224
    assert spec.mean == pytest.approx((123.675, 116.28, 103.53))
    assert spec.std == pytest.approx((58.395, 57.12, 57.375))


@pytest.mark.parametrize(
    ("settings", "mean", "std", "size"),
    [
        (  # ViViT: pixels to -1..1 first
            {"rescale_factor": 1 / 127.5, "offset": True, "image_mean": [0.5] * 3}
            | {"image_std": [0.5] * 3, "crop_size": {"height": 224, "width": 224}},
            191.25,
            63.75,
            224,
        ),
        (  # ViViT, whose processor has defaults of its own
            {"image_processor_type": "VivitImageProcessor", "size": 224}
            | {"image_mean": [0.5] * 3, "image_std": [0.5] * 3},
            191.25,
            63.75,
            224,
        ),
        ({"do_normalize": False, "size": {"height": 288, "width": 288}}, 0.0, 255.0, 288),
        ({"do_rescale": False, "image_mean": [9] * 3, "image_std": [2] * 3}, 9.0, 2.0, None),
        (
            {"do_center_crop": False, "crop_size": 200, "size": 224}
            | {"image_mean": [0.0] * 3, "image_std": [1.0] * 3},
            0.0,
            255.0,
            224,
        ),
    ],
)
def test_every_way_to_write_the_preprocessing_is_understood(
    tmp_path: Path, settings: dict[str, Any], mean: float, std: float, size: int | None
) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    means, deviations, side = read_preprocessing(tmp_path)
    assert means == pytest.approx((mean,) * 3)
    assert deviations == pytest.approx((std,) * 3)
    assert side == size


def test_the_file_for_videos_goes_before_the_file_for_images(tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(IMAGENET | {"size": 1}))
    (tmp_path / "video_preprocessor_config.json").write_text(json.dumps(IMAGENET | {"size": 2}))
    assert read_preprocessing(tmp_path)[2] == 2


def test_a_preprocessor_inside_a_processor_file_is_found(tmp_path: Path) -> None:
    whole = {"image_processor": IMAGENET | {"size": 7}}
    (tmp_path / "processor_config.json").write_text(json.dumps(whole))
    assert read_preprocessing(tmp_path)[2] == 7


def test_a_model_that_does_not_say_how_it_is_normalised_is_refused(tmp_path: Path) -> None:
    make("Dinov2Model", "Dinov2Config", **PATCHED).save_pretrained(tmp_path)
    with pytest.raises(BackboneError, match=r"no preprocessor_config\.json"):
        load_backbone(f"hf:{tmp_path}")
    (tmp_path / "preprocessor_config.json").write_text('{"size": 32}')
    with pytest.raises(BackboneError, match="needs three numbers image_mean"):
        load_backbone(f"hf:{tmp_path}")


def test_a_config_that_names_code_of_the_hub_is_refused(tmp_path: Path) -> None:
    name = dinov2(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    kernel = config | {"attn_implementation": "someone/kernel"}
    (tmp_path / "config.json").write_text(json.dumps(kernel))
    with pytest.raises(BackboneError, match="names code of the hub, the kernel 'someone/kernel'"):
        load_backbone(name)


def test_a_model_that_a_store_names_is_loaded_from_its_folder_or_from_another_one_that_is_named(
    tmp_path: Path,
) -> None:
    spec, _ = load_backbone(dinov2(tmp_path / "model"), frames=2)
    manifest = Manifest(backbone=spec, sampling=Sampling(), seed=0, dtype="float16")
    assert name_to_load(manifest) == spec.name
    (tmp_path / "model").rename(tmp_path / "moved")
    with pytest.raises(StoreError, match="name it yourself with --backbone hf:FOLDER"):
        name_to_load(manifest)
    load_network(manifest, f"hf:{tmp_path / 'moved'}")
    change_weights(tmp_path / "moved", lambda state: state["layernorm.bias"].add_(1))
    with pytest.raises(BackboneError, match="is not the backbone"):
        load_network(manifest, f"hf:{tmp_path / 'moved'}")


def change_weights(folder: Path, change: Callable[[dict[str, Tensor]], None]) -> None:
    path = folder / "model.safetensors"
    state = load_file(path)
    change(state)
    save_file(state, path, metadata={"format": "pt"})


def test_missing_unknown_and_misshapen_weights_are_listed(tmp_path: Path) -> None:
    name = dinov2(tmp_path)

    def damage(state: dict[str, Tensor]) -> None:
        del state["layernorm.weight"]
        state["surplus"] = torch.zeros(1)
        state["layernorm.bias"] = torch.zeros(5)

    change_weights(tmp_path, damage)
    with pytest.raises(BackboneError) as error:
        load_backbone(name)
    message = str(error.value)
    assert "1 missing (layernorm.weight)" in message
    assert "1 unknown (surplus)" in message
    assert "layernorm.bias: (5,) instead of (32,)" in message


def test_pretrained_videomae_weights_with_the_config_of_tuned_ones_are_refused(
    tmp_path: Path,
) -> None:
    model = make("VideoMAEModel", "VideoMAEConfig", **PATCHED, num_frames=4, use_mean_pooling=False)
    name = save(tmp_path, model)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"use_mean_pooling": True}))
    with pytest.raises(BackboneError, match=r"missing .*fc_norm"):
        load_backbone(name)


def test_weights_that_are_not_numbers_are_refused(tmp_path: Path) -> None:
    name = dinov2(tmp_path)
    change_weights(tmp_path, lambda state: state["layernorm.bias"].fill_(float("nan")))
    with pytest.raises(BackboneError, match=r"layernorm\.bias holds NaN"):
        load_backbone(name)


def test_a_truncated_file_is_called_truncated(tmp_path: Path) -> None:
    name = dinov2(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(BackboneError, match="is truncated"):
        load_backbone(name)


def test_weights_in_parts_are_loaded_and_all_parts_count_for_the_hash(tmp_path: Path) -> None:
    model = make("Dinov2Model", "Dinov2Config", **PATCHED)
    name = save(tmp_path, model)
    (tmp_path / "model.safetensors").unlink()
    model.save_pretrained(tmp_path, max_shard_size="40KB")
    first, backbone = load_backbone(name, frames=2)
    with torch.inference_mode():
        expected = frame_by_frame(lambda x: model(x).pooler_output, clips(2))
    torch.testing.assert_close(run(backbone, clips(2)), expected, atol=1e-5, rtol=0)
    part = sorted(tmp_path.glob("model-*.safetensors"))[-1]
    state = load_file(part)
    save_file({key: value + 1 for key, value in state.items()}, part, metadata={"format": "pt"})
    second, _ = load_backbone(name, frames=2)
    assert first.weights.sha256 != second.weights.sha256
    part.unlink()
    with pytest.raises(BackboneError, match="which is not beside it"):
        load_backbone(name)


def test_older_files_of_torch_are_read_as_weights_only(tmp_path: Path) -> None:
    model = make("Dinov2Model", "Dinov2Config", **PATCHED)
    name = save(tmp_path, model)
    torch.save(load_file(tmp_path / "model.safetensors"), tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    _, backbone = load_backbone(name, frames=2)
    with torch.inference_mode():
        expected = frame_by_frame(lambda x: model(x).pooler_output, clips(2))
    torch.testing.assert_close(run(backbone, clips(2)), expected, atol=1e-5, rtol=0)


def test_a_model_with_other_features_each_time_is_no_backbone(tmp_path: Path) -> None:
    name = save(
        tmp_path, size=64, model=make("ViTMAEModel", "ViTMAEConfig", **PATCHED | {"image_size": 64})
    )
    with pytest.raises(BackboneError, match="gives another feature each time"):
        load_backbone(name)


def test_the_licence_is_read_from_the_model_card(tmp_path: Path) -> None:
    name = dinov2(tmp_path)
    (tmp_path / "README.md").write_text("---\ntags: [x]\nlicense: apache-2.0\n---\n# A model\n")
    assert find_backbone(name).spec.weights.licence == "apache-2.0"


def test_a_folder_that_is_not_there_or_holds_no_model_is_an_error_of_ours(tmp_path: Path) -> None:
    with pytest.raises(BackboneError, match="nothing not found; give a folder"):
        load_backbone(f"hf:{tmp_path / 'nothing'}")
    with pytest.raises(BackboneError, match=r"has no config\.json"):
        load_backbone(f"hf:{tmp_path}")
    (tmp_path / "config.json").write_text('{"model_type": "nothing that exists"}')
    with pytest.raises(BackboneError, match="is refused"):
        load_backbone(f"hf:{tmp_path}")


def test_a_folder_without_weights_says_which_files_it_could_have(tmp_path: Path) -> None:
    name = dinov2(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(BackboneError, match=r"has no weights: none of model\.safetensors"):
        load_backbone(name)


def test_a_name_that_cannot_be_downloaded_says_to_give_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(BackboneError, match="give its folder"):
        load_backbone("hf:someone/some-model")


@pytest.mark.parametrize("parts", [False, True])
def test_a_name_of_the_hub_is_loaded_from_its_cache_without_a_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parts: bool
) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    cache = tmp_path / "models--someone--some-model"
    (cache / "refs").mkdir(parents=True)
    (cache / "refs" / "main").write_text("0" * 40)
    folder = cache / "snapshots" / ("0" * 40)
    dinov2(folder)
    if parts:
        (folder / "model.safetensors").unlink()
        model = make("Dinov2Model", "Dinov2Config", **PATCHED)
        model.save_pretrained(folder, max_shard_size="40KB")
    spec, backbone = load_backbone("hf:someone/some-model", frames=2)
    assert run(backbone, clips(2)).shape == (2, spec.dim)
    assert spec.weights.source == "huggingface.co/someone/some-model"
    for path in folder.glob("model*.safetensors"):
        path.unlink()
    with pytest.raises(BackboneError, match=r"has no weights|is not beside it"):
        load_backbone("hf:someone/some-model")


def test_without_transformers_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    name = dinov2(tmp_path)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(BackboneError, match=r"pip install 'clipset\[hf\]'"):
        load_backbone(name)
