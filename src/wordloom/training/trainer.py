"""The training loop, which all recipes share.

Runs differ in their objective, batches, hooks and model.  A step is a pure function of (weights, optimizer
state, seed, step): the number of samples drawn decides the batch, dropout is seeded by (seed, step, sample),
and hooks have generators of their own.  A run that is killed and resumed therefore ends with
the same bits as an uninterrupted one.
"""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from wordloom.data.batches.causal import IGNORE, to_device
from wordloom.data.batches.mixed import MixedBatch
from wordloom.data.batches.order import row_samples
from wordloom.errors import NonFiniteError
from wordloom.nn.dropout import samples_of_rows
from wordloom.objectives import Loss, Objective, TruncatedBPTT
from wordloom.recipe import TrainSettings
from wordloom.training.optimizers import Optimizer, build_optimizer
from wordloom.training.precision import Precision, choose_device, choose_precision
from wordloom.training.ranks import ALONE, Part, Ranks
from wordloom.training.schedules import learning_rate_share
from wordloom.training.stopping import stop_on_signals
from wordloom.training.weight_average import WeightAverage

StepRecord = dict[str, Any]


class Batches(Protocol):
    """A source of samples, each a pure function of its global number."""

    samples_per_epoch: int

    def batch(self, start: int, count: int) -> Any: ...
    def document_ids(self, start: int, count: int) -> list[str]: ...


