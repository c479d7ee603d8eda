"""The named data sets of tasks: classification, question answering, choices, instructions, words."""

from __future__ import annotations

from wordloom.data.files.source import Columns
from wordloom.data.sets.info import DatasetFile, DatasetInfo, derived, file, parts, source

_SQUAD = "https://rajpurkar.github.io/SQuAD-explorer/dataset/"
_SQUAD_TRAIN = source(
    "squad-train.json", "EmptyCityJK/flan-response-evaluator/raw/050f3fd67640/data/squad/train.json"
)
_BLIMP = source("blimp.zip", "alexwarstadt/blimp/archive/3e56b06fcabca9b30822fc66435fca6b1aa40bb1.zip")
_SWAG = "https://raw.githubusercontent.com/rowanz/swagaf/master/data/"
_GENSIM = "piskvorky/gensim/raw/37f90ec121eb/gensim/test/test_data/"
_FOUNDRY = "mosaicml/llm-foundry/raw/8c8dd48f7216/scripts/eval/local_data/"
_SST2 = "clairett/pytorch-sentiment-classification/raw/457ffd83de90/data/SST2/"
_GLUE = "F0restL1n/BERT/raw/0d0288be0807/glue_data/"
_AUXILIARY = "jbarnes850/deephermes-mlx/raw/a3d7257c0cf0/benchmarks/datasets/cached/data/auxiliary_train/"
_RASBT = "rasbt/LLMs-from-scratch/raw/28c65cdfbc33/ch07/"
_ALPACA = "https://raw.githubusercontent.com/tatsu-lab/stanford_alpaca/main/alpaca_data.json"
_WORD2VEC = "tmikolov/word2vec/raw/20c129af1065/"
_GPTEACHER = "teknium1/GPTeacher/raw/481075123c29/"
_REASONING, _KNOWLEDGE = "commonsense_reasoning", "world_knowledge"


def _glue(name: str, title: str, layout: str, columns: Columns, *test: DatasetFile) -> DatasetInfo:
    return DatasetInfo(
        title=title,
        task="classification",
        licence="research use",
        origin="F0restL1n/BERT:glue_data @ 0d0288be0807",
        citation="Wang et al. 2018, arXiv:1804.07461",
        parts=parts(f"glue/{name}/{{}}.tsv.gz", f"{_GLUE}{name}/{{}}.tsv", "train", "dev")
        | ({"test": test} if test else {}),
        layout=f"tab-separated{layout}",
        columns=columns,
    )


def _squad(
    title: str,
    files: str,
    citation: str = "Rajpurkar et al. 2016, arXiv:1606.05250",
    about_bytes: int | None = None,
) -> DatasetInfo:
    return DatasetInfo(
        title=title,
        task="question answering",
        licence="CC BY-SA 4.0",
        origin="rajpurkar.github.io/SQuAD-explorer",
        citation=citation,
        parts=parts(f"squad/{files}", _SQUAD + files, "train", "dev"),
        layout="SQuAD's own JSON",
        about_bytes=about_bytes,
    )


def _choices(title: str, licence: str, folder: str, evaluation: str, train: str | None = None) -> DatasetInfo:
    evaluated = f"multiple-choice/{evaluation}.eval.jsonl.gz"
    found = parts(evaluated, f"{_FOUNDRY}{folder}/{evaluation}.jsonl", "eval")
    layout = "JSON lines (query, choices, gold)"
    if train is not None:
        found = parts(f"multiple-choice/{train}.train.csv.gz", f"{_AUXILIARY}{train}.csv", "train") | found
        layout += "; train: CSV without header (question, A, B, C, D, answer)"
    return DatasetInfo(
        title=title,
        task="multiple choice",
        licence=licence,
        origin="mosaicml/llm-foundry:scripts/eval/local_data @ 8c8dd48f7216",
        parts=found,
        layout=layout,
    )


def _instructions(
    name: str, origin: str, *, title: str, licence: str, layout: str = "instruction, input, output"
) -> DatasetInfo:
    """Return a set of instructions; a document of it is an instruction, its input and its answer."""
    kind = "JSON lines" if ".jsonl" in name else "a JSON list"
    fields = layout.split(", ")
    return DatasetInfo(
        title=title,
        task="instructions",
        licence=licence,
        origin=origin.replace("/raw/", " @ ", 1),
        parts=parts(f"instruct/{name}", origin),
        layout=f"{kind} of objects ({layout})",
        format="json" if fields[-1] in ("output", "response") else None,
        field=fields,
    )


def _similarity(title: str, name: str, citation: str) -> DatasetInfo:
    return DatasetInfo(
        title=title,
        task="word similarity",
        licence="research use",
        origin="piskvorky/gensim:gensim/test/test_data @ 37f90ec121eb",
        citation=citation,
        parts=parts(f"word-similarity/{name}", _GENSIM + name),
        layout="tab-separated word, word, score; '#' begins a comment",
    )


