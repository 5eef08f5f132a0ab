"""The model end to end: what dropped tokens save, and what checkpointing leaves as it is."""

from dataclasses import replace

import pytest
import torch
from tests.end_to_end import tiny
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from clipset.end_to_end import model as model_module
from clipset.end_to_end.model import EndToEndModel, clip_bytes, count_kept_tokens, count_tokens
from clipset.model.scale import ScaleNetwork
from clipset.networks.video_transformers import VideoMAE

NUM_CLIPS = 12


def make_model(*, checkpointing: bool, is_trained: bool = True) -> EndToEndModel:
    network, spec = tiny.make_network(), tiny.SPEC
    torch.manual_seed(1)
    scale = ScaleNetwork(spec.dim, tiny.TINY.model)
    return EndToEndModel(spec, network, scale, is_trained=is_trained, checkpointing=checkpointing)


def make_clips(drop: float, num_clips: int = NUM_CLIPS) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    pixels = torch.randint(0, 256, (num_clips, 4, 3, 32, 32), generator=generator)
    order = torch.rand(num_clips, 32, generator=generator).argsort(dim=1)
    return pixels.to(torch.uint8), order[:, : count_kept_tokens(32, drop)]


def make_batch(drop: float) -> dict[str, Tensor]:
    pixels, visible = make_clips(drop)
    generator = torch.Generator().manual_seed(3)
    boxes = torch.rand(2, 3, 2, 6, generator=generator)
    masked = torch.tensor([[True, False]] * 6).view(2, 3, 2)
    shape = (2, 3, 2)
    return {
        "pixels": pixels.unflatten(0, shape), "boxes": boxes, "masked": masked,
        "visible": visible.unflatten(0, shape),
    }  # fmt: skip


def kept_bytes(network: VideoMAE, drop: float) -> int:
    """The bytes of all tensors that autograd keeps for the backward pass, weights left out."""
    pixels, visible = make_clips(drop)
    parameters = {p.untyped_storage().data_ptr() for p in network.parameters()}
    kept: dict[int, tuple[int, Tensor]] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters and tensor.is_floating_point():
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)  # it stays alive: no reuse
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        network(pixels.float(), visible)
    return sum(size for size, _ in kept.values())


@pytest.mark.parametrize("drop", [0.0, 0.5, 0.75, 0.9])
def test_the_memory_of_a_step_is_the_predicted_one(drop: float) -> None:
    network = tiny.make_network()
    predicted = NUM_CLIPS * clip_bytes(network, tiny.SPEC, count_kept_tokens(32, drop))
    assert kept_bytes(network, drop) == pytest.approx(predicted, rel=0.1)


def test_memory_and_work_fall_with_the_dropped_tokens() -> None:
    """A deeper network, whose blocks outweigh the pixels."""
    torch.manual_seed(0)
    network = VideoMAE(replace(tiny.NETWORK, depth=12))
    pixels_kept = NUM_CLIPS * 4 * 4 * 3 * 32 * 32
    memory, work = {}, {}
    for drop in (0.0, 0.5, 0.75):
        memory[drop] = kept_bytes(network, drop) - pixels_kept
        pixels, visible = make_clips(drop)
        with FlopCounterMode(display=False) as counter:
            network(pixels.float(), visible).sum().backward()
        flops = counter.get_flop_counts()
        work[drop] = sum(sum(of.values()) for name, of in flops.items() if name.endswith("mlp"))
    for drop in (0.5, 0.75):
        assert memory[drop] == pytest.approx((1 - drop) * memory[0.0], rel=0.03)
        assert work[drop] == pytest.approx((1 - drop) * work[0.0], rel=1e-6)
    assert work[0.0] == 3 * 12 * NUM_CLIPS * 32 * 2 * 2 * 32 * 64  # forward, and twice backward


def gradients(model: EndToEndModel, drop: float = 0.5) -> dict[str, Tensor]:
    model.losses(**make_batch(drop)).total.backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("chunk_tokens", [32, 4096])
def test_checkpointing_gives_the_same_gradients(
    chunk_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = gradients(make_model(checkpointing=False))
    monkeypatch.setattr(model_module, "CHUNK_TOKENS", chunk_tokens)
    found = gradients(make_model(checkpointing=True))
    assert set(found) == set(expected)
    assert any(name.startswith("backbone.network.patch_embed") for name in found)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6)


def test_checkpointing_keeps_the_features_and_no_activations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(model_module, "CHUNK_TOKENS", 64)
    kept = {}
    for checkpointing in (False, True):
        model, sizes = make_model(checkpointing=checkpointing), []
        pixels, visible = make_clips(0.5)

        def pack(tensor: Tensor, sizes: list[int] = sizes) -> Tensor:
            sizes.append(tensor.nbytes if tensor.is_floating_point() else 0)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            model.features(pixels, visible)
        kept[checkpointing] = sum(sizes)
    assert kept[True] < 0.02 * kept[False]


def test_a_frozen_backbone_gets_no_gradients_and_keeps_nothing() -> None:
    names = set(gradients(make_model(checkpointing=True, is_trained=False)))
    assert names
    assert all(name.startswith("scale.") for name in names)


def test_all_tokens_visible_is_the_whole_network() -> None:
    model = make_model(checkpointing=True).eval()
    pixels, visible = make_clips(0.0)
    assert visible.shape[1] == count_tokens(model.vit, 4, 32)
    torch.testing.assert_close(model.features(pixels, visible), model.features(pixels))


def test_a_batch_without_videos_has_no_features() -> None:
    pixels, visible = make_clips(0.5, num_clips=0)
    assert make_model(checkpointing=True).features(pixels, visible).shape == (0, 32)


@pytest.mark.parametrize(
    ("num_tokens", "drop", "visible"),
    [(1568, 0.9, 157), (1568, 0.95, 79), (8, 0.95, 1), (8, 0.0, 8)],
)
def test_at_least_one_token_remains(num_tokens: int, drop: float, visible: int) -> None:
    assert count_kept_tokens(num_tokens, drop) == visible
