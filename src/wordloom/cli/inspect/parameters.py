"""``wordloom inspect CHECKPOINT|PRESET parameters``: parameters, memory and operations of a model."""

from __future__ import annotations

import json as json_module
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from wordloom.cli import options
from wordloom.cli.options import option
from wordloom.cli.tables import plain_table, print_unwrapped
from wordloom.cli.usage import refuse
from wordloom.errors import CheckpointError, did_you_mean

if TYPE_CHECKING:
    from wordloom.inspect import ParameterTable
    from wordloom.inspect.parameters import Component


def command(
    ctx: typer.Context,
    context: int | None = option(
        None,
        "How many tokens a text has, for the costs of attention.  [default: the model's max_seq_len]",
        min=1,
    ),
    attention: str | None = option(
        None, "Another attention, such as band:256+global:4.  [default: the model's]", metavar="PATTERN"
    ),
    json: options.JSON = False,
) -> None:
    """Show the parameters of a model.  Report their memory and the operations for each token."""
    from wordloom.inspect import parameter_table
    from wordloom.models.building.attention import with_attention

    name = ctx.obj
    config = config_of(name)
    if attention is not None:
        config = with_attention(config, attention)
    if not hasattr(config, "n_layers"):
        refuse(ctx, "a bag of words has no attention", "context")
        _bag_parameters(name, config, json=json)
        return
    table = parameter_table(config, context=context)
    if json:
        settings = {**vars(config), **({"body": vars(config.body)} if hasattr(config, "body") else {})}
        settings = {key: value for key, value in settings.items() if value is not None}
        print(json_module.dumps({"model": name, "config": settings, **table.as_dict()}))
    else:
        print_parameters(Console(), name, config, table)


def _bag_parameters(name: str, config: Any, *, json: bool) -> None:
    from wordloom.models import MODELS, family_of, skeleton

    shapes = {key: tuple(p.shape) for key, p in skeleton(config).named_parameters()}
    total = sum(p.numel() for p in skeleton(config).parameters())
    if json:
        facts = {"model": name, "config": vars(config), "total": total}
        print(json_module.dumps({**facts, "parameters": {key: list(shape) for key, shape in shapes.items()}}))
        return
    kind = MODELS[family_of(config)].model.__name__
    words = f"{config.vocab_size:,} words ({config.features}), labels: {', '.join(config.labels)}"
    Console().print(Text(f"{name}: {kind}, {words}", style="bold"), end="\n\n")
    table_of_shapes = plain_table(None, "component", "shape", "parameters")
    for key, shape in shapes.items():
        table_of_shapes.add_row(key, "×".join(map(str, shape)), f"{math.prod(shape):,}")
    table_of_shapes.add_section()
    table_of_shapes.add_row("total", "", f"{total:,}", style="bold")
    print_unwrapped(table_of_shapes)


def config_of(name: str) -> Any:
    """Return the config of a preset or a checkpoint; raises CheckpointError for a name that is both."""
    from wordloom.models import PRESETS
    from wordloom.weights import load_config

    if name in PRESETS:
        if Path(name, "config.json").exists():
            raise CheckpointError(f"'{name}' is a preset and also a folder; write './{name}' for the folder")
        return PRESETS[name]
    if not Path(name).exists():
        raise CheckpointError(f"no checkpoint folder and no preset '{name}'; {did_you_mean(name, PRESETS)}")
    return load_config(name)


def print_parameters(console: Console, name: str, config: Any, table: ParameterTable) -> None:
    """Print the components, memory, key/value cache and operations."""
    from wordloom.models import CBOWConfig
    from wordloom.nn.attention import Approximation

    c = getattr(config, "body", config)  # of a model with a head
    n_layers = f"{c.n_layers}+{c.decoder_layers}" if hasattr(c, "decoder_layers") else str(c.n_layers)
    shape = f"{n_layers} layers, dim {c.dim}, "
    if table.state:
        shape += f"cell {c.cell}"
    elif isinstance(c, CBOWConfig):
        shape += f"bags of {c.window} tokens"
    else:
        shape += f"{c.n_heads} heads, context {c.max_seq_len:,}"
    console.print(Text(f"{name}: {_kind(config)}, {shape}", style="bold"), end="\n\n")
    print_unwrapped(_component_table(table), console)
    memory = ", ".join(f"{_bytes(size)} {precision}" for precision, size in table.memory.items())
    console.print(f"\nWeights: {memory}\n", highlight=False)
    if table.state:
        sizes = f"{_bytes(table.state * 4)} fp32, {_bytes(table.state * 2)} bf16"
        console.print(f"Recurrent state of a row: {sizes}\n", highlight=False)
    if table.kv_cache:
        print_unwrapped(_cache_table(table), console)
        console.print()
    if any(isinstance(kind, Approximation) for kind in getattr(c, "patterns", ())):
        shown = f"attention {c.attention}: as many operations as {table.keys:,.1f} keys per query"
        console.print(f"{shown}\n", highlight=False, markup=False)
    elif table.keys < table.context:
        shown = f"attention {c.attention}: {table.keys:,.1f} of {table.context:,} keys per query"
        console.print(f"{shown}\n", highlight=False, markup=False)
    if table.activations:
        kept = ", ".join(f"{_bytes(size)} {precision}" for precision, size in table.activations.items())
        note = f"Attention keeps {kept} for the backward pass of {table.context:,} tokens."
        console.print(f"{note}\n", highlight=False)
    print_unwrapped(_flops_table(table), console)


