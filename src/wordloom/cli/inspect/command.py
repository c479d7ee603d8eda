"""``wordloom inspect CHECKPOINT|PRESET [VIEW]``, of parameters, attention, alignment, gradients, lengths,
top-words and forgetting."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from wordloom.cli.inspect.causal import load_causal
from wordloom.cli.inspect.forgetting import inspect_forgetting
from wordloom.cli.inspect.gradients import inspect_gradients
from wordloom.cli.inspect.pairs import inspect_alignment, inspect_lengths
from wordloom.cli.tables import plain_table, visible
from wordloom.cli.usage import refuse
from wordloom.cli.written import FORCE, refuse_existing
from wordloom.errors import CheckpointError, GenerationError, did_you_mean

if TYPE_CHECKING:
    from wordloom.inspect import AttentionMap, ParameterTable
    from wordloom.inspect.parameters import Component

__all__ = ["command"]

# Options, and the views that take them.
_OF_VIEWS = {
    "context": ("parameters",),
    "prompt": ("attention", "gradients"),
    "file": ("gradients", "lengths"),
    "distance": ("gradients",),
    "windows": ("gradients",),
    "beside": ("gradients", "lengths", "forgetting"),
    "metric": ("forgetting",),
    "target": ("alignment",),
    "targets": ("lengths",),
    "beams": ("alignment", "lengths"),
    "width": ("lengths",),
    "layer": ("attention", "alignment"),
    "head": ("attention", "alignment"),
    "plot": ("attention", "alignment", "gradients", "lengths", "forgetting"),
    "top_k": ("top-words",),
}


def command(
    ctx: typer.Context,
    model: Annotated[
        str, typer.Argument(help="A checkpoint folder, or the name of a preset such as llama-7b.")
    ],
    view: Annotated[
        Literal["parameters", "attention", "alignment", "gradients", "lengths", "top-words", "forgetting"],
        typer.Argument(help="What to show."),
    ] = "parameters",
    text: Annotated[
        str | None, typer.Argument(metavar="TEXT", help="alignment: the source text.", show_default=False)
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(help="parameters: keys per query in the costs.  [default: max_seq_len]", min=1),
    ] = None,
    prompt: Annotated[str | None, typer.Option(help="attention, gradients: the text that is read.")] = None,
    file: Annotated[
        str | None,
        typer.Option(
            help="gradients, lengths: a file or data set to read.  [default: what the recipe validates on]"
        ),
    ] = None,
    distance: Annotated[int, typer.Option(help="gradients: how many tokens back.", min=1)] = 64,
    windows: Annotated[int, typer.Option(help="gradients: at how many places of the text.", min=1)] = 32,
    beside: Annotated[
        list[str] | None,
        typer.Option(help="gradients, lengths, forgetting: another folder; may be given again."),
    ] = None,
    metric: Annotated[
        str | None, typer.Option(help="forgetting: the new task's figure.  [default: accuracy or its like]")
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="alignment: what is written.  [default: the model's translation]")
    ] = None,
    targets: Annotated[
        str | None, typer.Option(help="lengths: the references, line by line beside --file.")
    ] = None,
    beams: Annotated[
        int, typer.Option(help="alignment, lengths: hypotheses kept at a time; 1 is greedy.", min=1)
    ] = 5,
    width: Annotated[int, typer.Option(help="lengths: words of a bin.", min=1)] = 5,
    layer: Annotated[
        int | None,
        typer.Option(
            help="attention, alignment: the layer, from 0.  [default: the last, of an alignment the mean; "
            "attention --plot: all]",
            min=0,
        ),
    ] = None,
    head: Annotated[
        int | None,
        typer.Option(help="attention, alignment: the head, from 0.  [default: the mean of all heads]", min=0),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="all but parameters and top-words: draw the view into this .png, .svg or .pdf file.",
        ),
    ] = None,
    force: Annotated[bool, FORCE] = False,
    top_k: Annotated[int, typer.Option(help="top-words: how many words of each label.", min=1)] = 10,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the inside of a model: its parameters and costs, or another view.

    The views: attention of each head; alignment of a translation with its source; gradients, by how far back
    they reach; BLEU by the lengths of sources; the words with the highest weights of each label (bags of
    words); and what fine-tuned runs forgot of their old task.
    """
    refuse(
        ctx,
        f"the view '{view}' takes no such option",
        *(name for name in _OF_VIEWS if view not in _OF_VIEWS[name]),
    )
    if plot is None:
        refuse(ctx, "without --plot no file is written", "force")
    refuse_existing(plot=plot, force=force)
    if text is not None and view != "alignment":
        raise GenerationError(f"the view '{view}' takes no TEXT: leave out '{text}', or give it as --prompt")
    if view == "parameters":
        _parameters(ctx, model, context=context, json=json)
    elif view == "top-words":
        _top_words(model, top_k, json=json)
    elif view == "gradients":
        inspect_gradients([model, *(beside or [])], prompt, file, distance, windows, plot, json=json)
    elif view == "forgetting":
        inspect_forgetting([model, *(beside or [])], metric, plot, json=json)
    elif view == "lengths":
        inspect_lengths([model, *(beside or [])], file, targets, beams, width, plot, json=json)
    else:
        if json:
            unused = ("head",) if plot else ("layer", "head")
            refuse(ctx, "--json prints all layers and heads", *unused)
        if view == "alignment":
            inspect_alignment(model, text, target, beams, layer, head, plot, json=json)
        else:
            _attention(model, prompt=prompt, layer=layer, head=head, plot=plot, json=json)


