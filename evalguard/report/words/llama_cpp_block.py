"""The block that ``llama-perplexity --kl-divergence`` prints at its end, to the letter.

Labels, order and digits are those of tools/perplexity/perplexity.cpp, ``kl_divergence``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from evalguard.core.distribution_comparison import Figure, LlamaCppFigures, Percentile

_NAMES = {0.0: "Minimum", 50.0: "Median ", 100.0: "Maximum"}


def llama_cpp_lines(found: LlamaCppFigures) -> tuple[str, ...]:
    """Return the lines of the block."""
    return tuple(_lines(found))


def _lines(found: LlamaCppFigures) -> Iterator[str]:
    correlation = math.nan if found.correlation is None else 100.0 * found.correlation
    yield "====== Perplexity statistics ======"
    yield f"Mean PPL(Q)                   : {_wide(found.perplexity)}"
    yield f"Mean PPL(base)                : {_wide(found.base_perplexity)}"
    yield f"Cor(ln(PPL(Q)), ln(PPL(base))): {correlation:6.2f}%"
    yield f"Mean ln(PPL(Q)/PPL(base))     : {_wide(found.log_ratio)}"
    yield f"Mean PPL(Q)/PPL(base)         : {_wide(found.ratio)}"
    yield f"Mean PPL(Q)-PPL(base)         : {_wide(found.difference)}"
    yield ""
    yield "====== KL divergence statistics ======"
    yield f"Mean    KLD: {_wide(found.kl)}"
    for one in reversed(found.kl_percentiles):
        yield f"{_name(one)} KLD: {_value(one.figure):10.6f}"
    yield ""
    yield "====== Token probability statistics ======"
    yield f"Mean    Δp: {_percent(found.dp)} ± {100.0 * _error(found.dp):5.3f} %"
    for one in reversed(found.dp_percentiles):
        yield f"{_name(one)} Δp: {_percent(one.figure)}%"
    yield f"RMS Δp    : {_percent(found.dp_rms)} ± {100.0 * _error(found.dp_rms):5.3f} %"
    yield f"Same top p: {_percent(found.same_top)} ± {100.0 * _error(found.same_top):5.3f} %"


def _name(one: Percentile) -> str:
    return _NAMES.get(one.percent) or f"{one.percent:4.1f}%  "


def _wide(figure: Figure) -> str:
    return f"{_value(figure):10.6f} ± {_error(figure):10.6f}"


def _percent(figure: Figure) -> str:
    return f"{100.0 * _value(figure):6.3f}"


def _value(figure: Figure) -> float:
    return math.nan if figure.value is None else figure.value


def _error(figure: Figure) -> float:
    return math.nan if figure.stderr is None else figure.stderr
