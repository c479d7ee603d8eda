"""Answer requests with llama.cpp: a script that takes a GGUF file, and reads and writes JSON lines.

A request is ``{"text": ..., "special": bool}`` for the ids of a text, or ``{"tokens": [...], "n": int}`` for
``n`` greedy tokens after a prompt, with the log-probabilities of the likeliest tokens at each step, or
``{"messages": [...]}`` for the prompt of a conversation.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from typing import Any

import xllamacpp

TOP = 8


def main(path: str, context: int) -> None:
    p = xllamacpp.CommonParams()
    p.model.path, p.n_ctx, p.port, p.n_parallel, p.warmup = path, context, 0, 1, False
    p.cpuparams.n_threads = 1
    p.cache_type_k = p.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32  # its usual float16 rounds more
    server = xllamacpp.Server(p)

    def ask(what: str, **body: Any) -> Any:
        data = json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(f"{server.listening_address}/{what}", data, headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    for line in sys.stdin:
        given = json.loads(line)
        if "text" in given:
            answer: Any = ask("tokenize", content=given["text"], add_special=given["special"])["tokens"]
        elif "messages" in given:
            answer = ask("apply-template", messages=given["messages"])["prompt"]
        else:
            done = ask(
                "completion", prompt=given["tokens"], n_predict=given["n"], temperature=-1, n_probs=TOP,
                return_tokens=True, ignore_eos=False, cache_prompt=False,
            )  # fmt: skip
            answer = {
                "tokens": done["tokens"],
                # steps within a character of several tokens are not reported
                "steps": [
                    (step["id"], [(top["id"], top["logprob"]) for top in step["top_logprobs"]])
                    for step in done.get("completion_probabilities", [])
                ],
            }
        print("ANSWER " + json.dumps(answer), flush=True)
    os._exit(0)  # the end of the server, which is also that of this function, sometimes waits forever


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
