"""Help pages: options in panels, and examples for every verb."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperCommand

from wordloom.cli.usage import UsageError

_MINUS = "\N{MINUS SIGN}"  # an argument that starts with it is not an option
_DEVICE = "device dtype batch_size"

# The options of the long verbs by panel, in the order of the panels; all others come first, as "Options".
PANELS: dict[str, dict[str, str]] = {
    "evaluate": {
        "Running text": "window stride start end per_word joined field separator specials first",
        "Labelled or scored rows": "text_column label_column header too_long threshold",
        "Translation": "targets source_column target_column beams length_penalty tokenize translations",
        "Answers": "template max_new_tokens answers",
        "Device": _DEVICE,
    },
    "plan": {
        "Own hardware": "memory flops bandwidth network",
    },
    "embed": {
        "Reading": "field text_column header encoding_errors too_long",
        "Models": "level layer pooling",
        "Word vectors": "method split cased no_phrases rows a counts fit_on component save_component",
        "Clusters": "cluster cluster_method label_column plot projection seed json",
        "Device": _DEVICE,
    },
    "generate": {
        "Sampling": "temperature top_k top_p min_p repetition_penalty no_repeat_ngram seed samples",
        "Stopping": "max_new_tokens stop stop_id",
        "Instead of text": "score next_",
        "Device": "device dtype",
    },
    "serve": {
        "Address and keys": "host port api_key_file no_key allowed_host cors_origin",
        "Limits": "context slots queue max_tokens max_choices max_body_mb timeout prefix_mb memory_gb drain",
        "Device": "device dtype",
    },
    "translate": {
        "Beam search": "beams length_penalty early_stopping n_best max_new_tokens",
        "Sampling": "temperature top_k top_p seed",
        "Device": _DEVICE,
    },
    "tokenize train": {
        "Vocabulary": "kind vocab_size lower min_frequency special_token no_special_tokens split "
        "limit_alphabet",
        "Reading": "sample_mb seed field separator encoding_errors",
    },
    "data prepare": {"Tasks on many machines": "task out"},
    "vectors train": {
        "Text": "corpus separator phrases",
        "Training": "algorithm architecture dim window negative min_count epochs alpha seed threads device "
        "deterministic",
    },
}

EXAMPLES: dict[str, tuple[str, ...]] = {
    "serve": ("serve runs/assistant", "serve runs/llama old=runs/lstm --port 8080"),
    "train": ("train llama-gutenberg --out runs/llama train.steps=500", "train runs/llama --resume"),
    "compare": (
        "compare quickstart --budget minutes=1",
        "compare my.txt --parameters 1M --budget minutes=10 --families ngram,lstm,llama",
    ),
    "sweep": ("sweep mrpc.toml train.learning_rate=2e-5,3e-5 train.epochs=2,3 --from CHECKPOINT",),
    "plan": (
        "plan llama2-70b train.shard=full --gpus 64 --gpu h100-80gb",
        "plan my-model.toml --gpus 2 --memory 48 --flops 150 --bandwidth 32",
    ),
    "slurm": ("slurm my-model.toml --nodes 4 --partition gpu --setup 'source .venv/bin/activate' > job.sh",),
    "evaluate": (
        "evaluate runs/llama book.txt",
        "evaluate runs/reviews dev.csv --text-column review --label-column stars",
        "evaluate runs/sentences pairs.tsv --task similarity --text-column one --text-column two",
        "evaluate runs/translation test.de --targets test.en",
        "evaluate runs/assistant --task instructions",
    ),
    "predict": (
        "predict runs/reviews texts.txt",
        "predict runs/pairs pairs.tsv --text-column one --text-column two --json",
    ),
    "generate": ('generate runs/llama --prompt "The cat" --temperature 0.8 --top-k 50',),
    "chat": ("chat runs/llama",),
    "translate": ("translate runs/translation german.txt --beams 5",),
    "embed": (
        "embed runs/sentences texts.txt --out vectors.npy",
        "embed runs/sentences table.csv --text-column text --cluster 8 --plot clusters.png",
    ),
    "convert": ("convert runs/llama --kv-heads 2 --out runs/llama-grouped",),
    "merge": ("merge runs/base --adapter runs/adapter --out runs/merged",),
    "export": (
        "export runs/llama --out llama.gguf --dtype q8_0",
        "export runs/sentences --to onnx --out sentences.onnx",
    ),
    "card": ("card runs/llama --license apache-2.0 --language en",),
    "push": ("push runs/llama me/my-llama --dry-run", "push runs/llama me/my-llama --private"),
    "average": ("average runs/llama --last 5 --out runs/llama-average",),
    "inspect parameters": ("inspect llama-7b", "inspect runs/llama parameters --context 512"),
    "inspect pattern": ("inspect runs/llama pattern --plot pattern.png",),
    "inspect attention": ('inspect runs/llama attention --prompt "The cat sat" --plot heads.png',),
    "inspect lens": (
        'inspect runs/llama lens --prompt "The cat sat" --html lens.html',
        "inspect runs/llama lens --tokens 50000",
    ),
    "inspect contributions": ('inspect runs/llama contributions --prompt "The cat sat" --target " on"',),
    "inspect attribution": ('inspect runs/reviews attribution --prompt "Not a good film" --target positive',),
    "inspect memories": ("inspect runs/llama memories --file book.txt --store contexts",),
    "inspect ablate": ("inspect runs/llama ablate --value mean --plot ablation.png",),
    "inspect patch": (
        'inspect runs/llama patch --clean "Tom is a boy. One day" --corrupt "Ann is a girl. One day"',
    ),
    "inspect heads": ("inspect runs/llama heads --plot heads.png",),
    "inspect words": ('inspect runs/bert words "He dug up a mole." "The spy was a mole." --word mole',),
    "inspect probe": ("inspect runs/bert probe --file sst2/train --pooling first",),
    "inspect knowledge": ("inspect runs/llama knowledge --facts facts.jsonl",),
    "inspect geometry": ("inspect runs/llama geometry --plot cosines.png",),
    "inspect alignment": ('inspect runs/translation alignment "Ein Hund." --plot alignment.svg',),
    "inspect positions": ("inspect runs/llama positions --attention full --attention band:64",),
    "inspect gradients": ("inspect runs/lstm gradients --file book.txt --beside runs/gru",),
    "inspect lengths": ("inspect runs/translation lengths --file test.de --targets test.en",),
    "inspect top-words": ("inspect runs/reviews top-words --top-k 20",),
    "inspect forgetting": ("inspect runs/tuned forgetting --beside runs/tuned-l2 --plot forgetting.png",),
    "lab capacity train": (
        "lab capacity train --people 2000 --exposures 100 --out runs/capacity/gpt2-2000",
        "lab capacity train --out runs/capacity/gpt2-2000 --resume",
    ),
    "lab capacity compare": ("lab capacity compare runs/capacity --out runs/capacity",),
    "lab capacity biographies": (
        "lab capacity biographies --people 10000 --exposures 10 --out biographies.jsonl",
    ),
    "lab superposition features": ("lab superposition features --out runs/superposition",),
    "lab superposition phases": ("lab superposition phases --out runs/superposition",),
    "lab superposition polytopes": ("lab superposition polytopes --out runs/superposition",),
    "demo": ("demo",),
    "tokenize train": ("tokenize train book.txt --out tokenizers/book --vocab-size 4000",),
    "tokenize encode": ('tokenize encode tokenizers/book "The cat sat"',),
    "tokenize decode": ("tokenize decode tokenizers/book 12 7 301",),
    "tokenize report": ("tokenize report book.txt tokenizers/book runs/llama",),
    "data list": ("data list", "data list wikitext-2"),
    "data fetch": ("data fetch wikitext-2",),
    "data prepare": (
        "data prepare --tokenizer tokenizers/book book.txt",
        "data prepare corpus/ --tokenizer tokenizers/web --task 3/64 --out prepared",
    ),
    "data merge": ("data merge prepared",),
    "vectors train": ("vectors train --corpus book.txt --dim 100 --out runs/vectors",),
    "vectors similar": ("vectors similar runs/vectors king --top-k 5",),
    "vectors analogy": ("vectors analogy runs/vectors man king woman",),
    "vectors evaluate": ("vectors evaluate runs/vectors",),
    "vectors neighbours": ("vectors neighbours runs/vectors king ship bread --plot map.png",),
    "vectors documents": ('vectors documents texts.txt "a moving film about love"',),
    "vectors dot": ("vectors dot runs/vectors king queen ship",),
    "vectors axis": ("vectors axis runs/vectors king queen --from man --to woman",),
    "vectors predict": ("vectors predict runs/labels texts.txt --top-k 3",),
    "vectors convert": ("vectors convert runs/vectors vectors.bin",),
}


class HelpCommand(TyperCommand):
    """A command whose help shows its options in the panels of :data:`PANELS`, and its :data:`EXAMPLES`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read ``args``; raise UsageError if an option with several names is given twice."""
        before = args[: args.index("--")] if "--" in args else args
        for parameter in self.params:
            takes_one = not getattr(parameter, "is_flag", False) and not getattr(parameter, "multiple", False)
            names = parameter.opts if takes_one and len(parameter.opts) > 1 else ()
            given = [name for argument in before if (name := argument.partition("=")[0]) in names]
            if len(given) > 1:
                raise UsageError(f"{' and '.join(given)} are one option, which takes one value; give it once")
        return super().parse_args(ctx, args)

    def help_sections(self, ctx: Any) -> dict[str, list[tuple[str, str]]]:
        """Return the name and the help of each argument and option, by the panel that shows them."""
        panels = PANELS.get(_verb(ctx), {})
        panel_of = {name: panel for panel, names in panels.items() for name in names.split()}
        sections: dict[str, list[tuple[str, str]]] = {name: [] for name in ("Arguments", "Options", *panels)}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                panel = "Arguments" if parameter.param_type_name == "argument" else "Options"
                sections[panel_of.get(str(parameter.name), panel)].append(record)
        return {title: records for title, records in sections.items() if records}

    def examples(self, ctx: Any) -> tuple[str, ...]:
        """Return the examples of this command, each without the name of the program."""
        return EXAMPLES.get(_verb(ctx), ())

    def format_options(self, ctx: Any, formatter: Any) -> None:
        for title, records in self.help_sections(ctx).items():
            with formatter.section(title):
                formatter.write_dl(records)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Examples"):
            for example in self.examples(ctx):
                formatter.write(f"{'':{formatter.current_indent}}wordloom {example}\n")


class SignedWords(HelpCommand):
    """A command that reads ``-man`` as a word with a sign; its options have two dashes, except ``-h``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        takes_value = {
            name
            for parameter in self.params
            if parameter.param_type_name == "option" and not getattr(parameter, "is_flag", False)
            for name in parameter.opts
        }
        flags = {*ctx.help_option_names}
        taken: list[str] = []
        for place, argument in enumerate(args):
            if argument == "--":
                return super().parse_args(ctx, [*taken, *args[place:]])
            is_value = place > 0 and args[place - 1] in takes_value
            signed = argument[:1] == "-" and argument[1:2] not in ("", "-") and argument not in flags
            taken.append(_MINUS + argument[1:] if signed and not is_value else argument)
        return super().parse_args(ctx, taken)


def _verb(ctx: Any) -> str:
    """Return the name of the command, such as ``vectors train``."""
    names: list[str] = []
    at = ctx
    while at is not None and at.parent is not None:  # the root is called as it was started
        names.insert(0, str(at.info_name))
        at = at.parent
    return " ".join(names)


def use_help_pages(app: typer.Typer) -> None:
    """Set the help page of every command of ``app`` and of its groups."""
    for command in app.registered_commands:
        if command.cls is None or not issubclass(command.cls, HelpCommand):
            command.cls = HelpCommand
    for group in app.registered_groups:
        if group.typer_instance is not None:
            use_help_pages(group.typer_instance)
