"""Quantising and converting, against vectors that an independent implementation made."""

from __future__ import annotations

import numpy as np
import pytest

import kerf

CODES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float64)


def e4m3(byte: np.ndarray) -> np.ndarray:
    """Values of e4m3fn bytes, by the format's definition."""
    byte = byte.astype(np.int64)
    sign = np.where(byte & 0x80, -1.0, 1.0)
    exponent, mantissa = (byte >> 3) & 15, byte & 7
    normal = (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    return sign * np.where(exponent == 0, mantissa / 8 * 2.0**-6, normal)


def dequantised(codes: np.ndarray, scales: np.ndarray, global_scale: float) -> np.ndarray:
    low, high = CODES[codes & 15], CODES[codes >> 4]
    values = np.stack([low, high], axis=-1).reshape(*codes.shape[:-1], -1)
    return values * np.repeat(e4m3(scales), 16, axis=-1) * global_scale


def test_quantises_as_the_independent_implementation(golden) -> None:
    x = golden("quant_normal_x")
    gs = np.float32(757.8502197265625)
    scale = float(np.float32(1) / gs)
    if float(np.float32(1) / np.float32(scale)) != float(gs):
        pytest.skip("the scale's reciprocal does not come back")
    got = kerf.quantize_nvfp4(x, scale)
    robust = golden("quant_normal_robust").astype(bool)
    assert np.array_equal(np.asarray(got.scales)[robust], golden("quant_normal_sf")[robust])
    blocks = np.asarray(got.codes).reshape(5, 16, 8)
    assert np.array_equal(blocks[robust], golden("quant_normal_codes").reshape(5, 16, 8)[robust])


def test_the_scale_left_out_reaches_all_values() -> None:
    x = np.random.default_rng(1).standard_normal((3, 5, 64)).astype(np.float32)
    got = kerf.quantize_nvfp4(x)
    assert np.asarray(got.codes).shape == (3, 5, 32) and np.asarray(got.scales).shape == (3, 5, 4)
    assert got.global_scale == pytest.approx(float(np.abs(x).max()) / 2688)
    back = dequantised(np.asarray(got.codes), np.asarray(got.scales), got.global_scale)
    mine = np.asarray(kerf.dequantize_nvfp4(got.codes, got.scales, got.global_scale))
    np.testing.assert_allclose(mine, back, rtol=1e-6)
    # A code is at most a quarter of its own magnitude (or of the block's step) away: e2m1 has one bit of mantissa.
    rel = np.linalg.norm(back - x) / np.linalg.norm(x)
    assert 0.01 < rel < 0.125


def test_out_is_used_and_must_fit() -> None:
    x = np.ones((2, 32), np.float32)
    codes, scales = np.zeros((2, 16), np.uint8), np.zeros((2, 2), np.uint8)
    got = kerf.quantize_nvfp4(x, out=(codes, scales))
    assert got.codes is codes and got.scales is scales and codes.any() and scales.any()
    with pytest.raises(kerf.UsageError, match=r"out is U8 \[2, 16\] and F8_E4M3 \[2, 2\], wanted U8 \[2, 8\]"):
        kerf.quantize_nvfp4(np.ones((2, 16), np.float32), out=(codes, scales))
    with pytest.raises(kerf.UsageError, match="a multiple of 16"):
        kerf.quantize_nvfp4(np.ones((2, 17), np.float32))
    with pytest.raises(kerf.UsageError, match="finite"):
        kerf.quantize_nvfp4(np.full((1, 16), np.inf, np.float32))


@pytest.mark.parametrize("case", ["layout_e2_h256_i256", "layout_e2_h512_i384"])
def test_converts_to_the_bytes_that_flashinfer_makes(golden, case) -> None:
    w13, w13_sf, w2, w2_sf = (golden(f"{case}_{t}") for t in ("w13", "w13_sf", "w2", "w2_sf"))
    inter = w13.shape[1] // 2
    ones = np.ones(2, np.float32)
    got = kerf.convert(
        np.ascontiguousarray(w13[:, inter:]),
        np.ascontiguousarray(w13[:, :inter]),
        w2,
        gate_sf=np.ascontiguousarray(w13_sf[:, inter:]),
        up_sf=np.ascontiguousarray(w13_sf[:, :inter]),
        down_sf=w2_sf,
        gate_scale=ones,
        up_scale=ones,
        down_scale=ones,
        act="bf16",
    )
    for name in ("w13", "w13_sf", "w2", "w2_sf"):
        assert np.array_equal(np.asarray(getattr(got, name)), golden(f"{case}_{name}_conv")), name
    assert (got.num_experts, got.hidden, got.intermediate) == (2, w13.shape[2] * 2, inter)


def test_scalars_are_one_rounding_an_operation() -> None:
    n, i, h = 2, 64, 128
    rng = np.random.default_rng(3)
    codes = lambda *s: rng.integers(0, 256, s, np.uint8)  # noqa: E731
    scales = lambda *s: rng.integers(0x30, 0x40, s, np.uint8)  # noqa: E731
    gate, up, down = (np.array(v, np.float32) for v in ([0.011, 0.012], [0.013, 0.014], [0.015, 0.016]))
    in13, in2 = np.float32(0.3), np.float32(0.7)
    got = kerf.convert(
        codes(n, i, h // 2),
        codes(n, i, h // 2),
        codes(n, h, i // 2),
        gate_sf=scales(n, i, h // 16),
        up_sf=scales(n, i, h // 16),
        down_sf=scales(n, h, i // 16),
        gate_scale=gate,
        up_scale=up,
        down_scale=down,
        input_scale=float(in13),
        intermediate_scale=float(in2),
        first_expert=6,
    )
    assert np.array_equal(np.asarray(got.g1_alphas), in13 * gate)
    assert np.array_equal(np.asarray(got.g1_scale_c), (in13 * up) / in2)
    assert np.array_equal(np.asarray(got.g2_alphas), in2 * down)
    assert np.asarray(got.a1_gscale)[0] == np.float32(1) / in13
    assert np.asarray(got.a2_gscale)[0] == np.float32(1) / in2
    assert got.first_expert == 6


def test_bf16_experts_are_converted(golden) -> None:
    w13, w2 = golden("layout_bf16_e2_h256_i128_w13"), golden("layout_bf16_e2_h256_i128_w2")
    got = kerf.convert_bf16(
        np.ascontiguousarray(w13[:, 128:]), np.ascontiguousarray(w13[:, :128]), np.ascontiguousarray(w2)
    )
    assert np.array_equal(np.asarray(got.w13).ravel(), golden("layout_bf16_e2_h256_i128_w13_conv").ravel())
    assert np.array_equal(np.asarray(got.w2).ravel(), golden("layout_bf16_e2_h256_i128_w2_conv").ravel())


def test_widths_that_the_layout_cannot_hold_are_refused() -> None:
    def sized(h: int, i: int, width: int | None = None):
        zeros = lambda *s: np.zeros(s, np.uint8)  # noqa: E731
        one = np.ones(1, np.float32)
        return kerf.convert(
            zeros(1, i, h // 2),
            zeros(1, i, h // 2),
            zeros(1, h, i // 2),
            gate_sf=zeros(1, i, h // 16),
            up_sf=zeros(1, i, h // 16),
            down_sf=zeros(1, h, i // 16),
            gate_scale=one,
            up_scale=one,
            down_scale=one,
            act="bf16",
            width=width,
        )

    with pytest.raises(kerf.UnsupportedError, match="96"):
        sized(128, 96)
    assert sized(128, 96, width=128).intermediate == 128
    with pytest.raises(kerf.UnsupportedError, match="64"):
        sized(64, 64)
