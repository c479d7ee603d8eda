"""FlexAttention's masks and results against the dense mask; its compiled kernels need a GPU."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from wordloom.nn.attention import Pattern, Visibility, exact_attention
from wordloom.nn.attention.flex import block_mask, flex_attention_fits, sparse_flex_attention

PATTERNS = [
    "band:5", "band:40+global:3", "dilated:3:4", "block:60", "random:3:1", "bigbird:8:2:2", "star", "full",
    "dilated:2:3+band:4+global:1",
]  # fmt: skip


def drawn_visibility(
    rng: random.Random, pattern: Pattern, B: int, T: int, device: torch.device
) -> Visibility:
    kind = rng.choice(["whole", "padding", "documents", "both"])
    documents = real = None
    if kind in ("documents", "both"):
        documents = torch.stack([torch.randint(3, (T,)).sort().values for _ in range(B)]).to(device) + 5
    if kind in ("padding", "both"):
        lengths = torch.tensor([rng.randint(1, T) for _ in range(B)])
        real = torch.arange(T) < lengths[:, None]
        real = (real.flip(1) if rng.random() < 0.5 else real).to(device)
    return Visibility(causal=pattern.causal, documents=documents, real_keys=real).through(pattern)


def compare(device: torch.device, dtype: torch.dtype, lengths: list[int], sizes: list[int]) -> None:
    on_gpu = device.type == "cuda"  # elsewhere it has no gradients
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    torch.manual_seed(seed)
    for text in PATTERNS:
        pattern = Pattern.parse(text, causal=rng.random() < 0.5)
        B, T, E = rng.choice([1, 2, 3]), rng.choice(lengths), rng.choice(sizes)
        K, groups = rng.choice([1, 2, 3]), rng.choice([1, 2])
        visibility = drawn_visibility(rng, pattern, B, T, device)
        q, k, v = (
            torch.randn(B, heads, T, E, device=device, dtype=dtype, requires_grad=on_gpu)
            for heads in (K * groups, K, K)
        )
        real = visibility.real_keys
        keep = torch.ones(B, T, device=device) if real is None else real.float()
        weight = torch.randn(B, K * groups, T, E, device=device) * keep[:, None, :, None]

        def results(found: Tensor, weight: Tensor = weight, inputs: tuple = (q, k, v)) -> list[Tensor]:
            seen = [found * (weight != 0)]
            return [*seen, *torch.autograd.grad((seen[0].float() * weight).sum(), inputs)] if on_gpu else seen

        found = results(sparse_flex_attention(q, k, v, visibility=visibility, scale=0.3))
        repeated = (x.repeat_interleave(groups, dim=1) for x in (k, v))
        wanted = results(exact_attention(q, *repeated, visibility=visibility, scale=0.3)[0])
        tolerance = 1e-4 if dtype == torch.float32 else 4e-2
        for got, want in zip(found, wanted, strict=True):
            torch.testing.assert_close(
                got, want, atol=tolerance, rtol=tolerance, msg=lambda m, t=text: f"seed {seed}, {t}: {m}"
            )


def test_masks_and_results_are_those_of_the_dense_mask() -> None:
    compare(torch.device("cpu"), torch.float32, [1, 3, 17, 40], [1, 3, 8])


def test_a_mask_without_padding_is_made_once() -> None:
    pattern = Pattern.parse("band:3", causal=True)
    masks = [block_mask(Visibility(causal=True).through(pattern), B, 40, torch.device("cpu")) for B in (1, 2)]
    assert masks[0] is masks[1]
    padded = Visibility(causal=True, real_keys=torch.ones(2, 40, dtype=torch.bool)).through(pattern)
    assert block_mask(padded, 2, 40, torch.device("cpu")) is block_mask(padded, 2, 40, torch.device("cpu"))


def test_a_mask_made_in_inference_mode_serves_training() -> None:
    pattern = Pattern.parse("band:7+global:2", causal=False)
    with torch.inference_mode():
        made = block_mask(Visibility(causal=False).through(pattern), 2, 53, torch.device("cpu"))
    kept = block_mask(Visibility(causal=False).through(pattern), 3, 53, torch.device("cpu"))
    assert kept is made
    tensors = [part for part in kept.as_tuple() if isinstance(part, Tensor)]
    assert tensors
    assert not any(part.is_inference() for part in tensors)


def test_it_is_for_gpus_and_new_texts() -> None:
    visibility = Visibility(causal=True).through(Pattern.parse("band:3", causal=True))
    q = torch.randn(1, 1, 5, 16)
    assert not flex_attention_fits(q, q, visibility, 0.0)
    there = q.to("meta")
    assert not flex_attention_fits(there, there, visibility, 0.0)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_compiled_kernels_of_a_gpu(dtype: torch.dtype) -> None:
    q = torch.randn(1, 2, 9, 16, device="cuda")
    visibility = Visibility(causal=True).through(Pattern.parse("band:3", causal=True))
    assert flex_attention_fits(q, q, visibility, 0.0)
    assert not flex_attention_fits(q, q, visibility, 0.1)
    compare(torch.device("cuda"), dtype, [17, 128, 300], [16, 64, 80])
