"""The option with which a quantiser leaves modules as they are, by its own rules of matching names.

llama.cpp            --tensor-type REGEX=TYPE; the expression is searched for in the names of the
                     file, in lower case (llama-quantize); the embeddings' and the head's type have
                     options of their own.
compressed-tensors   ignore: names of modules, or "re:" and an expression that matches from the
                     start of one (its match_name).
transformers         modules_to_not_convert, of bitsandbytes llm_int8_skip_modules: expressions that
                     match from the start of a name up to a dot or its end, or how a name ends (its
                     should_convert_module). torchao takes the same list through transformers.
GPTQModel            dynamic: "-:" and an expression that matches from the start of a module's name
                     (its _resolve_dynamic_override).
ModelOpt             quant_cfg: entries with a wildcard for names of quantisers, which stand in
                     their module; later ones count (its set_quantizer_by_cfg).
"""

from __future__ import annotations

import fnmatch
import json
import re
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from evalguard.core.module_names import fold_numbers

LLAMA_CPP, COMPRESSED_TENSORS, BITSANDBYTES = "llama.cpp", "compressed-tensors", "bitsandbytes"
GPTQ, MODELOPT = "gptq", "modelopt"
# quant_method of a config -> the keyword under which its owner, or transformers, takes modules to
# leave out.
_KEYWORDS = {
    BITSANDBYTES: "llm_int8_skip_modules",
    COMPRESSED_TENSORS: "ignore",
    GPTQ: "dynamic",
    MODELOPT: "quant_cfg",
    **dict.fromkeys(
        ("torchao", "awq", "fp8", "fbgemm_fp8", "quanto", "eetq", "higgs", "mxfp4", "vptq",
         "aqlm", "spqr", "bitnet", "auto-round", "finegrained_fp8"),
        "modules_to_not_convert",
    ),
}  # fmt: skip
# Tensors of a GGUF file whose type has an option of its own, which wins over --tensor-type.
_OWN_OPTIONS = {
    "token_embd.weight": "--token-embedding-type",
    "output.weight": "--output-tensor-type",
}


def keyword_of(method: str) -> str:
    """Return the keyword of a quantiser for modules to leave out; "" where none is known."""
    return _KEYWORDS.get(method, "")


def llama_cpp_option(tensors: Mapping[str, str], quantised: Collection[str]) -> str:
    """Return arguments of llama-quantize that give tensors these types, quoted for a shell.

    Args:
        tensors: name in the file ("blk.2.ffn_down.weight") -> ggml type ("f16").
        quantised: names of all tensors that are quantised: no other of them may be hit.
    """
    told = [f"{_OWN_OPTIONS[n]} {kind}" for n, kind in tensors.items() if n in _OWN_OPTIONS]
    others = [name for name in quantised if name not in _OWN_OPTIONS]
    for kind in dict.fromkeys(tensors.values()):
        names = [n for n, one in tensors.items() if one == kind and n not in _OWN_OPTIONS]
        for pattern in _shortest(names, others, _in_gguf, _searched):
            told.append(f"--tensor-type {shlex.quote(f'{pattern}={kind}')}")
    return " ".join(told)


def skip_option(
    method: str, modules: Collection[str], quantised: Collection[str], kept: Sequence[str] = ()
) -> str:
    """Return the keyword with its list of modules to leave out; "" of a quantiser without one.

    GPTQ's and ModelOpt's are entries to add to what is there.

    Args:
        method: quant_method of the config.
        modules: names of those to leave out.
        quantised: names of all modules that are quantised: no other of them may be hit.
        kept: what is left out by now: a list replaces the one that is there, and the default.
    """
    keyword = keyword_of(method)
    if not keyword:
        return ""
    if method == COMPRESSED_TENSORS:
        found = _shortest(modules, quantised, _as_ignored, _ignores)
        return f"{keyword}: {json.dumps([*kept, *found])}"
    if method == GPTQ:
        found = _shortest(modules, quantised, _as_started, _starts)
        return f"{keyword}: {json.dumps({f'-:{pattern}': {} for pattern in found})}"
    if method == MODELOPT:
        found = _shortest(modules, quantised, _as_wildcards, _is_wildcard_of)
        entries = [{"quantizer_name": pattern, "enable": False} for pattern in found]
        return f"{keyword} += {entries}"
    found = _shortest(modules, quantised, _as_skipped, _skips)
    return f"{keyword}={json.dumps([*kept, *found])}"