def _kind(config: Any) -> str:
    """Return the name of a model's class, and its task if it has a head."""
    body = getattr(config, "body", config)
    named = type(body).__name__.removesuffix("Config")
    return named if body is config else f"{named} for {config.task}"


def _component_table(table: ParameterTable) -> Table:
    rows = plain_table(None, "component", "shape", "parameters", "share")
    stacks: dict[str, list[Component]] = {}  # "blocks.*." or those of a side: what a layer is made of
    for c in table.components:
        if "blocks.*." in c.name:
            stacks.setdefault(_stack(c), []).append(c)
    for c in table.components:
        label = c.name
        if "blocks.*." in c.name:
            stack = stacks[_stack(c)]
            n_layers = max(part.copies for part in stack)
            if c is stack[0]:
                each = sum(part.parameters for part in stack if part.copies == n_layers)
                kind = _stack(c).removesuffix(".*.").replace("_", " ")
                rows.add_row(Text(f"{n_layers} {kind}, each", style="dim"), Text(f"{each:,}", style="dim"))
            label = "  " + c.name.removeprefix(_stack(c))
            if c.copies != n_layers:
                label += f" ({c.copies} of them)"
        parts = [f"= {owner}" if owner else "×".join(map(str, shape)) for shape, owner in c.tensors]
        rows.add_row(label, " + ".join(parts) or "computed", f"{c.total:,}", _share(c.total, table.total))
    rows.add_section()
    rows.add_row("total", "", f"{table.total:,}", "100%", style="bold")
    return rows


def _stack(component: Component) -> str:
    """``encoder_blocks.*.`` of ``encoder_blocks.*.attention.q_proj``."""
    return "".join(component.name.partition("blocks.*.")[:2])


def _cache_table(table: ParameterTable) -> Table:
    precisions = list(table.kv_cache[0].bytes_per_token)
    title = f"Key/value cache per {table.per}, and of {table.context:,} tokens in {precisions[-1]}"
    rows = plain_table(title, "", "kv heads", *precisions, "all")
    for kv in table.kv_cache:
        sizes = list(kv.bytes_per_token.values())
        kind = f"{kv.kind} (this model)" if kv.is_this_model else kv.kind
        cells = [_bytes(size) for size in [*sizes, kv.bytes_of_context[precisions[-1]]]]
        rows.add_row(kind, str(kv.n_kv_heads), *cells, style="bold" if kv.is_this_model else "")
    return rows


def _flops_table(table: ParameterTable) -> Table:
    f, attentions = table.flops, "layers" if table.per == "token" else "attentions"
    each = "2 × (key + memory)" if table.state else f"4 × {attentions} × heads × head_dim"
    rows = plain_table(f"Operations per {table.per}", "", "FLOPs", "share")
    for name, flops in [
        ("layers: 2 × the weights of their matrices", f.layers),
        (f"attention: {each} × {table.keys:,.0f} keys", f.attention),
        ("head: 2 × its weights", f.head),
    ]:
        if table.state and name.startswith("attention") and not flops:
            continue
        rows.add_row(name, _flops(flops), _share(flops, f.forward))
    rows.add_section()
    rows.add_row("forward", _flops(f.forward), "100%", style="bold")
    rows.add_row("training: 3 × forward", _flops(f.training), "", style="bold")
    return rows


def _share(part: int, whole: int) -> str:
    share = part / whole
    return "0%" if part == 0 else "<0.1%" if share < 0.0005 else f"{share:.1%}"


def _flops(n: float) -> str:
    units = (("", 1), (" M", 1e6), (" G", 1e9))
    unit, size = next(((unit, size) for unit, size in units if n / size < 1000), (" T", 1e12))
    return f"{n / size:.4g}{unit}"


def _bytes(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} TiB"
