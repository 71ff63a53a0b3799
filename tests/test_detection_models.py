"""The DETR family and a neural audio codec of transformers, small and with random weights, equal eager."""

from __future__ import annotations

import pytest
import torch
import transformers as hf

import torchair

SMALL = {
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
    "num_queries": 5,
}


def backbone(*stages: str) -> dict[str, object]:
    config = hf.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16, 16, 16], depths=[1, 1, 1, 1], out_features=list(stages)
    )
    return {"use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None, "backbone_config": config}


def detr():
    return hf.DetrForObjectDetection(hf.DetrConfig(**backbone("stage4"), **SMALL))


def conditional_detr():
    return hf.ConditionalDetrForObjectDetection(hf.ConditionalDetrConfig(**backbone("stage4"), **SMALL))


def deformable_detr():
    config = hf.DeformableDetrConfig(**backbone("stage2", "stage3", "stage4"), num_feature_levels=3, **SMALL)
    return hf.DeformableDetrForObjectDetection(config)


def yolos():
    config = hf.YolosConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=[64, 64],
        num_detection_tokens=5,
    )
    return hf.YolosForObjectDetection(config)


@pytest.mark.night(rows=2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "dynamic"),
    [(detr, False), (conditional_detr, False), (deformable_detr, False), (yolos, True)],
)
def test_detection(make, dynamic):
    torch.manual_seed(0)
    model, image = make().eval(), torch.randn(2, 3, 64, 64)
    compiled = torch.compile(model, backend=torchair.get_npu_backend(), dynamic=dynamic)
    with torch.no_grad():
        got, want = compiled(pixel_values=image), model(pixel_values=image)
    for key in ("logits", "pred_boxes", "last_hidden_state"):
        torch.testing.assert_close(got[key], want[key], rtol=1e-4, atol=1e-5)


@pytest.mark.night
@pytest.mark.slow
def test_audio_codec():
    torch.manual_seed(0)
    config = hf.EncodecConfig(
        num_filters=4,
        hidden_size=8,
        codebook_dim=8,
        codebook_size=16,
        num_residual_layers=1,
        upsampling_ratios=[4, 2],
        num_lstm_layers=1,
        target_bandwidths=[1.5, 24.0],
    )
    model, sound = hf.EncodecModel(config).eval(), torch.randn(1, 1, 800)
    with torch.no_grad():
        got = torch.compile(model, backend=torchair.get_npu_backend())(input_values=sound)
        want = model(input_values=sound)
    assert torch.equal(got.audio_codes, want.audio_codes)
    torch.testing.assert_close(got.audio_values, want.audio_values, rtol=1e-4, atol=1e-5)