def _ignores(pattern: str, name: str) -> bool:
    if pattern.startswith("re:"):
        return re.match(pattern.removeprefix("re:"), name) is not None
    return pattern == name


def _skips(pattern: str, name: str) -> bool:
    boundary = r"(?:(?<=\.)|(?=\.|$))"
    found = re.match(rf"(?:{pattern}){boundary}", name) is not None
    return found or name.endswith(pattern)


def _starts(pattern: str, name: str) -> bool:
    return re.match(pattern, name) is not None


def _is_wildcard_of(pattern: str, name: str) -> bool:
    return fnmatch.fnmatchcase(f"{name}.weight_quantizer", pattern)


def _searched(pattern: str, name: str) -> bool:
    return re.search(pattern, name) is not None


def _as_ignored(names: Sequence[str]) -> Iterator[str]:
    yield from (f"re:{pattern}" for pattern in _as_started(names) if len(names) > 1)


def _as_started(names: Sequence[str]) -> Iterator[str]:
    if len(names) == 1:
        yield f"^{re.escape(names[0])}$"
    for end in _common_ends(names):
        yield f".*{end}$"
    for start in _common_starts(names):
        yield f"{start}[.]"


def _as_wildcards(names: Sequence[str]) -> Iterator[str]:
    if len(names) == 1:
        yield f"{names[0]}.*"
    for end in _common_ends(names):
        yield f"*.{end}.*"
    for start in _common_starts(names):
        yield f"{start}.*"


def _as_skipped(names: Sequence[str]) -> Iterator[str]:
    for end in _common_ends(names):
        yield f".*{end}"
    for start in _common_starts(names):
        yield f"{start}[.]"


def _in_gguf(names: Sequence[str]) -> Iterator[str]:
    short = [re.sub(r"\.(weight|bias)$", "", name) for name in names]
    if len(names) == 1:
        yield short[0]
    for end in _common_ends(short):
        yield end
        yield f"{end}[.]"
    for start in _common_starts(names):
        yield f"{start}[.]"


def _common_ends(names: Sequence[str]) -> Iterator[str]:
    """What all names end with, the shortest first, where they differ in numbers only."""
    folded = {fold_numbers(name) for name in names}
    if len(names) < 2 or len(folded) != 1:
        return
    parts = folded.pop().rpartition("*.")[2].split(".")
    for count in range(1, len(parts) + 1):
        yield ".".join(parts[-count:])


def _common_starts(names: Sequence[str]) -> Iterator[str]:
    """The modules that all of several names are in, the outermost first."""
    parts = [name.split(".") for name in names]
    if len(names) < 2:
        return
    shared = 0
    while all(len(one) > shared + 1 and one[shared] == parts[0][shared] for one in parts):
        shared += 1
    for count in range(1, shared + 1):
        yield ".".join(parts[0][:count])


def _shortest(
    names: Collection[str],
    quantised: Collection[str],
    patterns_of: Callable[[Sequence[str]], Iterator[str]],
    matches: Callable[[str, str], bool],
) -> list[str]:
    """One pattern that hits these of all quantised names and no other; else each by itself."""
    wanted = set(names)
    for pattern in patterns_of([*names]):
        if {name for name in quantised if matches(pattern, name)} == wanted:
            return [pattern]
    if len(wanted) == 1:
        return [f"^{re.escape(one)}$" if matches is _searched else one for one in names]
    return [one for name in names for one in _shortest([name], quantised, patterns_of, matches)]
