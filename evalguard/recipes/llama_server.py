"""llama.cpp's own server out of the wheel ``xllamacpp``, under the flags of ``llama-server``.

    serve:
      command: [python, -m, evalguard.recipes.llama_server, --model, "{build}", --port, "{port}"]
      url: http://127.0.0.1:{port}
      ready: /health

The wheel brings the server as a library and no program. Whoever has ``llama-server`` itself
writes that in the place of this: the flags here are a part of its own.
"""

from __future__ import annotations

import argparse
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_FLASH = ("auto", "off", "on")
_PREFIX = "GGML_TYPE_"


def main(words: Sequence[str] | None = None) -> None:
    """Serve a GGUF file until this process is ended."""
    import xllamacpp

    kinds = {name.removeprefix(_PREFIX).lower(): kind for name, kind in _members(xllamacpp)}
    asked = _read_flags(words, sorted(kinds))
    params = xllamacpp.CommonParams()
    params.model.path = str(asked.model)
    params.hostnames, params.port = ["127.0.0.1"], asked.port
    params.n_ctx, params.n_parallel = asked.ctx_size, asked.parallel
    params.n_gpu_layers = asked.n_gpu_layers
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = asked.threads
    params.cache_type_k, params.cache_type_v = kinds[asked.cache_type_k], kinds[asked.cache_type_v]
    params.flash_attn_type = _flash_type(xllamacpp, asked.flash_attn)
    for name in ("rope_freq_base", "rope_freq_scale", "n_batch", "n_ubatch"):
        value = getattr(asked, name)
        if value is not None:
            setattr(params, name, value)
    if asked.alias:
        params.model_alias = {asked.alias}
    _server = xllamacpp.Server(params)  # it answers as long as it is there
    while True:
        signal.pause()


def _read_flags(words: Sequence[str] | None, kinds: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="llama_server", allow_abbrev=False)
    parser.add_argument("--model", type=_existing, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--alias", default="", help="name that it answers with")
    parser.add_argument("--ctx-size", type=int, default=0, help="tokens; 0: the model's own")
    parser.add_argument("--parallel", type=int, default=1, help="requests at the same time")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--n-gpu-layers", type=int, default=0)
    parser.add_argument("--cache-type-k", choices=kinds, default="f16")
    parser.add_argument("--cache-type-v", choices=kinds, default="f16")
    parser.add_argument("--flash-attn", choices=_FLASH, default="auto")
    parser.add_argument("--rope-freq-base", type=float, default=None)
    parser.add_argument("--rope-freq-scale", type=float, default=None)
    parser.add_argument("--batch-size", dest="n_batch", type=int, default=None)
    parser.add_argument("--ubatch-size", dest="n_ubatch", type=int, default=None)
    return parser.parse_args(words)


def _existing(text: str) -> Path:
    path = Path(text)
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"there is no file {path}")
    return path


def _members(library: Any) -> list[tuple[str, Any]]:
    return [
        (member.name, member) for member in library.ggml_type if member.name.startswith(_PREFIX)
    ]


def _flash_type(library: Any, wanted: str) -> Any:
    kinds = {
        member.name.rpartition("_")[2].lower(): member for member in library.llama_flash_attn_type
    }
    return kinds[{"off": "disabled", "on": "enabled"}.get(wanted, wanted)]


if __name__ == "__main__":
    main()
