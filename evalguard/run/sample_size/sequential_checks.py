"""Whether a run may stop early, and what is refused because all documents have to tell it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from evalguard.errors import UsageError
from evalguard.run.choices import Choices
from evalguard.run.options import CompareOptions
from evalguard.run.sources import ModelSource, Source


def check_sequential(
    sources: Sequence[Source], choices: Choices, options: CompareOptions
) -> Choices:
    """Refuse what a sequential run cannot promise; return the choices with what it leaves out.

    Raises:
        UsageError: naming the option.
    """
    if choices.sequential_alpha is None:
        if options.sequential_alpha is not None:
            raise UsageError("sequential_alpha has no effect without sequential", hint="give both")
        return choices
    for problem, hint in _unsupported_choices(choices, options):
        raise UsageError(problem, hint=hint)
    note = (
        "distributions are not compared: a sequential run asks for scores alone; broken documents "
        "are looked for among those that it asks"
    )
    if not can_stop_early(sources, choices):
        note = (
            "both sides are finished runs: stopping early would save nothing, so that all "
            "documents are compared"
        )
    return replace(choices, notes=(*choices.notes, note))


def _unsupported_choices(choices: Choices, options: CompareOptions) -> Iterator[tuple[str, str]]:
    """What was asked for that a part of the documents cannot tell, each with what to do."""
    alpha, gate = choices.sequential_alpha, choices.gate
    if alpha is not None and not 0.0 < alpha < 0.5:
        yield f"a chance of error lies between 0 and 0.5, not {alpha:g}", "0.05, say"
    if choices.task_options.seed < 0:
        yield f"no order of documents has the seed {choices.task_options.seed}", "0 or more"
    if gate.fail_on not in ("real", "margin"):
        yield (
            "--sequential tells the verdict of fail_on real or margin early, and not that of "
            f"{gate.fail_on}",
            "leave out one of the two",
        )
    if gate.limits or choices.distributions.mode in ("lockstep", "reference"):
        yield (
            "--sequential tells early on which side of the margin all documents lie; distributions "
            "and absolute limits of the gate need all of them",
            "leave out --sequential, or --distributions and the gate's limits",
        )
    if options.strict or gate.undecided == "fail":
        yield (
            "--sequential tells early on which side of the margin all documents lie, and not "
            "whether they would be too few to decide anything else",
            "leave out --sequential, or --strict (undecided: fail in the guard file)",
        )


def can_stop_early(sources: Sequence[Source], choices: Choices) -> bool:
    """Whether a sequential run was asked for, and has any model that could be asked less."""
    asked = choices.sequential_alpha is not None
    return asked and any(isinstance(source, ModelSource) for source in sources)
