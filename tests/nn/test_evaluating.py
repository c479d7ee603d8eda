"""Evaluation mode, for as long as a block lasts."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from wordloom.nn.evaluating import evaluating


@pytest.mark.parametrize("training", [True, False])
def test_every_module_returns_to_its_own_mode(training: bool) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5), nn.Sequential(nn.Dropout(0.5))).train(training)
    model[1].eval()
    model[2][0].train()
    before = [module.training for module in model.modules()]
    x = torch.ones(3, 2)
    with evaluating(model):
        assert not any(module.training for module in model.modules())
        assert torch.equal(model(x), model[0](x))
        assert not model(x).requires_grad
    with pytest.raises(RuntimeError), evaluating(model):
        model(torch.ones(3, 7))
    assert [module.training for module in model.modules()] == before
    assert model(x).requires_grad
