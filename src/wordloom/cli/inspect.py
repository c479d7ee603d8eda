"""``wordloom inspect CHECKPOINT|PRESET [parameters|attention|gradients|top-words]``."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from wordloom.cli.usage import refuse
from wordloom.errors import CheckpointError, GenerationError, did_you_mean

if TYPE_CHECKING:
    from wordloom.inspect import AttentionMap, GradientFlow, ParameterTable
    from wordloom.inspect.parameters import Component

__all__ = ["command"]


def command(
    ctx: typer.Context,
    model: Annotated[
        str, typer.Argument(help="A checkpoint folder, or the name of a preset such as llama-7b.")
    ],
    view: Annotated[
        Literal["parameters", "attention", "gradients", "top-words"], typer.Argument(help="What to show.")
    ] = "parameters",
    context: Annotated[
        int | None,
        typer.Option(help="parameters: keys per query in the costs (default: max_seq_len).", min=1),
    ] = None,
    prompt: Annotated[str | None, typer.Option(help="attention, gradients: the text that is read.")] = None,
    file: Annotated[
        str | None,
        typer.Option(help="gradients: a file or data set to read (default: the recipe's validation text)."),
    ] = None,
    distance: Annotated[int, typer.Option(help="gradients: how many tokens back.", min=1)] = 64,
    windows: Annotated[int, typer.Option(help="gradients: at how many places of the text.", min=1)] = 32,
    beside: Annotated[
        list[str] | None, typer.Option(help="gradients: another checkpoint; may be given again.")
    ] = None,
    layer: Annotated[
        int | None,
        typer.Option(help="attention: the layer, from 0 (default: the last; --png: all).", min=0),
    ] = None,
    head: Annotated[
        int | None, typer.Option(help="attention: the head, from 0 (default: the mean of all heads).", min=0)
    ] = None,
    png: Annotated[Path | None, typer.Option(help="attention, gradients: draw them into this file.")] = None,
    top: Annotated[int, typer.Option(help="top-words: how many words of each label.", min=1)] = 10,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show where a model's parameters are and what it costs, what its heads attend to, how far back its
    losses reach, or which words speak for each label of a bag of words."""
    flow = ("file", "distance", "windows", "beside")
    if view != "gradients":
        refuse(ctx, f"the view '{view}' measures no gradients", *flow)
    if view == "parameters":
        refuse(ctx, "the view 'parameters' reads no text", "prompt", "layer", "head", "png", "top")
        _parameters(ctx, model, context=context, json=json)
    elif view == "top-words":
        why = "the view 'top-words' shows the words of a bag of words"
        refuse(ctx, why, "prompt", "layer", "head", "png", "context")
        _top_words(model, top, json=json)
    elif view == "gradients":
        refuse(ctx, "the view 'gradients' shows all layers", "context", "layer", "head", "top")
        _gradients([model, *(beside or [])], prompt, file, distance, windows, png, json=json)
    else:
        refuse(ctx, "the view 'attention' counts no costs", "context", "top")
        if json:
            unused = ("head",) if png else ("layer", "head")
            refuse(ctx, "--json prints all layers and heads", *unused)
        _attention(model, prompt=prompt, layer=layer, head=head, png=png, json=json)


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
        made.add_row(*(cell for word, weight in row for cell in (Text(_visible(word)), f"{weight:.3f}")))
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
        settings = {key: value for key, value in vars(config).items() if value is not None}
        print(json_module.dumps({"model": name, "config": settings, **table.as_dict()}))
    else:
        print_parameters(Console(), name, config, table)


def _bag_parameters(name: str, config: Any, *, json: bool) -> None:
    from wordloom.models import MODELS, family_of
    from wordloom.models.cost import skeleton

    shapes = {key: tuple(p.shape) for key, p in skeleton(config).named_parameters()}
    total = sum(p.numel() for p in skeleton(config).parameters())
    if json:
        facts = {"model": name, "config": vars(config), "total": total}
        print(json_module.dumps({**facts, "parameters": {key: list(shape) for key, shape in shapes.items()}}))
        return
    kind = MODELS[family_of(config)].model.__name__
    words = f"{config.vocab_size:,} words ({config.features}), labels: {', '.join(config.labels)}"
    Console().print(Text(f"{name}: {kind}, {words}", style="bold"), end="\n\n")
    made = _table(None, "component", "shape", "parameters")
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
    c = config
    n_layers = f"{c.n_layers}+{c.decoder_layers}" if hasattr(c, "decoder_layers") else str(c.n_layers)
    shape = f"{n_layers} layers, dim {c.dim}, "
    shape += f"cell {c.cell}" if table.state else f"{c.n_heads} heads, context {c.max_seq_len:,}"
    console.print(
        Text(f"{name}: {type(c).__name__.removesuffix('Config')}, {shape}", style="bold"), end="\n\n"
    )
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


def _table(title: str | None, *columns: str) -> Table:
    """A plain table: the first column names, the others hold numbers."""
    made = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, show_edge=False)
    for i, column in enumerate(columns):
        made.add_column(column, justify="right" if i else "left", no_wrap=True)
    return made