def _top_words(folder: str, k: int, *, json: bool) -> None:
    from wordloom.run import load_classifier

    words = load_classifier(folder).top_words(k)
    if json:
        print(json_module.dumps(words, ensure_ascii=False))
        return
    made = Table(box=box.SIMPLE_HEAD, show_edge=False)
    for label in words:
        made.add_column(Text(label))
        made.add_column("weight", justify="right")
    for row in zip(*words.values(), strict=True):
        made.add_row(*(cell for word, weight in row for cell in (Text(visible(word)), f"{weight:.3f}")))
    Console().print(made)


def _parameters(ctx: typer.Context, name: str, *, context: int | None, json: bool) -> None:
    from wordloom.inspect import parameter_table

    config = _config(name)
    if not hasattr(config, "n_layers"):
        refuse(ctx, "a bag of words attends to nothing", "context")
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
    made = plain_table(None, "component", "shape", "parameters")
    for key, shape in shapes.items():
        size = 1
        for side in shape:
            size *= side
        made.add_row(key, "×".join(map(str, shape)), f"{size:,}")
    made.add_section()
    made.add_row("total", "", f"{total:,}", style="bold")
    Console().print(made)


def _config(name: str) -> Any:
    """The config of a preset or of a checkpoint folder; a name that is both is refused."""
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
    """The table for people: components, memory, key/value cache, operations."""
    c = getattr(config, "body", config)  # of a model with a head
    n_layers = f"{c.n_layers}+{c.decoder_layers}" if hasattr(c, "decoder_layers") else str(c.n_layers)
    shape = f"{n_layers} layers, dim {c.dim}, "
    shape += f"cell {c.cell}" if table.state else f"{c.n_heads} heads, context {c.max_seq_len:,}"
    console.print(Text(f"{name}: {_kind(config)}, {shape}", style="bold"), end="\n\n")
    console.print(_component_table(table))
    memory = ", ".join(f"{_bytes(size)} {precision}" for precision, size in table.memory.items())
    console.print(f"\nWeights: {memory} (without scales)\n", highlight=False)
    if table.state:
        sizes = f"{_bytes(table.state * 4)} fp32, {_bytes(table.state * 2)} bf16"
        console.print(f"State of a row, however long it is: {sizes}\n", highlight=False)
    if table.kv_cache:
        console.print(_cache_table(table))
        console.print()
    console.print(_flops_table(table))


def _kind(config: Any) -> str:
    """What a model is called: its class, and its task where it has a head for one."""
    body = getattr(config, "body", config)
    named = type(body).__name__.removesuffix("Config")
    return named if body is config else f"{named} for {config.task}"


def _component_table(table: ParameterTable) -> Table:
    made = plain_table(None, "component", "shape", "parameters", "share")
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
                made.add_row(Text(f"{n_layers} {kind}, each", style="dim"), Text(f"{each:,}", style="dim"))
            label = "  " + c.name.removeprefix(_stack(c))
            if c.copies != n_layers:
                label += f" ({c.copies} of them)"
        parts = [f"= {owner}" if owner else "×".join(map(str, shape)) for shape, owner in c.tensors]
        made.add_row(label, " + ".join(parts) or "computed", f"{c.total:,}", _share(c.total, table.total))
    made.add_section()
    made.add_row("total", "", f"{table.total:,}", "100%", style="bold")
    return made


