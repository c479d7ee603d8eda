"""LayerNorm and RMSNorm: the papers' equations with eps where the code of the papers has it."""

import pytest
import torch

from wordloom.nn import LayerNorm, RMSNorm


def test_layer_norm_divides_by_the_root_of_biased_variance_plus_eps() -> None:
    norm = LayerNorm(4, eps=0.5)
    torch.nn.init.normal_(norm.weight)
    torch.nn.init.normal_(norm.bias)
    x = torch.randn(2, 3, 4)
    mean = x.mean(-1, keepdim=True)
    variance = ((x - mean) ** 2).sum(-1, keepdim=True) / 4  # not / 3
    right = (x - mean) / (variance + 0.5).sqrt() * norm.weight + norm.bias
    torch.testing.assert_close(norm(x), right, rtol=1e-5, atol=1e-6)
    assert set(dict(LayerNorm(4, bias=False).named_parameters())) == {"weight"}


@pytest.mark.parametrize("gain", [True, False])
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_rms_norm_has_eps_inside_the_root_and_optional_gain_and_offset(gain: bool, offset: float) -> None:
    norm = RMSNorm(4, eps=0.5, gain=gain, offset=offset)
    x = torch.randn(2, 3, 4)
    plain = x / (x.pow(2).mean(-1, keepdim=True) + 0.5).sqrt()
    torch.testing.assert_close(norm(x), plain, rtol=1e-5, atol=1e-6)  # as initialised the gain is one
    if not gain:
        assert list(norm.parameters()) == []
        return
    torch.nn.init.normal_(norm.weight)
    torch.testing.assert_close(norm(x), plain * (norm.weight + offset), rtol=1e-5, atol=1e-6)
    norm.reset_parameters()
    torch.testing.assert_close(norm(x), plain, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [LayerNorm, RMSNorm])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_statistics_are_float32_in_any_precision(kind: type, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    norm = kind(64)
    torch.nn.init.normal_(norm.weight, 1.0, 0.1)
    x = (300 * torch.randn(5, 64)).to(dtype)  # squares overflow float16
    low = kind(64).to(dtype)
    low.load_state_dict(norm.state_dict())
    full = kind(64)
    full.load_state_dict(low.state_dict())
    out = low(x)
    assert out.dtype == dtype
    assert torch.equal(out, full(x.float()).to(dtype))  # rounded once, at the end
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert full(x.bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize("kind", [LayerNorm, RMSNorm])
def test_a_constant_or_zero_row_stays_finite(kind: type) -> None:
    assert kind(8)(torch.zeros(2, 8)).isfinite().all()
    x = torch.full((2, 8), 3.0, requires_grad=True)
    kind(8)(x).sum().backward()
    assert x.grad.isfinite().all()
