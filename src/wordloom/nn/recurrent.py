"""Recurrent layers: Elman's network, the LSTM, the GRU and their variants.

One step computes the next state from x [B, D] and the state: h [B, H] and, in an LSTM, c [B, H].  Here s is
the sigmoid, * multiplies element by element, and every gate has its own W, U and b:

    rnn_tanh          h' = tanh(W x + U h + b)                      (Elman 1990)
    rnn_relu          h' = relu(W x + U h + b)                      (Le et al. 2015, arXiv:1504.00941)
    lstm              i, f, o = s(W x + U h + b);  g = tanh(W x + U h + b)
                      c' = f * c + i * g;  h' = o * tanh(c')        (Gers et al. 2000)
    lstm_1997         lstm with f = 1                               (Hochreiter & Schmidhuber 1997)
    gru               r, z = s(W x + U h + b);  n = tanh(W x + U (r * h) + b)
                      h' = (1 - z) * h + z * n                      (Chung et al. 2014, arXiv:1412.3555)
    gru_reset_after   n = tanh(W x + b + r * (U h + b'))
                      h' = z * h + (1 - z) * n                      (cuDNN, torch.nn.GRU)

The last two are different functions: the reset gate acts before the product with U in ``gru``, and after it
in ``gru_reset_after``.  Swapping z and 1 - z is a matter of notation: Cho et al. 2014 (arXiv:1406.1078)
introduced the GRU and write z * h + (1 - z) * n.

With ``peephole``, an LSTM's gates read the cell through one weight per component: i and f read c, o reads c'
(Gers, Schraudolph & Schmidhuber 2002).  With ``projection`` its h is P (o * tanh(c')), [B, R] (Sak et al.
2014, arXiv:1402.1128).

torch.nn has two biases for each gate, which are added; here there is one.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wordloom.errors import ConfigError, did_you_mean
from wordloom.kernels.acceptance import fall_back, plain
from wordloom.nn.dropout import dropout
from wordloom.nn.linear import Linear, autocasts, product_dtype, widens
from wordloom.nn.recurrent_kernels import Weights, fits, run_sequence
from wordloom.nn.unmodified import modification

State: TypeAlias = tuple[Tensor, ...]  # (h,), or (h, c) of an LSTM
Product: TypeAlias = Callable[[Tensor, slice], Tensor]  # h [B, R], rows of U -> U[rows] h [B, rows]

#: cell -> its gates, in the order in which their rows lie in the weights (torch's).
CELLS: dict[str, tuple[str, ...]] = {
    "rnn_tanh": ("h",),
    "rnn_relu": ("h",),
    "lstm": ("i", "f", "g", "o"),
    "lstm_1997": ("i", "g", "o"),
    "gru": ("r", "z", "n"),
    "gru_reset_after": ("r", "z", "n"),
}
#: Names of cells elsewhere -> names here, for error messages.
_FOREIGN = {
    **dict.fromkeys(("rnn", "elman", "tanh", "vanilla", "srn", "simple_rnn", "simplernn"), "rnn_tanh"),
    **dict.fromkeys(("relu", "irnn"), "rnn_relu"),
}
_ALL = slice(None)
_WIDE = 400  # from this hidden_dim on, our LSTM is faster than PyTorch's in bfloat16
_OPEN = 40.0  # the bias of an open gate: its sigmoid is 1 in float32


def unknown_cell(name: str) -> str:
    """Return the error message for a cell that is not in CELLS, with a suggestion."""
    meant = _FOREIGN.get(name.lower(), name.lower())
    hint = f"did you mean '{meant}'?" if meant in CELLS else did_you_mean(meant, CELLS)
    return f"unknown cell {name!r}; {hint}"


class Recurrent(nn.Module):
    """One recurrent layer: x [B, T, D] -> h [B, T, H], or [B, T, R] with a projection.

    The model initialises all parameters (``init_weights``), not the layer.

    Attributes:
        kernel: the implementation where our own kernel does not apply and no row restarts: ``"torch"``, or
            ``"steps"``, one step after another.
    """

    def __init__(
        self,
        *,
        cell: str,
        dim: int,
        hidden_dim: int,
        bias: bool = True,
        projection: int | None = None,
        peephole: bool = False,
        weight_drop: float = 0.0,
    ) -> None:
        """``weight_drop``: share of U's weights that a training pass drops, at all of its steps
        (Merity et al. 2018, arXiv:1708.02182).

        Raises:
            ConfigError: the cell is none of CELLS, or has no peephole or projection; a projection is not from
                1 to below ``hidden_dim``, or ``weight_drop`` not from 0 to below 1.
        """
        super().__init__()
        if not 0 <= weight_drop < 1:
            raise ConfigError(f"weight_drop {weight_drop:g} is not allowed; give 0 to below 1")
        if projection is not None and not 1 <= projection < hidden_dim:
            raise ConfigError(
                f"projection {projection} is not allowed; give 1 to below hidden_dim {hidden_dim}"
            )
        if cell not in CELLS:
            raise ConfigError(unknown_cell(cell))
        lstm = cell.startswith("lstm")
        for name, value in (("peephole", peephole), ("projection", projection)):
            if value and not lstm:
                raise ConfigError(f"{name} belongs to an LSTM; cell {cell!r} has none")
        self.cell, self.hidden_dim, self.weight_drop = cell, hidden_dim, weight_drop
        self.state_dims = (projection or hidden_dim, hidden_dim) if lstm else (hidden_dim,)
        gates = CELLS[cell]
        self.input_proj = Linear(dim, len(gates) * hidden_dim, bias=bias)
        self.hidden_proj = Linear(self.state_dims[0], len(gates) * hidden_dim, bias=False)
        inner = bias and cell == "gru_reset_after"
        self.candidate_bias = nn.Parameter(torch.empty(hidden_dim)) if inner else None
        self.state_proj = Linear(hidden_dim, projection, bias=False) if projection else None
        # every gate but the candidate reads the cell
        self.peephole = nn.Parameter(torch.empty(len(gates) - 1, hidden_dim)) if peephole else None
        self.kernel = "steps" if peephole or cell == "gru" else "torch"
        self.recorded: list[State] | None = None  # set to a list to collect the state after every step

    @property
    def gates(self) -> tuple[str, ...]:
        return CELLS[self.cell]

    def rows(self, gate: str) -> slice:
        """Return the rows of a gate in ``input_proj`` and ``hidden_proj``."""
        at = self.gates.index(gate) * self.hidden_dim
        return slice(at, at + self.hidden_dim)

    @torch.no_grad()
    def init_gates(
        self, forget_bias: float, generator: torch.Generator | None = None, *, identity: bool = True
    ) -> None:
        """Add ``forget_bias`` to an LSTM's forget gate, after the weights are initialised.

        With ``identity``, U of a ReLU layer becomes the identity and W is drawn again with deviation 0.001
        (Le et al. 2015).
        """
        if identity and self.cell == "rnn_relu":
            nn.init.eye_(self.hidden_proj.weight)
            nn.init.normal_(self.input_proj.weight, std=0.001, generator=generator)
        if "f" in self.gates and self.input_proj.bias is not None:
            self.input_proj.bias[self.rows("f")] += forget_bias

    def new_state(self, batch: int, like: Tensor) -> State:
        """Return zeros with the device and dtype of ``like``."""
        return tuple(like.new_zeros(batch, size) for size in self.state_dims)

    def forward(
        self,
        x: Tensor,
        state: State | None = None,
        *,
        attend: Tensor | None = None,
        starts: Tensor | None = None,
        exact: bool = False,
    ) -> tuple[Tensor, State]:
        """Return h of every step [B, T, H] and the last state, for x [B, T, D] after ``state``.

        Args:
            x: the inputs.
            state: the state from :meth:`new_state` or an earlier call; None means zeros.
            attend: [B, T], False where a row keeps its state, for padding.
            starts: [B, T], True where a row restarts: its state is set to zero before that step.
            exact: compute the steps one after another, as written in this file, whatever ``kernel`` is.

        Raises ConfigError for a state of wrong sizes, which not every kernel would notice, and for weight
        drop in training on a modified ``hidden_proj``.
        """
        if state is None:
            state = self.new_state(len(x), x)
        shapes = [tuple(part.shape) for part in state]
        if shapes != (expected := [(len(x), size) for size in self.state_dims]):
            raise ConfigError(f"a state of shapes {shapes} does not fit {len(x)} rows, which need {expected}")
        u = self._dropped_weight()
        stepping = exact or self.recorded is not None or not plain(*state)
        kernel = "steps" if stepping or not x.shape[1] else self.kernel_for(x, starts is not None)
        if kernel == "fused" and u is not None:
            return self._fused(x, state, u, attend, starts)
        if not autocasts(x):  # the fused kernel returns c in float32
            state = tuple(part.to(x.dtype) for part in state)
        if kernel == "steps" or u is None:
            return self._steps(x, state, u, attend, starts)
        return self._by_torch(x, state, u) if attend is None else self._packed(x, state, u, attend)

    def kernel_for(self, x: Tensor, starts: bool = False) -> str:
        """Return the implementation for x [B, T, D]; ``starts``: rows may restart within the sequence.

        ``"fused"`` is :mod:`wordloom.nn.recurrent_kernels`, for whole sequences on a CPU, ``"torch"`` is
        PyTorch's, and ``"steps"`` serves all other cases.  For plain LSTMs PyTorch's kernel is as fast or
        faster, except for wide ones that are trained in bfloat16, but rows cannot restart.  A modified layer
        is called step by step.
        """
        if reason := self._modification():
            fall_back("Recurrent", reason)
            return "steps"
        wide = torch.is_grad_enabled() and self.hidden_dim >= _WIDE and product_dtype(x) == torch.bfloat16
        ordinary = self.kernel == "torch" and self.cell.startswith("lstm") and self.state_proj is None
        if (wide or starts or not ordinary) and fits(x, self.hidden_dim):
            return "fused"
        return "steps" if starts else self.kernel

    def _modification(self) -> str:
        """Return why the layers must be called, or "" if a kernel may read their weights."""
        if type(self) is not Recurrent:
            return f"{type(self).__name__} instead of Recurrent"
        if not plain(self.peephole, self.candidate_bias):
            return "peephole or candidate_bias is not a plain tensor"
        layers = (self.input_proj, self.hidden_proj, self.state_proj)
        return next((reason for layer in layers if (reason := modification(layer, Linear))), "")

    def _fused(
        self, x: Tensor, state: State, u: Tensor, attend: Tensor | None = None, starts: Tensor | None = None
    ) -> tuple[Tensor, State]:
        projection = None if self.state_proj is None else self.state_proj.weight
        layer = self.input_proj
        weights = Weights(layer.weight, u, layer.bias, self.candidate_bias, self.peephole, projection)
        return run_sequence(self.cell, x, state, weights, attend, starts)

    # -- one step after another --------------------------------------------------------------------------

    def _dropped_weight(self) -> Tensor | None:
        """Return U with weights dropped, or None if ``hidden_proj`` is modified and must be called.

        Raises ConfigError for weight drop on a modified layer, which may use more than its matrix.
        """
        reason = modification(self.hidden_proj, Linear)
        if not reason:
            return dropout(self.hidden_proj.weight, self.weight_drop, self.training, shared=True)
        if self.weight_drop and self.training:
            raise ConfigError(
                f"weight_drop needs hidden_proj's own matrix, and that layer is modified ({reason}); set "
                "weight_drop to 0, or leave hidden_proj as it was built"
            )
        return None

    def _hidden_product(self, u: Tensor | None) -> Product:
        """Return the product with U: with the tensor ``u``, or by calling the layer."""
        if u is None:
            return lambda h, rows: self.hidden_proj(h)[:, rows]
        return lambda h, rows: F.linear(h, u if rows == _ALL else u[rows])

    def _steps(
        self, x: Tensor, state: State, u: Tensor | None, attend: Tensor | None, starts: Tensor | None
    ) -> tuple[Tensor, State]:
        product = self._hidden_product(u)
        inputs = self.input_proj(x)  # [B, T, G * H]: W x + b of all steps in one product
        outputs = []
        for t in range(x.shape[1]):
            if starts is not None:
                state = tuple(part.masked_fill(starts[:, t, None], 0.0) for part in state)
            new = self._step(inputs[:, t], state, product)
            if attend is not None:
                padding = ~attend[:, t, None]
                new = tuple(torch.where(padding, old, now) for old, now in zip(state, new, strict=True))
            state = new
            outputs.append(state[0])
            if self.recorded is not None:
                self.recorded.append(state)
        empty = x.new_zeros(len(x), 0, self.state_dims[0])
        return torch.stack(outputs, dim=1) if outputs else empty, state

    def _step(self, wx: Tensor, state: State, u: Product) -> State:
        """Compute one step; ``wx`` [B, G * H] is W x + b."""
        match self.cell:
            case "rnn_tanh":
                return (torch.tanh(wx + u(state[0], _ALL)),)
            case "rnn_relu":
                return (torch.relu(wx + u(state[0], _ALL)),)
            case "gru" | "gru_reset_after":
                return (self._gru(wx, state[0], u),)
            case _:
                return self._lstm(wx, state, u)

    def _lstm(self, wx: Tensor, state: State, u: Product) -> State:
        h, c = state
        sums = dict(zip(self.gates, (wx + u(h, _ALL)).chunk(len(self.gates), dim=-1), strict=True))
        kept = torch.sigmoid(self._gate_sum("f", sums, c)) * c if "f" in sums else c
        c = kept + torch.sigmoid(self._gate_sum("i", sums, c)) * torch.tanh(sums["g"])
        h = torch.sigmoid(self._gate_sum("o", sums, c)) * torch.tanh(c)
        return (h if self.state_proj is None else self.state_proj(h)), c

    def _gate_sum(self, gate: str, sums: dict[str, Tensor], c: Tensor) -> Tensor:
        """Return the input of a gate's sigmoid, with the cell if there is a peephole."""
        if self.peephole is None:
            return sums[gate]
        return sums[gate] + self.peephole[[name for name in self.gates if name != "g"].index(gate)] * c

    def _gru(self, wx: Tensor, h: Tensor, u: Product) -> Tensor:
        split = 2 * self.hidden_dim
        if self.cell == "gru":
            r, z = torch.sigmoid(wx[:, :split] + u(h, slice(0, split))).chunk(2, dim=-1)
            n = torch.tanh(wx[:, split:] + u(r * h, slice(split, None)))
            return (1 - z) * h + z * n
        uh = u(h, _ALL)
        r, z = torch.sigmoid(wx[:, :split] + uh[:, :split]).chunk(2, dim=-1)
        candidate = uh[:, split:] if self.candidate_bias is None else uh[:, split:] + self.candidate_bias
        n = torch.tanh(wx[:, split:] + r * candidate)
        return z * h + (1 - z) * n

    # -- torch's kernels ---------------------------------------------------------------------------------

    def _by_torch(
        self, x: Tensor, state: State, u: Tensor, sizes: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Run PyTorch's kernel on x [B, T, D], or on packed x [N, D], where step t has ``sizes[t]`` rows.

        Where 16-bit products are faster in float32, so is the whole sequence, and its results are rounded:
        oneDNN has no LSTM in bfloat16 for CPUs without AVX512, and autocast raises RuntimeError there.
        """
        weights, biased = self._torch_weights(u)
        dtype = product_dtype(x)
        if widens(x.device, dtype):
            x, state = x.float(), tuple(part.float() for part in state)
            with torch.autocast(x.device.type, enabled=False):
                outputs, after = self._torch_kernel(x, state, [w.float() for w in weights], biased, sizes)
            return outputs.to(dtype), tuple(part.to(dtype) for part in after)
        return self._torch_kernel(x, state, weights, biased, sizes)

    def _torch_kernel(
        self, x: Tensor, state: State, weights: list[Tensor], biased: bool, sizes: Tensor | None
    ) -> tuple[Tensor, State]:
        kept = tuple(part[None] for part in state)  # [1, B, H]: torch has a dimension of layers
        inputs: tuple[Any, ...] = (x,) if sizes is None else (x, sizes)
        settings: tuple[Any, ...] = (weights, biased, 1, 0.0, self.training, False)
        settings += (True,) if sizes is None else ()  # the batch comes first
        kernels = {"rnn_tanh": torch.rnn_tanh, "rnn_relu": torch.rnn_relu, "gru_reset_after": torch.gru}
        kernel: Any = kernels.get(self.cell, torch.lstm)
        before = kept if kernel is torch.lstm else kept[0]
        with nullcontext() if self.state_proj is None else warnings.catch_warnings():
            if self.state_proj is not None:  # oneDNN has no projections, and PyTorch then uses another kernel
                warnings.filterwarnings("ignore", message="LSTM with projections is not supported")
            outputs, *after = kernel(*inputs, before, *settings)
        return outputs, tuple(part[0] for part in after)

    def _packed(self, x: Tensor, state: State, u: Tensor, attend: Tensor) -> tuple[Tensor, State]:
        """Run PyTorch's kernel on the steps that are not padding; rows with more steps come first."""
        if bool(attend.all()):
            return self._by_torch(x, state, u)
        taken = attend.cumsum(dim=1)  # [B, T]: number of a row's steps so far
        lengths, rows = taken[:, -1].sort(descending=True, stable=True)
        if not int(lengths[-1]):  # torch refuses a row without a step
            return self._steps(x, state, u, attend, None)
        numbers = torch.arange(int(lengths[0]), device=x.device)
        sizes = (lengths[:, None] > numbers).sum(dim=0)  # [longest]: rows that have an n-th step
        begins = sizes.cumsum(dim=0) - sizes  # [longest]: offsets of the n-th steps
        place = rows.argsort()  # [B]: of each row among the n-th steps
        last = begins[(taken - 1).clamp(min=0)] + place[:, None]  # [B, T]: offset of a row's latest step
        order = attend.flatten().nonzero()[:, 0][last[attend].argsort()]
        outputs, after = self._by_torch(
            F.embedding(order, x.flatten(0, 1)), tuple(part[rows] for part in state), u, sizes.cpu()
        )
        # before a row's first step, its output is its state
        held = torch.cat([state[0].to(outputs.dtype), outputs])
        own = torch.arange(len(x), device=x.device)[:, None]
        shown = torch.where(taken > 0, len(x) + last, own)  # [B, T]
        return F.embedding(shown, held), tuple(part[place] for part in after)

    def _torch_weights(self, u: Tensor) -> tuple[list[Tensor], bool]:
        """Return W, U, b and b' (and P) in PyTorch's layout, and whether there are biases."""
        w: Tensor = self.input_proj.weight
        b: Tensor | None = self.input_proj.bias
        if self.cell == "lstm_1997":  # an LSTM whose forget gate is open
            H = self.hidden_dim
            b = w.new_zeros(3 * H) if b is None else b
            # rows for an always open gate, after those of the first gate
            w, u, b = (
                torch.cat([part[:H], torch.full_like(part[:H], fill), part[H:]])
                for part, fill in ((w, 0.0), (u, 0.0), (b, _OPEN))
            )
        biases: list[Tensor] = []
        if b is not None:
            other = torch.zeros_like(b)
            if self.candidate_bias is not None:
                other = torch.cat([other[: -self.hidden_dim], self.candidate_bias])
            biases = [b, other]
        projection = [] if self.state_proj is None else [self.state_proj.weight]
        return [w, u, *biases, *projection], bool(biases)