def _stack(component: Component) -> str:
    """``encoder_blocks.*.`` of ``encoder_blocks.*.attention.q_proj``."""
    return "".join(component.name.partition("blocks.*.")[:2])


def _cache_table(table: ParameterTable) -> Table:
    precisions = list(table.kv_cache[0].bytes_per_token)
    whole = f"{precisions[-1]} × {table.context:,}"
    made = plain_table(f"Key/value cache per {table.per}", "", "kv heads", *precisions, whole)
    for kv in table.kv_cache:
        sizes = list(kv.bytes_per_token.values())
        kind = f"{kv.kind} (this model)" if kv.is_this_model else kv.kind
        cells = [_bytes(size) for size in [*sizes, sizes[-1] * table.context]]
        made.add_row(kind, str(kv.n_kv_heads), *cells, style="bold" if kv.is_this_model else "")
    return made


def _flops_table(table: ParameterTable) -> Table:
    f, attentions = table.flops, "layers" if table.per == "token" else "attentions"
    each = "2 × (key + memory)" if table.state else f"4 × {attentions} × heads × head_dim"
    made = plain_table(f"Operations per {table.per}", "", "FLOPs", "share")
    for name, flops in [
        ("layers: 2 × the weights of their matrices", f.layers),
        (f"attention: {each} × {table.context:,} keys", f.attention),
        ("head: 2 × its weights", f.head),
    ]:
        if table.state and name.startswith("attention") and not flops:
            continue
        made.add_row(name, _flops(flops), _share(flops, f.forward))
    made.add_section()
    made.add_row("forward", _flops(f.forward), "100%", style="bold")
    made.add_row("training: 3 × forward", _flops(f.training), "", style="bold")
    return made


def _share(part: int, whole: int) -> str:
    share = part / whole
    return "0%" if part == 0 else "<0.1%" if share < 0.0005 else f"{share:.1%}"


def _flops(n: float) -> str:
    for unit in ("", " M", " G", " T"):
        scaled = n / {"": 1, " M": 1e6, " G": 1e9, " T": 1e12}[unit]
        if scaled < 1000:
            break
    return f"{scaled:.4g}{unit}"


def _bytes(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} TiB"


def _attention(
    folder: str, *, prompt: str | None, layer: int | None, head: int | None, plot: Path | None, json: bool
) -> None:
    if prompt is None:
        raise GenerationError("attention needs a text to read; give --prompt TEXT")
    from wordloom.inspect import attention_map

    lm = load_causal(folder, "attention")
    if lm.tokenizer is None:
        raise CheckpointError(f"'{folder}' has no tokenizer to read the prompt with")
    ids = lm.tokenizer.prompt_ids(prompt)
    seen = attention_map(lm.model, ids, [lm.tokenizer.decode([i]) for i in ids])
    if plot is not None:
        seen.save_png(plot, layer=layer)
    chosen = len(seen.weights) - 1 if layer is None else layer
    if json:
        print(json_module.dumps({"tokens": seen.tokens, "ids": ids, "weights": seen.weights.tolist()}))
    else:
        print_attention(Console(), seen, layer=chosen, head=head)
        if plot is not None:
            typer.echo(f"drawn into {plot}", err=True)


def print_attention(console: Console, seen: AttentionMap, *, layer: int, head: int | None) -> None:
    """One line per token that looks (query); columns are the tokens looked at, in the same order."""
    T = len(seen.tokens)
    names = [visible(token) for token in seen.tokens]
    width = min(max(map(len, names)), 16)
    room = (console.width - width - 5) // 2
    first = max(0, T - room) if room < T else 0
    which = "mean of all heads" if head is None else f"head {head}"
    console.print(Text(f"layer {layer}, {which}: who (down) looks at whom (across)", style="bold"))
    if first:
        console.print(f"(columns {first} to {T - 1}; a wider terminal shows all {T})", style="dim")
    for t, (name, line) in enumerate(zip(names, seen.shaded(layer, head), strict=True)):
        strongest = int(seen.head(layer, head)[t].argmax())
        label = name if len(name) <= width else name[: width - 1] + "…"
        row = Text(f"{t:>3} {label:>{width}} ")
        row.append(line[2 * first :], style="cyan")
        row.append(f" {names[strongest]}", style="dim")
        console.print(row, no_wrap=True, overflow="ellipsis")