def _component_table(table: ParameterTable) -> Table:
    made = _table(None, "component", "shape", "parameters", "share")
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
                made.add_row(Text(f"{n_layers} {kind}, {each:,} each", style="dim"))
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
    made = _table(f"Key/value cache per {table.per}", "", "kv heads", *precisions, whole)
    for kv in table.kv_cache:
        sizes = list(kv.bytes_per_token.values())
        kind = f"{kv.kind} (this model)" if kv.is_this_model else kv.kind
        cells = [_bytes(size) for size in [*sizes, sizes[-1] * table.context]]
        made.add_row(kind, str(kv.n_kv_heads), *cells, style="bold" if kv.is_this_model else "")
    return made


def _flops_table(table: ParameterTable) -> Table:
    f, attentions = table.flops, "layers" if table.per == "token" else "attentions"
    each = "2 × (key + memory)" if table.state else f"4 × {attentions} × heads × head_dim"
    made = _table(f"Operations per {table.per}", "", "FLOPs", "share")
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
    folder: str, *, prompt: str | None, layer: int | None, head: int | None, png: Path | None, json: bool
) -> None:
    if prompt is None:
        raise GenerationError("attention needs a text to read; give --prompt TEXT")
    from wordloom.inspect import attention_map
    from wordloom.run import load_language_model

    lm = load_language_model(folder)
    if lm.tokenizer is None:
        raise CheckpointError(f"'{folder}' has no tokenizer to read the prompt with")
    ids = lm.tokenizer.prompt_ids(prompt)
    seen = attention_map(lm.model, ids, [lm.tokenizer.decode([i]) for i in ids])
    if png is not None:
        seen.save_png(png, layer=layer)
    chosen = len(seen.weights) - 1 if layer is None else layer
    if json:
        print(json_module.dumps({"tokens": seen.tokens, "ids": ids, "weights": seen.weights.tolist()}))
    else:
        print_attention(Console(), seen, layer=chosen, head=head)
        if png is not None:
            typer.echo(f"drawn into {png}", err=True)


def print_attention(console: Console, seen: AttentionMap, *, layer: int, head: int | None) -> None:
    """One line per token that looks (query); columns are the tokens looked at, in the same order."""
    T = len(seen.tokens)
    names = [_visible(token) for token in seen.tokens]
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


def _gradients(
    folders: list[str],
    prompt: str | None,
    file: str | None,
    distance: int,
    windows: int,
    png: Path | None,
    *,
    json: bool,
) -> None:
    from wordloom.inspect import draw_gradients, gradient_flow
    from wordloom.run import load_language_model

    if prompt is not None and file is not None:
        raise GenerationError("both --prompt and --file name a text to read; give one of them")
    flows: dict[str, GradientFlow] = {}
    for folder in folders:
        lm = load_language_model(folder)
        if lm.tokenizer is None:
            raise CheckpointError(f"'{folder}' has no tokenizer to read the text with")
        text = prompt if prompt is not None else _text(folder, file)
        ids = lm.tokenizer.encode(text, specials="text").ids
        flows[Path(folder).resolve().name if len(folders) > 1 else folder] = gradient_flow(
            lm.model, ids, distance=distance, windows=windows
        )
    if png is not None:
        draw_gradients(png, flows)
    if json:
        facts = {
            name: {**vars(flow), "recurrences": [vars(each) for each in flow.recurrences]}
            for name, flow in flows.items()
        }
        print(json_module.dumps(facts))
        return
    console = Console()
    for name, flow in flows.items():
        print_gradients(console, name, flow)
    if png is not None:
        typer.echo(f"drawn into {png}", err=True)


_READ = 1 << 20  # characters of a text that are enough to measure at some places


def _text(folder: str, file: str | None) -> str:
    """The beginning of a text, or of the validation text of the checkpoint's recipe."""
    from wordloom.data import documents
    from wordloom.recipe import load_recipe
    from wordloom.run.prepare import recipe_corpus

    recipe = Path(folder) / "recipe.toml"
    if file is None and not recipe.exists():
        raise CheckpointError(f"{folder} has no recipe.toml that names a validation text; give --file")
    found = documents([file]) if file else recipe_corpus(load_recipe(str(recipe))).documents("validation")
    parts: list[str] = []
    for document in found:
        parts.append(
            document.text if isinstance(document.text, str) else document.text.decode(errors="replace")
        )
        if sum(map(len, parts)) > _READ:
            break
    return "\n".join(parts)[:_READ]


def print_gradients(console: Console, name: str, flow: GradientFlow) -> None:
    """Norms at a few distances, by what factor they fall and where they are a hundredth."""
    furthest = len(next(iter(flow.norms.values()))) - 1
    shown = [d for d in (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024) if d <= furthest]
    console.print(Text(f"{name}: gradient of the loss at a token, {flow.windows} of them", style="bold"))
    made = _table(None, "tokens back", *map(str, shown), "each", "below 1 % from")
    for what, norms in flow.norms.items():
        reach = flow.reach(what)
        cells = [f"{norms[d]:.2g}" for d in shown]
        made.add_row(what, *cells, f"×{flow.factor(what):.3f}", "nowhere" if reach is None else str(reach))
    console.print(made)
    for recurrence in flow.recurrences:
        console.print(str(recurrence), highlight=False)
    console.print(f"longest way back: {flow.steps:,} steps\n", highlight=False)


def _visible(token: str) -> str:
    return token.replace(" ", "␣").replace("\n", "↵") or "∅"
