"""Points: tensors at named places of a model, and how they are called.

"model.layers.3.self_attn.o_proj:in" is the first tensor argument of that module, ":out" its first
tensor output, ":out.1" the second one. The k-th call of a module in one pass has its own points,
from the second on as "lm_head#2:in". The model itself is called "(root)".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from evalguard.errors import UsageError

ROOT = "(root)"
# A sequence: every input of the model under its name, with a leading batch axis of one; token ids
# are {"input_ids": int64 of shape [1, tokens]}.
ModelInputs = Mapping[str, NDArray[np.generic]]
_POINT = re.compile(r"(?P<module>.+?)(#(?P<call>\d+))?:(?P<end>in|out)(\.(?P<index>\d+))?")


@dataclass(frozen=True, slots=True, order=True)
class PointName:
    """A point's name in its parts; ``str()`` gives the canonical form.

    Attributes:
        call: of the module in one pass, from 1. index: of its tensor outputs, from 0.
    """

    module: str
    end: Literal["in", "out"]
    index: int = 0
    call: int = 1

    def __str__(self) -> str:
        call = f"#{self.call}" if self.call > 1 else ""
        index = f".{self.index}" if self.index else ""
        return f"{self.module}{call}:{self.end}{index}"

    @classmethod
    def parse(cls, text: str) -> PointName:
        """Read a name; ":out.0" and "#1" are allowed and mean the same as without.

        Raises:
            UsageError: it does not end in ":in", ":out" or ":out.NUMBER".
        """
        match = _POINT.fullmatch(text)
        if match is None:
            raise UsageError(
                f"'{text}' is not the name of a point",
                hint="write MODULE:in, MODULE:out or MODULE:out.1, as in "
                "model.layers.0.self_attn.o_proj:in",
            )
        end: Literal["in", "out"] = "in" if match["end"] == "in" else "out"
        return cls(match["module"], end, int(match["index"] or 0), int(match["call"] or 1))


OUTPUT = str(PointName(ROOT, "out"))  # of the whole model


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRounding:
    """What a model that ran elsewhere rounds, so far as it is known: no error of its conversion.

    Attributes:
        precision: of what it computes and stores: "float32", "float16", "bfloat16", or a class of
            quantised weights (core/weight_precision: CLASSES), QUANTISED where that is
            declared and the class is none of them; "" where nothing is.
        computes_in: a dtype that parts of it compute in whatever its weights are (an engine that
            keeps keys and values in float16); "" where ``precision`` says all that is known.
        inputs: the class by whose rule what quantised weights are multiplied with is rounded; ""
            where it is not, or nothing is known.
    """

    precision: str = ""
    computes_in: str = ""
    inputs: str = ""


class RecordedActivations(Protocol):
    """Activations of a model that ran elsewhere, under the base's point names."""

    @property
    def rounding(self) -> ModelRounding: ...

    @property
    def inputs_known(self) -> bool:
        """Whether every sequence is known to be made of what the base reads."""
        ...

    def names(self, sequence: int) -> Sequence[str]:
        """Give the canonical names of the points that are there for a sequence, from 0."""
        ...

    def read(self, sequence: int, point: str) -> NDArray[np.generic]:
        """Read one point; its shape is the base's, leading axes of one may be missing."""
        ...


def token_inputs(ids: Sequence[int]) -> ModelInputs:
    """Make the inputs of a language model from token ids."""
    return {"input_ids": np.asarray([list(ids)], dtype=np.int64)}
