"""Weights that ranks share out are trained as they are in one process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.conftest import Forked

CODE = """
import json, os, sys
import torch
import torch.distributed as dist
from wordloom.models import BertConfig, build
from wordloom.nn.head import head_loss
from wordloom.objectives import Loss
from wordloom.training.ranks import Ranks
from wordloom.training.sharding import LossOf, mesh_of, shard_model

file, rank, shard, tied = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4] == "True"
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
settings = {"vocab_size": 13, "max_seq_len": 9, "dim": 12, "n_layers": 2, "n_heads": 3, "dropout": 0.0}
config = BertConfig(**settings, pooler=False, masked_lm_head=True, tie_embeddings=tied, empty_id=8)
model = build(config, generator=torch.Generator().manual_seed(0))


def loss(model, batch):
    hidden = model.mlm_hidden(model.hidden(batch)).flatten(0, 1)
    return Loss(head_loss(model.lm_head, hidden, batch.flatten()), 1)


spread = LossOf(model, loss)
shard_model(spread, mesh_of(shard, Ranks(rank, 2), "cpu"), Ranks(rank, 2), low_precision=False)
before = model.token_embedding.weight.full_tensor().clone()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
tokens = torch.arange(4, 13).expand(2, 9)  # the empty token is read and predicted
spread(tokens).total.backward()
grad = model.token_embedding.weight.grad.full_tensor()
optimizer.step()
moved = (model.token_embedding.weight.full_tensor() - before).abs().amax(dim=1)
if rank == 0:
    print(json.dumps({"grad": grad.abs().amax(dim=1).tolist(), "moved": moved.tolist()}))
dist.destroy_process_group()
"""


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("shard", ["none", "full"])
def test_the_row_of_the_empty_token_stays_zero(shard: str, tied: bool, tmp_path: Path) -> None:
    ranks = [Forked(tmp_path / "store", rank, shard, tied, code=CODE) for rank in range(2)]
    first, second = (rank.completed() for rank in ranks)
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    found = json.loads(first.stdout)
    for changes in found.values():
        assert changes[8] == 0.0
        assert all(change > 0 for change in (changes[4:8] + changes[9:]))