class Hook:
    """A set of callbacks of the training loop; each method may be left out."""

    def on_start(self, trainer: Trainer) -> None: ...
    def after_step(self, trainer: Trainer, record: StepRecord) -> None: ...
    def on_end(self, trainer: Trainer) -> None: ...
    def on_error(self, trainer: Trainer) -> None:
        """Act after a step behind which a hook, this or another one, has failed."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Trainer:
    """The training of ``model`` on ``batches`` by ``objective``, for ``total_steps`` optimizer steps.

    L-BFGS ends earlier when it has converged.  ``model`` is moved to the device and precision of
    ``settings``.  ``run`` returns "done", or "stopped" after SIGTERM, Ctrl-C or :meth:`stop`.

    Raises NonFiniteError before an optimizer step whose loss or gradients are not finite.  L-BFGS shortens
    its step instead and continues from the best point so far; only its first loss must be finite.
    """

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        batches: Batches,
        settings: TrainSettings,
        *,
        total_steps: int,
        seed: int = 0,
        hooks: Sequence[Hook] = (),
        ranks: Ranks = ALONE,
    ) -> None:
        self.settings = settings
        self.ranks = ranks
        self.device = choose_device(settings.device)
        self.precision: Precision = choose_precision(settings, self.device)
        # of several ranks, a model that exceeds the device is moved block by block, when it is spread
        self.model = self.precision.place(model, move=ranks.size == 1)
        self.objective = objective
        self._spread: Any = None  # the model and its loss over several ranks
        if ranks.size > 1:
            from wordloom.training.background_save import BackgroundSave  # these take a second
            from wordloom.training.sharding import LossOf, WholeCopy, mesh_of, shard_model

            self.background = BackgroundSave(ranks)
            self._copy = WholeCopy(self.model)
            mesh = mesh_of(settings.shard, ranks, self.device.type)
            self._spread = LossOf(self.model, objective)
            shard_model(self._spread, mesh, ranks, low_precision=self.precision.mode == "bf16")
        self.batches = batches
        self.total_steps = total_steps
        self.seed = seed
        self.hooks = list(hooks)
        self.optimizer: Optimizer = build_optimizer(
            self.model, settings.model_copy(update={"precision": self.precision.mode})
        )
        self.average = WeightAverage(self.model, settings.ema) if settings.ema else None
        self.step = 0  # optimizer steps done
        self.samples = 0  # samples drawn, over all micro-batches
        self.last_checkpoint: str | None = None
        self._stop = threading.Event()
        self._agreed = False  # of all ranks to stop
        self._failed = False  # to save, on one of the ranks

    # -- the loop ------------------------------------------------------------------------------------

    def run(self) -> str:
        """Train to the end or until a stop is requested, and call the hooks after every step."""
        for hook in self.hooks:
            hook.on_start(self)
        with stop_on_signals(self._stop):
            while self.step < self.total_steps and not self._is_stopped():
                record = self.train_step()
                try:
                    for hook in self.hooks:
                        hook.after_step(self, record)
                except Exception:
                    self._save_before_error()
                    raise
            for hook in self.hooks:
                hook.on_end(self)
            self.finish_saving()  # a second SIGTERM does not end a save under way
        return "done" if self.step >= self.total_steps else "stopped"

    def _save_before_error(self) -> None:
        """Save the step after which a hook failed, such as an evaluation; other ranks may not have failed."""
        if self.ranks.size > 1:
            return
        with suppress(Exception):  # the first error is raised
            for hook in self.hooks:
                hook.on_error(self)
            self.finish_saving()

    def stop(self) -> None:
        """Finish the step under way, let the hooks save, and return from :meth:`run`."""
        self._stop.set()

    @property
    def interrupted(self) -> bool:
        """Whether a stop was requested, even after the last step."""
        return self._stop.is_set()

    @property
    def stopping(self) -> bool:
        return self._is_stopped() or self.step >= self.total_steps

    def _is_stopped(self) -> bool:
        """Return whether to stop: other ranks must hear of a signal first, so that all stop at one step."""
        return self._stop.is_set() if self.ranks.size == 1 else self._agreed

    def train_step(self) -> StepRecord:
        """Take one optimizer step over ``batch_size`` samples, and return its record."""
        began = time.perf_counter()
        s = self.settings
        parts = self.ranks.parts(s.batch_size, s.micro_batch_size)
        # all micro-batches are read first: each gradient is divided by the number of items in all of them
        read = [
            to_device(self.batches.batch(self.samples + part.start, part.count), self.device)
            for part in parts
        ]
        data_seconds = time.perf_counter() - began
        share = learning_rate_share(self.step, self.total_steps, s)
        self.optimizer.set_learning_rate(share)

        self.model.train()
        self.model.zero_grad(set_to_none=True)
        loss, total, count = self._accumulate(read, parts)
        if self._failed:
            self.finish_saving()
        if self.optimizer.master is not None:
            self.optimizer.master.collect_gradients()
        norm = self._clip()
        finite = math.isfinite(loss) and math.isfinite(norm)
        if not finite and not self.optimizer.shortens:
            self._refuse(loss, norm)
        self.optimizer.step(loss)
        if self.average is not None:
            self.average.update(self.model)
        self.step += 1
        self.samples += s.batch_size
        if self.optimizer.converged:
            self.total_steps = self.step
        return {
            "step": self.step,
            "loss_total": total if finite else None,  # None: L-BFGS tried a step that was too long
            "loss_count": count if finite else 0,
            "rehearsed": isinstance(read[0], MixedBatch) and read[0].new is None,
            "learning_rate": self.optimizer.learning_rate,
            "gradient_norm": norm if finite else None,
            "seconds": time.perf_counter() - began,
            "data_seconds": data_seconds,
        }

    def loss_of(self, batch: Any) -> Loss:
        """Return the loss of the model for a batch."""
        loss: Loss = self.objective(self.model, batch) if self._spread is None else self._spread(batch)
        return loss

    def _accumulate(self, batches: Sequence[Any], parts: Sequence[Part]) -> tuple[float, float, int]:
        """Accumulate gradients of the summed loss over the global count; return (loss, nats, items scored).

        Each term of a loss of several terms has its own global count; the nats are then the mean loss times
        the count of the first term.  A small batch may have no masked word, and its loss is 0.
        """
        scored = torch.tensor([scored_items(self.objective, batch) for batch in batches])  # [parts, k]
        used = torch.tensor([not part.idle for part in parts])
        counts = self.ranks.summed(scored[used].sum(dim=0))
        totals = torch.zeros(len(counts), dtype=torch.float64)
        divisors = counts.clamp(min=1).to(self.device)
        for batch, part in zip(batches, parts, strict=True):
            self._seed_dropout()
            numbers = row_samples(self.batches, self.samples + part.start, part.count)
            with samples_of_rows(numbers):  # also in the backward pass, where blocks may be computed again
                with self.precision.autocast():
                    loss = self.loss_of(batch)
                terms = loss.total.reshape(-1)  # [k]
                mean = (terms / divisors).sum()
                torch.autograd.backward(mean * 0 if part.idle else mean)
            if not part.idle:
                totals += terms.detach().cpu().double()  # Apple GPUs have no float64
        totals = self._agree(totals)
        first = int(counts[0])
        loss_of_step = float((totals / counts.clamp(min=1)).sum())
        return loss_of_step, float(totals[0]) if len(totals) == 1 else loss_of_step * first, first

    def _agree(self, totals: Tensor) -> Tensor:
        """Return the sum of ``totals`` over ranks; learn whether one was told to stop, or could not save."""
        if self.ranks.size == 1:
            return totals
        told = totals.new_tensor([self._stop.is_set(), self.background.failed])
        *sums, stops, fails = self.ranks.summed(torch.cat([totals, told])).unbind()
        self._agreed, self._failed = bool(stops), bool(fails)
        return torch.stack(sums)

    def _seed_dropout(self) -> None:
        seed = dropout_seed(self.seed, self.step)
        if self.device.type == "cpu":
            torch.default_generator.manual_seed(seed)  # torch.manual_seed would also seed all other devices
        else:
            torch.manual_seed(seed)

    def _clip(self) -> float:
        """Scale larger gradients down to norm ``clip``, and return their norm before clipping."""
        parameters = [p for group in self.optimizer.groups for p in group["params"]]
        norm = self.ranks.whole(nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None]))
        size, clip = float(norm), self.settings.clip
        # L-BFGS needs the true gradients; scaling by 1 would cost two passes over all gradients
        if clip is not None and self.optimizer.lbfgs is None and not size + 1e-6 <= clip:
            nn.utils.clip_grads_with_norm_(parameters, clip, norm)
        return size

    def _refuse(self, loss: float, norm: float) -> None:
        self.finish_saving()
        for name, weight in self.model.named_parameters():
            if self.step == 0 and not weight.isfinite().all():
                raise NonFiniteError(
                    f"step 1: loss {loss:g}: {name} is not finite before the first step; the weights that "
                    "the run starts from are damaged"
                )
        documents = self.batches.document_ids(self.samples, self.settings.batch_size)
        more = f" and {len(documents) - 50} more" if len(documents) > 50 else ""
        raise NonFiniteError(
            f"step {self.step + 1}: loss {loss:g}, gradient norm {norm:g}; the optimizer step was not taken. "
            f"Documents of the batch: {', '.join(documents[:50])}{more}. Last good checkpoint: "
            f"{self.last_checkpoint or 'none yet'}. Lower train.learning_rate, lengthen train.warmup_steps, "
            "or look at those documents"
        )

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Make the weights of the model readable within the block, where all ranks must call it alike."""
        if self.ranks.size == 1:
            yield
            return
        from wordloom.training.sharding import gathered

        with gathered(self._spread):
            yield

    def finish_saving(self) -> None:
        """Wait for a checkpoint that several ranks write in the background; raise its error."""
        if self.ranks.size > 1:
            self.background.wait()

    @property
    def model_without_weights(self) -> Any:
        """The model of several ranks on the meta device."""
        return self._copy.model

    @contextmanager
    def whole_model(self) -> Iterator[Any]:
        """Yield the model with all its weights, which only the first rank may read."""
        if self.ranks.size == 1:
            yield self.model
            return
        with self._copy.of(self.model, self.ranks) as model:
            yield model

    # -- state -----------------------------------------------------------------------------------------

    def state_dict(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return all state except the model's weights: (tensors, plain values).

        All ranks must ask for it together, and only the first one has the tensors.
        """
        return {
            name: self._on_first(tensor) for name, tensor in self.state_tensors().items()
        }, self.state_values()

    def weight_tensors(self) -> dict[str, Tensor]:
        """Return the weights of the model; of several ranks, each has its parts."""
        weights = {name: p.detach() for name, p in self.model.named_parameters()}
        saved = self.model.state_dict().keys()
        return weights | {name: b for name, b in self.model.named_buffers() if name in saved}

    def state_tensors(self) -> dict[str, Tensor]:
        """Return the tensors of all state except the model's weights; each of several ranks has its parts."""
        tensors = self.optimizer.state_tensors()
        if self.average is not None:
            tensors.update(self.average.state_tensors())
        if isinstance(self.objective, TruncatedBPTT):
            tensors.update(self._carried(self.objective))
        return tensors

    def state_values(self) -> dict[str, Any]:
        """Return the plain values of the state."""
        return {
            "step": self.step,
            "samples": self.samples,
            "total_steps": self.total_steps,
            "seed": self.seed,
            "hooks": {type(hook).__name__: hook.state_dict() for hook in self.hooks},
        }

    def _carried(self, objective: TruncatedBPTT) -> dict[str, Tensor]:
        """Return the recurrent states of all rows of a step, of which each rank has its own."""
        tensors = objective.state_tensors()
        if self.ranks.size == 1:
            return tensors
        parts = self.ranks.parts(self.settings.batch_size)
        own = slice(parts[0].start, parts[0].start + parts[0].count)
        there = slice(own.start - objective.first, own.stop - objective.first)
        whole = {}
        for name, tensor in tensors.items():
            rows = tensor.new_zeros(self.settings.batch_size, *tensor.shape[1:])
            rows[own] = tensor[there]
            whole[name] = self.ranks.summed(rows)
        return whole

    def _on_first(self, tensor: Tensor) -> Tensor:
        """Return a tensor whole, on the first rank of several on its CPU and empty elsewhere."""
        if self.ranks.size == 1:
            return tensor
        whole = self.ranks.whole(tensor)
        return whole.cpu() if self.ranks.is_first else whole.new_empty(0)

    def load_state_dict(self, tensors: Mapping[str, Tensor], values: dict[str, Any]) -> None:
        """Restore the state of :meth:`state_dict`."""
        self.optimizer.load_state_tensors(tensors)
        if self.average is not None:
            self.average.load_state_tensors(tensors)
        if isinstance(self.objective, TruncatedBPTT):
            layers: Any = self.model.blocks if values["step"] else ()
            self.objective.load_state_tensors(tensors, layers)
        self.step, self.samples = values["step"], values["samples"]
        self.total_steps, self.seed = values["total_steps"], values["seed"]
        if self.optimizer.converged:
            self.total_steps = self.step
        for hook in self.hooks:
            hook.load_state_dict(values["hooks"].get(type(hook).__name__, {}))


def scored_items(objective: Objective, batch: Any) -> list[int]:
    """Return the number of items of ``batch`` that each term of the loss is divided by."""
    if counted := getattr(objective, "counts", None):
        counts: list[int] = counted(batch)
        return counts
    counts = [int((batch.targets != IGNORE).sum())]
    following = getattr(batch, "is_next", None)
    return counts if following is None else [*counts, len(following)]


def dropout_seed(seed: int, step: int) -> int:
    """Return the seed of dropout in a step, which all micro-batches share: their samples differ."""
    digest = hashlib.blake2b(f"{seed}/{step}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
