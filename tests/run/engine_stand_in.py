"""A stand-in engine behind the protocol that vLLM's is behind: a table of next-token logits.

Two of its eight flags change them by much, one by rounding, and the others not at all.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from evalguard.bisect.oracle import oracle_opening
from evalguard.core.question import Loads
from evalguard.core.scorer import Scorer, ScoringPolicy
from evalguard.core.settings import Value
from evalguard.engine.loading import scorer_opening
from evalguard.engine.loading.runtime_in_worker import load_runtime_scorer
from evalguard.engine.sources import ModelSource
from evalguard.models.position_reduction import Reduced, Wanted
from evalguard.models.runtimes.engine import (
    EngineRuntime,
    GeneratedByEngine,
    PromptPositions,
    WantedPrompt,
)
from evalguard.models.runtimes.runtime import RuntimeArguments
from evalguard.models.runtimes.tokenizer import FolderTokenizer, TokenizedRuntime
from evalguard.models.runtimes.types import RUNTIME_TYPES, RuntimeType
from evalguard.models.scored_tokens import InputTokens, ScoredTokens

# name -> (reference, candidate), by vLLM's names
FLAGS: dict[str, tuple[Any, Any]] = {
    "kv_cache_dtype": ("auto", "fp8"),
    "quantization": ("none", "int4"),
    "attention_backend": ("TORCH_SDPA", "FLASHINFER"),
    "enable_prefix_caching": (False, True),
    "max_num_seqs": (1, 64),
    "enforce_eager": (True, False),
    "block_size": (16, 32),
    "num_speculative_tokens": (0, 5),
}
# Standard deviation of what a flag adds to each logit: KL is about half its square.
NOISE = {"kv_cache_dtype": 0.12, "quantization": 0.2, "attention_backend": 1e-4}


@lru_cache
def _table(number: int, size: int) -> NDArray[np.float64]:
    draws = np.random.default_rng(number).standard_normal((size, size))
    return draws if number else 2.0 * draws


@lru_cache
def _tokenizer(folder: Path) -> FolderTokenizer:
    return FolderTokenizer(folder)


class StandIn(TokenizedRuntime, EngineRuntime):
    """A table of logits, by the last token, with what flags do to it.

    ``stale``: what it has kept of a prompt is not what it computed of it.
    """

    dtype, device, parameters, max_length = "float32", "cpu", 9, 64

    def __init__(self, folder: Path, flags: Mapping[str, Any]) -> None:
        super().__init__(_tokenizer(folder))
        self.vocabulary_size = len(self.vocabulary)
        self._flags = dict(flags)
        self._read: set[tuple[int, ...]] = set()

    @property
    def effective(self) -> Mapping[str, Value]:
        return self._flags

    @property
    def computation(self) -> Mapping[str, Value]:
        return {"prefix_cache": bool(self._flags["enable_prefix_caching"])}

    def rows(self, ids: Sequence[int], first: int) -> NDArray[np.float32]:
        """Log-probabilities of what follows ``ids[first:]``."""
        logits = _table(0, self.vocabulary_size)[list(ids[first:])]
        for number, (name, size) in enumerate(NOISE.items()):
            if self._flags[name] != FLAGS[name][0]:
                # of the token before, too: the effect is of a context, not of a token
                moved = np.roll(ids, 1)[first:]
                logits = logits + size * _table(number + 1, self.vocabulary_size)[moved]
        found: NDArray[np.float32] = (
            logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        ).astype(np.float32)
        return found

    def reduce(self, wanted: Mapping[InputTokens, Wanted]) -> list[tuple[ScoredTokens, Reduced]]:
        answers = []
        for fed, one in wanted.items():
            prompt = WantedPrompt(fed=fed, wanted=one)
            positions = PromptPositions(prompt=prompt, vocabulary_size=self.vocabulary_size)
            positions.begin(prompt.ids)
            rows = self.rows(prompt.ids, len(prompt.ids) - fed.n_scored)
            if self._flags["stale"] and prompt.ids in self._read:
                rows = rows + 0.1 * _table(9, self.vocabulary_size)[list(prompt.ids[-len(rows) :])]
                rows -= np.log(np.exp(rows).sum(axis=1, keepdims=True))
            self._read.add(prompt.ids)
            positions.add(rows.astype(np.float32))
            done = positions.finish()
            assert done.scored is not None, done.fault
            assert done.reduced is not None
            answers.append((done.scored, done.reduced))
        return answers

    def generate(
        self, prompts: Sequence[Sequence[int]], options: Mapping[str, Any], most: int
    ) -> list[GeneratedByEngine]:
        raise NotImplementedError

    def close(self) -> None:
        pass


def load(arguments: RuntimeArguments) -> StandIn:
    folder = arguments.path()
    flags = {name: arguments.take(name, usual) for name, (usual, _) in FLAGS.items()}
    flags["stale"] = arguments.take("stale", False)
    arguments.check_all_taken()
    return StandIn(folder, flags)


class InThisProcess:
    """The models of a search, without processes of their own."""

    made: list[str] = []  # noqa: RUF012

    def __init__(self, policy: ScoringPolicy, *_: Any) -> None:
        self._policy = policy
        self.loads = Loads()

    def at(self, source: ModelSource) -> Scorer:
        self.made.append(source.name)
        self.loads += Loads(loaded=1)
        return load_runtime_scorer(source.variant, self._policy)

    def close(self) -> None:
        pass


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add a model type ``stand_in``, loaded in this process."""
    kind = RuntimeType(
        module="stand_in", imports=("numpy",), requirements=("numpy",), purpose="", arguments=None
    )
    monkeypatch.setitem(cast(dict[str, RuntimeType], RUNTIME_TYPES), "stand_in", kind)
    module = ModuleType("evalguard.models.runtimes.stand_in")
    module.load = load  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(
        scorer_opening,
        "_open_asking",
        lambda variant, policy, *_, **__: load_runtime_scorer(variant, policy),
    )
    monkeypatch.setattr(oracle_opening, "ReusedModel", InThisProcess)
