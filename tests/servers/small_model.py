"""Serve a model's weights with llama.cpp's own server, from the wheel xllamacpp, until the process is ended.

    python small_model.py WEIGHTS.gguf PORT NAME CONTEXT AT_ONCE TOKENS [TEMPLATE]

Answers have at most TOKENS tokens, -1 for no limit; the template is a file that replaces the weights' own.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any


def serve(weights: str, port: str, name: str, context: str, at_once: str, tokens: str, template: str = "") -> None:
    """Answer requests until a signal arrives."""
    import xllamacpp

    params: Any = xllamacpp.CommonParams()
    params.model.path, params.model_alias = weights, {name}
    params.hostnames, params.port = ["127.0.0.1"], int(port)
    params.n_ctx, params.n_parallel, params.n_predict = int(context), int(at_once), int(tokens)
    params.cpuparams.n_threads = 2
    params.use_jinja, params.offline, params.ui = True, True, False
    if template:
        params.chat_template = Path(template).read_text(encoding="utf-8")
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    signal.pause()


if __name__ == "__main__":
    serve(*sys.argv[1:])
