"""A port of a tiny model with settings of which one is guilty, compared with its base."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evalguard.bisect.oracle.model_oracle import ModelOracle
from evalguard.bisect.oracle.oracle_opening import open_model_oracle
from evalguard.bisect.oracle.settings_oracle import OracleContext, OracleRequest
from evalguard.comparison.compare import resolve_request
from evalguard.config.options import CompareOptions, make_options
from evalguard.core.question import Loads
from evalguard.core.scorer import Request, Response, Scorer
from evalguard.engine.choices import Choices
from evalguard.engine.loading.load_scorer import load_scorer
from evalguard.engine.score_models import score_sides
from evalguard.engine.scored_side import ScoredSide
from evalguard.engine.slots import WorkerPool
from evalguard.engine.sources import ModelSource

KEY = ("sw_long", "none", "perplexity")
SETTINGS = {
    "eps": '{reference: 1.0e-6, candidate: 1.0e-5, target: "config.rms_norm_eps"}',
    "gain": '{reference: 1.0, candidate: 1.3, target: "attr:model.norm.weight"}',
    "scale": "{reference: 0.35355339059327373, candidate: 0.354, "
    'target: "attr:model.layers.*.self_attn.scaling"}',
    "norm_dtype": "{reference: float32, candidate: bfloat16, "
    'target: "dtype:model.layers.0.input_layernorm"}',
}


@dataclass(frozen=True, kw_only=True)
class Port:
    """Both sides of a finished comparison."""

    sources: tuple[Any, Any]
    scored: tuple[ScoredSide, ScoredSide]
    choices: Choices
    options: CompareOptions

    @contextmanager
    def oracle(self, *, key: tuple[str, str, str] = KEY, **given: Any) -> Iterator[ModelOracle]:
        """Open an oracle; models are loaded in this process unless ``runner`` is given."""
        runner = given.pop("runner", None) or here(self.options, self.choices)
        held_to = given.pop("held_to", None)
        fields = {"kept": None, "say": lambda _: None, **given}
        opened = open_model_oracle(
            OracleRequest(candidate=self.sources[1], scored=self.scored, key=key, held_to=held_to),
            OracleContext(choices=self.choices, options=self.options, **fields),
            runner=None if runner == "workers" else runner,
        )
        with opened as oracle:
            yield oracle


def write_guard(
    folder: Path, llama: Path, tasks: Path, settings: Mapping[str, str], constraints: str = "[]"
) -> Path:
    """Write a guard file with a model and its port."""
    lines = "".join(f"      {name}: {text}\n" for name, text in settings.items())
    path = folder / "guard.yaml"
    path.write_text(
        f"models:\n  orig: {{model_args: {{pretrained: {llama}, dtype: float32}}}}\n"
        f"  port:\n    extends: orig\n    settings:\n{lines}    constraints: {constraints}\n"
        f"tasks: [sw_long]\ninclude_path: [{tasks}]\n"
    )
    return path


def compared(guard: Path, cache: Path, **given: Any) -> Port:
    """Compare the port with its base."""
    options = make_options(None, config=guard, cache_dir=cache, quiet=True, **given)
    sources, choices = resolve_request("orig", "port", options)
    scored = score_sides(sources, choices, options)
    return Port(sources=sources, scored=scored, choices=choices, options=options)


@dataclass
class InProcess:
    """Loads every assignment in this process; counts what it does."""

    options: CompareOptions
    choices: Choices
    loaded: list[Mapping[str, Any]] = field(default_factory=list)
    asked: list[tuple[str, int]] = field(default_factory=list)
    scorer: Scorer | None = None
    source: ModelSource | None = None

    @property
    def loads(self) -> Loads:
        return Loads(loaded=len(self.loaded))

    def at(self, source: ModelSource) -> Scorer:
        if source != self.source or self.scorer is None:
            assert self.options.cache_dir is not None
            assert source.policy is not None
            self.loaded.append(dict(source.variant.assignment))
            self.source = None
            self.scorer = load_scorer(
                source.variant, source.policy, cache_dir=self.options.cache_dir
            )
            self.source = source
        return _Counted(self.scorer, self.asked, str(dict(source.variant.assignment)))

    def close(self) -> None:
        if self.scorer is not None:
            self.scorer.close()
        self.scorer = self.source = None


@dataclass
class _Counted:
    scorer: Scorer
    asked: list[tuple[str, int]]
    name: str

    def __getattr__(self, name: str) -> Any:
        return getattr(self.scorer, name)

    def score(self, requests: list[Request]) -> list[Response]:
        self.asked.append((self.name, requests[0].doc_id))
        return self.scorer.score(requests)


def here(options: CompareOptions, choices: Choices, model: InProcess | None = None) -> WorkerPool:
    """A runner whose one lane loads in this process."""
    return WorkerPool(functools.partial(_same, model or InProcess(options, choices)))


def _same(model: InProcess) -> InProcess:
    return model
