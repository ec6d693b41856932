"""Finding: a fact that every reader of a comparison must see, beside its verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

# same_model            base and candidate are one
# broken_documents      the candidate gives documents far less than chance
# loss_is_spread        how many documents carry half of a loss of answers
# first_answers_fail    most of a model's first answers to a task are cut, empty or hold no answer
# not_judged            metrics that the gate asks for and one side could not give
# says_nothing          a candidate's answers alone are one for all documents, or flat
# no_answer_found       a filter finds no answer in many generated texts of a side
# stops_left_in         texts of one side alone end in the task's stop sequences
# prompts_differ        how prompts differ that are declared to
# sides_differ          configs, tokenizers or code of the two models
# untested_differences  what differs so, and these documents cannot show
# padding_changes       a model answers otherwise in a padded batch
# task_shows_little     the base is near chance, so that the task cannot show a drift
# distributions_unknown they were not compared, though both models show them
# distributions_moved   far more than rounding makes, whatever the scores say
# server_varies         a server answers the same prompt in more than one way
# dependent_documents   differences of documents that are not independent
# rests_on_documents    the verdict rests on a few documents
# scores_unrelated      two sides' scores of the same documents have nothing in common
# far_better            the candidate is better by more than its margin, for sure
# waiver                a waiver expired, ends soon, is exceeded, or lets nothing through
# made_differently      versions, devices or batches of the two sides, which rounding follows from
# scores_depend         a model's scores depend on tokens that should not matter
# weights_unused        a model leaves weights of its checkpoint out
# batch_size_effect     what other batches change, where that was asked for
# rounded_base          the base's log-probabilities are a llama.cpp logits file's, of 16 bits
# not_stored            what could not be written or kept, and why
FindingKind = Literal[
    "same_model",
    "broken_documents",
    "loss_is_spread",
    "first_answers_fail",
    "not_judged",
    "says_nothing",
    "no_answer_found",
    "stops_left_in",
    "prompts_differ",
    "sides_differ",
    "untested_differences",
    "padding_changes",
    "task_shows_little",
    "distributions_unknown",
    "distributions_moved",
    "server_varies",
    "dependent_documents",
    "rests_on_documents",
    "scores_unrelated",
    "far_better",
    "waiver",
    "made_differently",
    "scores_depend",
    "weights_unused",
    "batch_size_effect",
    "rounded_base",
    "not_stored",
]
# Those by which a pass may say little.
DOUBTS: frozenset[FindingKind] = frozenset(
    {"same_model", "not_judged", "says_nothing", "task_shows_little", "distributions_moved"}
)
FindingValue = str | int | float | bool | None | tuple[str | int | float | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What stands on the first screen of every view, whatever the verdict; it decides nothing.

    Attributes:
        text: one sentence without a full stop, made where the fact is known.
        task, filter, metric: what it is about; "" where it is about the whole run.
        values: the fact as data, finite numbers only.
        kind: of fact; others may be added.
    """

    kind: FindingKind
    text: str
    task: str = ""
    filter: str = ""
    metric: str = ""
    values: Mapping[str, FindingValue] = field(default_factory=dict)


def unstored(text: str) -> Finding:
    """What could not be written or kept: the verdict stands, and somebody may miss it."""
    return Finding(kind="not_stored", text=text)
