"""Texts are compared with stored features as the model itself compares them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.retrieval.conftest import make_run
from torch import Tensor, nn

from clipset.backbones.registry import load_backbone
from clipset.clips.config import Sampling
from clipset.errors import BackboneError, SearchError, StoreError
from clipset.features.store import Manifest
from clipset.retrieval import VideoSearch
from clipset.retrieval.rows import QueryVector, VectorRows
from clipset.retrieval.text import TEXT_FAMILIES, TextTower

transformers: Any = pytest.importorskip("transformers")
tokenizers: Any = pytest.importorskip("tokenizers")

VISION = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
    "image_size": 32, "patch_size": 16,
}  # fmt: skip
WORDS = {
    "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64,
    "vocab_size": 12, "max_position_embeddings": 8, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": 0,
}  # fmt: skip
PRISM = {
    "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64, "image_size": 36,
    "num_frames": 4, "num_spatial_layers": 1, "num_temporal_layers": 1, "num_auxiliary_layers": 1,
}  # fmt: skip
VOCABULARY = ["<pad>", "<bos>", "<eos>", "<unk>", "a", "person", "runs", "video", "of", "the"]
TEXT = "a person runs"


def save_tokeniser(folder: Path) -> None:
    words = {word: index for index, word in enumerate(VOCABULARY)}
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    model.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    model.post_processor = tokenizers.processors.TemplateProcessing(
        single="<bos> $A <eos>", special_tokens=[("<bos>", 1), ("<eos>", 2)]
    )
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=model, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>",
        unk_token="<unk>", model_max_length=8,
    ).save_pretrained(folder)  # fmt: skip


def make_model(name: str) -> Any:
    torch.manual_seed(0)
    settings: dict[str, Any] = {"vision_config": VISION, "text_config": WORDS}
    if name in ("CLIP", "XCLIP", "MetaClip2"):
        settings |= {"projection_dim": 24}
    if name == "XCLIP":
        own = {"num_frames": 4, "mit_hidden_size": 24, "mit_intermediate_size": 32}
        heads = {"mit_num_attention_heads": 2, "mit_num_hidden_layers": 1}
        settings["vision_config"] = VISION | own | heads
        settings |= {"prompt_num_attention_heads": 2, "prompt_layers": 1}
    if name == "VideoPrism":
        settings["vision_config"] = PRISM
    model_class = "VideoPrismClipModel" if name == "VideoPrism" else f"{name}Model"
    config = getattr(transformers, f"{name}Config")(**settings)
    network = getattr(transformers, model_class)(config)
    for tensor in network.parameters():
        nn.init.normal_(tensor, std=0.3)
    return network.eval()


def save_model(folder: Path, network: Any, size: int = 32) -> str:
    network.save_pretrained(folder)
    settings = {"size": size, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    save_tokeniser(folder)
    return f"hf:{folder}"


def manifest_of(name: str, frames: int | None = None) -> tuple[Manifest, nn.Module]:
    spec, network = load_backbone(name, frames=frames)
    return Manifest(backbone=spec, sampling=Sampling(), seed=0, dtype="float32"), network


def embeds(output: Any, *names: str) -> Tensor:
    return F.normalize(
        next(getattr(output, name) for name in names if hasattr(output, name)), dim=1
    )


@pytest.mark.parametrize("name", ["CLIP", "MetaClip2", "Siglip", "XCLIP", "VideoPrism"])
def test_the_similarity_of_a_text_and_a_clip_is_the_one_of_the_model(
    name: str, tmp_path: Path
) -> None:
    network = make_model(name)
    is_image, size = name in ("CLIP", "MetaClip2", "Siglip"), 36 if name == "VideoPrism" else 32
    manifest, backbone = manifest_of(save_model(tmp_path, network, size), 1 if is_image else 4)
    tower = TextTower(manifest)
    assert network.config.model_type in TEXT_FAMILIES
    frames = 1 if is_image else 4
    clips = torch.randn(3, frames, 3, size, size, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        features = backbone(clips).numpy()
        expected = similarity_by_model(name, network, clips, tower)
    rows = VectorRows(rows=features, part_widths=(features.shape[1],))
    zeros = np.zeros(features.shape[1], np.float32)
    query = QueryVector(vector=zeros, text=tower.encode(TEXT), text_weight=1.0)
    for scores in (rows.scores(query), rows.scores(query, np.arange(3))):
        np.testing.assert_allclose(scores, expected, atol=1e-5)
    vector = rows.linear_query(query)
    assert (vector is None) == (name in ("CLIP", "MetaClip2"))
    if vector is not None:
        np.testing.assert_allclose(rows.normalise(features) @ vector, expected, atol=1e-5)


def similarity_by_model(name: str, network: Any, clips: Tensor, tower: TextTower) -> np.ndarray:
    """The cosines of the model's own embeddings of clips and text."""
    padding = "max_length" if name in ("Siglip", "VideoPrism") else True
    tokens = tower._tokeniser(
        [TEXT], padding=padding, truncation=True, max_length=8, return_tensors="pt"
    )
    words = {key: tokens[key] for key in ("input_ids", "attention_mask")}
    calls: dict[str, Callable[[], Any]] = {
        "CLIP": lambda: network(pixel_values=clips[:, 0], **words),
        "MetaClip2": lambda: network(pixel_values=clips[:, 0], **words),
        "Siglip": lambda: network(pixel_values=clips[:, 0], **words),
        "VideoPrism": lambda: network(pixel_values_videos=clips, **words),
    }
    if name == "XCLIP":  # its forward adds a prompt that depends on the video
        videos = F.normalize(network.get_video_features(pixel_values=clips).pooler_output, dim=1)
        text = F.normalize(network.get_text_features(**words).pooler_output, dim=1)
    else:
        output = calls[name]()
        videos = embeds(output, "image_embeds", "video_embeds")
        text = embeds(output, "text_embeds")
    similarity: np.ndarray = (videos @ text.T)[:, 0].numpy()
    return similarity


