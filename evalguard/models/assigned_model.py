"""Assigned: what a scorer is told of the assignment that its model carries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evalguard.core.settings import Value, Variant

# Setting -> (module, attribute) of all that it has set.
EditedAttributes = Mapping[str, Sequence[tuple[str, str]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignedModel:
    """The settings of a loaded model, as they were read back.

    Attributes:
        effective: setting name -> value read back.
        provenance: digests of weights and code; None where one of them cannot be proven, so that
            scores must not be cached.
        revision: by which the user vouches for a served model; "": nobody does.
        threads: CPU threads that torch computes with; 0: as many as it uses at the time.
        edited: attributes that were set after the model was built, to other than their reference.
        caveats: what a report has to say of it.
        on_smaller_budget: takes the token budget that is left where memory ran out.
    """

    effective: Mapping[str, Value] = field(default_factory=dict)
    provenance: Mapping[str, Value] | None = None
    revision: str = ""
    threads: int = 0
    edited: EditedAttributes = field(default_factory=dict)
    caveats: tuple[str, ...] = ()
    on_smaller_budget: Callable[[int], None] = lambda _: None


# Lets the loaded model carry a variant's assignment instead of the one it carries; None: it cannot.
Reassigner = Callable[["Variant"], AssignedModel | None]