TASKS: dict[str, DatasetInfo] = {
    # ----------------------------------------------------------- classification, question answering
    "sst2": DatasetInfo(
        title="SST-2, whole sentences: 6,920 / 872",
        task="classification",
        licence="none stated; research use",
        origin="clairett/pytorch-sentiment-classification:data/SST2 @ 457ffd83de90",
        citation="Socher et al. 2013",
        parts=parts("sst2/{}.tsv.gz", _SST2 + "{}.tsv", "train", "dev"),
        layout="tab-separated text and label, no header",
        columns=Columns((1,), 2),
    ),
    "glue-sst2": DatasetInfo(
        title="SST-2 as GLUE has it, all labelled phrases: 67,349 / 872",
        task="classification",
        licence="none stated; research use",
        origin="F0restL1n/BERT:glue_data/SST-2 @ 0d0288be0807",
        citation="Wang et al. 2018, arXiv:1804.07461",
        parts=parts("sst2/glue-{}.tsv.gz", _GLUE + "SST-2/{}.tsv", "train", "dev"),
        layout="tab-separated with header (sentence, label)",
        columns=Columns(("sentence",), "label"),
    ),
    "glue-cola": _glue(
        "CoLA",
        "CoLA, linguistic acceptability: 8,551 / 1,043",
        ", no header (source, label, mark, sentence)",
        Columns((4,), 2),
    ),
    "glue-mrpc": _glue(
        "MRPC",
        "MRPC, paraphrases: 3,667 / 408 / 1,725",
        " with header (Quality, #1 ID, #2 ID, #1 String, #2 String), after a BOM",
        Columns(("#1 String", "#2 String"), "Quality"),
        file("glue/MRPC/msr_paraphrase_test.txt.gz", _GLUE + "MRPC/msr_paraphrase_test.txt"),
    ),
    "glue-rte": _glue(
        "RTE",
        "RTE, textual entailment: 2,490 / 277",
        " with header (index, sentence1, sentence2, label)",
        Columns(("sentence1", "sentence2"), "label"),
    ),
    "glue-stsb": _glue(
        "STS-B",
        "STS-B, sentence similarity: 5,749 / 1,500",
        " with header (index, ..., sentence1, sentence2, score)",
        Columns(("sentence1", "sentence2"), None, score="score"),
    ),
    "squad-sample": DatasetInfo(
        title="SQuAD v1.1, 24 of the 48 dev articles and 4,000 training questions",
        task="question answering",
        licence="CC BY-SA 4.0",
        origin="derived from EmptyCityJK/flan-response-evaluator @ 050f3fd67640 (train) and SQuAD v1.1 (dev)",
        citation="Rajpurkar et al. 2016, arXiv:1606.05250",
        parts={
            "train": (derived("squad/train-v1.1-subset4000.json.gz", _SQUAD_TRAIN),),
            "dev": (
                derived(
                    "squad/dev-v1.1-articles01-24.json.gz",
                    file("squad/dev-v1.1.json", _SQUAD + "dev-v1.1.json"),
                ),
            ),
        },
        layout="SQuAD's own JSON",
        notes="train: titles and ids are not kept, and answer_start is the answer's first occurrence",
    ),
    "squad-v1.1": _squad("SQuAD v1.1", "{}-v1.1.json"),
    "squad-v2": _squad(
        "SQuAD v2.0, with unanswerable questions",
        "{}-v2.0.json",
        citation="Rajpurkar et al. 2018, arXiv:1806.03822",
        about_bytes=46_500_000,
    ),
    "swag": DatasetInfo(
        title="SWAG, the likely next event: 73,546 / 20,006 / 20,005",
        task="multiple choice",
        licence="MIT",
        origin="rowanz/swagaf:data",
        citation="Zellers et al. 2018, arXiv:1808.05326",
        parts=parts("swag/{}.csv", _SWAG + "{}.csv", "train", "val", "test"),
        layout="CSV with header (..., startphrase, ..., ending0, ..., ending3, label)",
        about_bytes=44_000_000,
    ),
    "openbookqa": _choices("OpenBookQA", "Apache-2.0", _REASONING, "openbook_qa", "obqa"),
    "arc-easy": _choices("ARC, Easy", "CC BY-SA 4.0", _KNOWLEDGE, "arc_easy", "arc_easy"),
    "arc-challenge": _choices("ARC, Challenge", "CC BY-SA 4.0", _KNOWLEDGE, "arc_challenge", "arc_hard"),
    "piqa": _choices("PIQA, physical common sense", "the benchmark's own", _REASONING, "piqa"),
    "copa": _choices("COPA, causes and effects", "the benchmark's own", _REASONING, "copa"),
    "commonsense-qa": _choices("CommonsenseQA", "the benchmark's own", _REASONING, "commonsense_qa"),
    "siqa": _choices("Social IQa", "the benchmark's own", _REASONING, "siqa"),
    "winogrande": _choices(
        "WinoGrande (context_options, continuation, gold)",
        "the benchmark's own",
        "language_understanding",
        "winogrande",
    ),
    "mctest": DatasetInfo(
        title="MCTest, reading comprehension: 1,477",
        task="multiple choice",
        licence="research use",
        origin="jbarnes850/deephermes-mlx @ a3d7257c0cf0",
        citation="Richardson et al. 2013",
        parts=parts("multiple-choice/mc_test.train.csv.gz", _AUXILIARY + "mc_test.csv", "train"),
        layout="CSV without header (question, A, B, C, D, answer)",
    ),
    "blimp": DatasetInfo(
        title="BLiMP, 67 paradigms of 1,000 minimal pairs",
        task="minimal pairs",
        licence="CC BY 4.0",
        origin="derived from alexwarstadt/blimp:data @ 3e56b06fcabc",
        citation="Warstadt et al. 2020, arXiv:1912.00582",
        parts={"all": (derived("blimp/blimp.jsonl.gz", _BLIMP),)},
        layout="JSON lines (UID, field, linguistics_term, pairID, sentence_good, sentence_bad)",
        notes="the other fields of the original are not kept",
    ),
    # ----------------------------------------------------------------- instructions, preferences
    "alpaca": DatasetInfo(
        title="Alpaca, 52,002 instructions",
        task="instructions",
        licence="CC BY-NC 4.0",
        origin="tatsu-lab/stanford_alpaca:alpaca_data.json",
        citation="Taori et al. 2023",
        parts=parts("instruct/alpaca_data.json", _ALPACA),
        layout="a JSON list of objects (instruction, input, output)",
        about_bytes=22_800_000,
    ),
    "instruction-1100": _instructions(
        "instruction-1100.json.gz",
        _RASBT + "01_main-chapter-code/instruction-data.json",
        title="1,100 short instructions",
        licence="Apache-2.0",
    ),
    "preference-1100": _instructions(
        "preference-1100.json.gz",
        _RASBT + "04_preference-tuning-with-dpo/instruction-data-with-preference.json",
        title="1,100 instructions with a chosen and a rejected answer",
        licence="Apache-2.0",
        layout="instruction, input, output, chosen, rejected",
    ),
    "alpaca-demo": _instructions(
        "alpaca_en_demo.json.gz",
        "hiyouga/LLaMA-Factory/raw/ff6d4d12eeb0/data/alpaca_en_demo.json",
        title="999 of Alpaca's instructions",
        licence="Apache-2.0 repository; Alpaca's instructions are CC BY-NC 4.0",
    ),
    "gsm8k": _instructions(
        "gsm8k_train-alpaca.json.gz",
        "gururise/AlpacaDataCleaned/raw/791174f63efa/dataset_extensions/gsm_8k/gsm_8k_train.json",
        title="GSM8K, 7,473 training problems as instructions",
        licence="MIT",
    ),
    "gpteacher-codegen": _instructions(
        "gpteacher-codegen.json.gz",
        _GPTEACHER + "Codegen/codegen-instruct.json",
        title="4,535 programming instructions",
        licence="MIT",
        layout="instruction, input, response",
    ),
    "gpteacher-roleplay": _instructions(
        "gpteacher-roleplay.json.gz",
        _GPTEACHER + "Roleplay/roleplay-simple-deduped-roleplay-instruct.json",
        title="1,923 role plays",
        licence="MIT",
        layout="instruction, input, response",
    ),
    "alpaca-seeds": _instructions(
        "alpaca-seed_tasks.jsonl.gz",
        "tatsu-lab/stanford_alpaca/raw/761dc5bfbdee/seed_tasks.jsonl",
        title="Alpaca's 175 seed tasks",
        licence="CC BY-NC 4.0",
        layout="instruction, instances of input and output",
    ),
    "self-instruct-eval": _instructions(
        "self-instruct-user_oriented.jsonl.gz",
        "yizhongw/self-instruct/raw/0b26ccaa4159/human_eval/user_oriented_instructions.jsonl",
        title="Self-Instruct's 252 user-oriented instructions, for evaluation",
        licence="Apache-2.0",
        layout="instruction, instances of input and output",
    ),
    # --------------------------------------------------------------------------------------- words
    "google-analogies": DatasetInfo(
        title="Google analogy set: 19,544 questions in 14 sections",
        task="word analogies",
        licence="Apache-2.0",
        origin="tmikolov/word2vec:questions-words.txt @ 20c129af1065",
        citation="Mikolov et al. 2013, arXiv:1301.3781",
        parts=parts("word-similarity/questions-words.txt.gz", _WORD2VEC + "questions-words.txt"),
        layout="four words a line; sections begin with ':'",
    ),
    "wordsim353": _similarity("WordSim-353", "wordsim353.tsv", "Finkelstein et al. 2002"),
    "simlex999": _similarity("SimLex-999", "simlex999.txt", "Hill et al. 2015, arXiv:1408.3456"),
}
