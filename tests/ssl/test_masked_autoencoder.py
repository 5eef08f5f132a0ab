"""VideoMAE: its masks, and its loss against that of another implementation."""

import pytest
import torch

from clipset.backbones.released import from_hugging_face
from clipset.errors import TrainingError
from clipset.networks.video_transformers import VideoMAEConfig
from clipset.ssl.methods import MaskedAutoencoder, draw_tubes, normalised_patches

TINY = VideoMAEConfig(
    embed_dim=32, depth=2, num_heads=4, mlp_dim=128, patch_size=8, frames=4, size=32
)


def test_tubes_hide_the_same_places_at_all_times_and_as_many_in_every_clip() -> None:
    torch.manual_seed(0)
    masked = draw_tubes(400, (3, 7, 7), 0.9).unflatten(1, (3, 49))
    assert (masked == masked[:, :1]).all()
    assert (masked[:, 0].sum(dim=1) == 44).all()
    assert masked[:, 0].float().mean(dim=0).min() > 0.8  # every place is seen now and then
    assert masked[:, 0].float().mean(dim=0).max() < 1


def test_a_patch_is_the_pixels_of_its_token_normalised_by_itself() -> None:
    torch.manual_seed(0)
    clips = torch.rand(2, 4, 3, 32, 32) * 3 + 1
    patches = normalised_patches(clips, TINY)
    assert patches.shape == (2, 2 * 4 * 4, 2 * 8 * 8 * 3)
    for time, row, column in ((0, 0, 0), (1, 3, 2)):
        pixels = clips[1, 2 * time : 2 * time + 2, :, 8 * row : 8 * row + 8]
        pixels = pixels[..., 8 * column : 8 * column + 8]  # (2, 3, 8, 8)
        values = []
        for frame in range(2):
            for y in range(8):
                for x in range(8):
                    for channel in range(3):
                        own = pixels[:, channel]
                        value = (pixels[frame, channel, y, x] - own.mean()) / (own.std() + 1e-6)
                        values.append(value.item())
        token = 16 * time + 4 * row + column
        assert patches[1, token].tolist() == pytest.approx(values, abs=1e-4)


def test_the_loss_is_that_of_transformers_for_the_same_weights_and_mask() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.VideoMAEConfig(
        image_size=32, patch_size=8, num_frames=4, tubelet_size=2, hidden_size=32,
        num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
        decoder_hidden_size=16, decoder_num_hidden_layers=4, decoder_num_attention_heads=2,
        decoder_intermediate_size=64, layer_norm_eps=1e-6, norm_pix_loss=True,
        use_mean_pooling=False,
    )  # fmt: skip
    theirs = transformers.VideoMAEForPreTraining(config).eval()
    for name, parameter in theirs.named_parameters():
        if parameter.ndim == 1 or "mask_token" in name:  # nothing is left at zero or one
            torch.nn.init.normal_(parameter, std=0.3)
    ours = MaskedAutoencoder(TINY)
    ours.load_state_dict(to_ours(theirs.state_dict()))
    pixels = torch.randn(3, 4, 3, 32, 32)
    masked = draw_tubes(3, ours.encoder.grid, 0.75)
    expected = theirs(pixel_values=pixels, bool_masked_pos=masked).loss
    assert ours.loss(pixels, masked).item() == pytest.approx(expected.item(), rel=1e-4)
    expected.backward()
    ours.loss(pixels, masked).backward()
    gradient = ours.encoder.patch_embed.proj.weight.grad
    projection = theirs.videomae.embeddings.patch_embeddings.projection
    torch.testing.assert_close(gradient, projection.weight.grad, rtol=1e-3, atol=1e-6)


def to_ours(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors of transformers' network under our names."""
    encoder = {k: v for k, v in state.items() if k.startswith("videomae.")}
    named = {f"encoder.{k}": v for k, v in from_hugging_face(encoder).items()}
    layers = {
        k.replace("decoder.decoder_layers", "encoder.layer"): v
        for k, v in state.items()
        if k.startswith("decoder.decoder_layers")
    }
    named |= {k.replace("blocks", "decoder"): v for k, v in from_hugging_face(layers).items()}
    named |= {f"decoder_norm.{k}": state[f"decoder.norm.{k}"] for k in ("weight", "bias")}
    named |= {f"decoder_head.{k}": state[f"decoder.head.{k}"] for k in ("weight", "bias")}
    named["encoder_to_decoder.weight"] = state["encoder_to_decoder.weight"]
    named["mask_token"] = state["mask_token"].flatten()
    return {k: v for k, v in named.items() if "position_embeddings" not in k}


@pytest.mark.parametrize("ratio", [0.0, 1.0, 0.01])
def test_a_mask_that_hides_all_or_nothing_is_refused(ratio: float) -> None:
    with pytest.raises(TrainingError, match="drop must leave some"):
        MaskedAutoencoder(TINY, mask_ratio=ratio)
