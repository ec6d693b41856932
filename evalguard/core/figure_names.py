"""Names by which a gate asks for figures of generated answers: "loops", "gsm8k/loops"."""

from __future__ import annotations

from collections.abc import Iterable

from evalguard.core.answer_figures import FIGURES, AnswerFigure
from evalguard.stats.answers.structure import STRUCTURES

# Filter of the tables of figures that are of whole texts, whatever a filter finds in them.
WHOLE_TEXT = "text"
# Figures of which neither more nor fewer is worse, and what a gate names in their place.
INSTEAD_OF = {"first_difference": "first_difference_beyond_ties"}


def figure_named(name: str) -> AnswerFigure | None:
    """The figure that a name asks for: NAME, TASK/NAME, either with a filter after a comma."""
    return FIGURES.get(split_name(name)[1])


def split_name(name: str) -> tuple[str, str, str]:
    """A name's task, metric and filter; "" for what it does not say."""
    named, _, filter_name = name.partition(",")
    task, _, metric = named.rpartition("/")
    return task, metric, filter_name


def figures_of_task(names: Iterable[str], task: str) -> tuple[AnswerFigure, ...]:
    """The figures that these names ask for of a task, each once."""
    asked = (split_name(name) for name in names)
    found = (FIGURES.get(metric) for of, metric, _ in asked if of in ("", task))
    return tuple(dict.fromkeys(figure for figure in found if figure is not None))


def is_figure(filter_name: str, metric: str) -> bool:
    """Whether a metric's filter and name are those of a figure's table."""
    figure = FIGURES.get(metric)
    return figure is not None and (figure.per_filter or filter_name == WHOLE_TEXT)


def why_unknown(name: str) -> str:
    """Why a figure may be known of no document, and what to do, as a clause."""
    return _WHY_UNKNOWN.get(name, "the answers do not show it")


_STRUCTURE = (
    "nobody says what a valid answer is (answers: {TASK: {json: true}} in the guard file, or a "
    "schema, a pattern, tools)"
)
_NO_TOKENS = (
    "the generated tokens are not shown on both sides (models of type hf show them, servers with "
    "model_args.top_logprobs: 2; a finished lm-eval run keeps none), or were sampled"
)
_WHY_UNKNOWN = {
    "tokens": "nobody shows the generated tokens",
    "cut": "nobody says which texts were cut at the token limit (vLLM in process and finished "
    "lm-eval runs do not): name the model itself, or a server that does",
    "no_answer": "no filter says what it found",
    "unclosed_thinking": "no text has a thinking part, and no chat template says that it would",
    "refused": "no server says whether it refused",
    "same_call": "no answer calls a tool, or in which form it would is unknown",
    "same_answer": "in which form calls are written is unknown",
    "other_script": "a text has fewer than ten letters, or as many of another script",
    **dict.fromkeys((*STRUCTURES, "tool_call"), _STRUCTURE),
    **dict.fromkeys(("first_difference", "first_difference_beyond_ties"), _NO_TOKENS),
}