def test_a_run_is_searched_by_text_alone_and_with_examples(tmp_path: Path) -> None:
    manifest, _ = manifest_of(save_model(tmp_path / "model", make_model("Siglip")), 1)
    run = make_run(tmp_path / "run", spec=manifest.backbone)
    search = VideoSearch(run)
    direction = search.text_tower.encode(TEXT).direction
    table, dim = search.index.table, manifest.backbone.dim
    cosines = {
        video_id: max(
            clip[:dim] @ direction / np.linalg.norm(clip[:dim])
            for clip in table.vectors[index, : search.index.store.regular.count[index]]
        )
        for index, video_id in enumerate(table.video_ids)
    }
    found = search.search(text=TEXT, top=40).results
    assert {f.video: f.score for f in found} == pytest.approx(cosines, abs=1e-5)
    assert [f.score for f in found] == sorted((f.score for f in found), reverse=True)
    assert all(f.start is not None for f in found)
    example = table.video_ids[0]
    both = {f.video: f.score for f in search.search(example, text=TEXT, top=40).results}
    alone = {f.video: f.score for f in search.search(f"{example}@0-6", top=40).results}
    assert both.keys() == alone.keys() == cosines.keys() - {example}
    assert all(both[video] <= (alone[video] + cosines[video]) / 2 + 1e-5 for video in both)
    text = search.text_example(TEXT)
    with pytest.raises(SearchError, match="one text, as a positive example"):
        search.find([text, text])


def test_a_backbone_without_a_text_tower_says_so(tmp_path: Path) -> None:
    manifest, _ = manifest_of("efficientnet_lite0")
    with pytest.raises(SearchError, match="efficientnet_lite0 has no text tower; search by exam"):
        TextTower(manifest)
    torch.manual_seed(0)
    dinov2 = transformers.Dinov2Model(transformers.Dinov2Config(**VISION))
    with pytest.raises(SearchError, match="has no text tower"):
        TextTower(manifest_of(save_model(tmp_path, dinov2), 1)[0])


def test_a_text_tower_of_other_weights_or_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    name = save_model(tmp_path / "model", make_model("Siglip"))
    manifest, _ = manifest_of(name, 1)
    with pytest.raises(SearchError, match="the text is empty"):
        TextTower(manifest).encode("  ")
    other = make_model("Siglip")
    nn.init.zeros_(next(other.parameters()))
    other.save_pretrained(tmp_path / "model")
    with pytest.raises(BackboneError, match="is not the backbone"):
        TextTower(manifest).encode(TEXT)
    for path in (tmp_path / "model").glob("tokenizer*"):
        path.unlink()
    with pytest.raises(SearchError, match=r"tokenizer in .* cannot be loaded"):
        TextTower(manifest).encode(TEXT)
    (tmp_path / "model").rename(tmp_path / "moved")
    with pytest.raises(StoreError, match="name it yourself with --backbone hf:FOLDER"):
        TextTower(manifest)
