"""How the two models of a comparison differ beside their weights, said whatever the verdict is.

Configs, generation configs, tokenizers, code and dtype, as each model shows them once it is loaded,
and the settings that a guard file declares.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from evalguard import tools
from evalguard.core.compare_report import RunIdentity, SettingState
from evalguard.core.findings import Finding, FindingValue
from evalguard.core.hyperparameters import HeldValue, compare_hyperparameters
from evalguard.core.scorer import ModelDescription
from evalguard.core.settings import Value
from evalguard.engine.loading.own_environment import is_runtime
from evalguard.engine.scored_side import ScoredSide
from evalguard.engine.sources import ModelSource, Source
from evalguard.errors import EvalguardError
from evalguard.models.hyperparameters_read import read_named_values
from evalguard.store.cache_folder import default_cache_dir

_LOG = logging.getLogger(__name__)


def with_declared(
    sources: tuple[Source, Source], scored: tuple[ScoredSide, ScoredSide], cache_dir: Path | None
) -> tuple[ScoredSide, ScoredSide]:
    """Return both sides with the hyper-parameters that their files name, where nothing else does.

    They have been loaded and scored: files that cannot be read cost no verdict.
    """
    folder = cache_dir or default_cache_dir()
    first, second = (
        replace(side, declared=_read(source, side, folder))
        for source, side in zip(sources, scored, strict=True)
    )
    return first, second


def _read(source: Source, side: ScoredSide, cache_dir: Path) -> tuple[HeldValue, ...]:
    if not isinstance(source, ModelSource) or side.description is None:
        return ()
    if side.description.configuration or not is_runtime(source.variant):
        return ()
    if not tools.has("read_declared_hyperparameters"):
        return ()
    try:
        return tuple(tools.fetch("read_declared_hyperparameters")(source.variant, cache_dir))
    except EvalguardError:
        _LOG.info("what the files of %s declare is not known", source.name, exc_info=True)
        return ()


_MOST_TEXT = 140  # characters: two lines of a terminal, with what stands before them
_MOST_VALUE = 48  # longer than names of classes
_PACKAGES = ("torch", "transformers", "tokenizers")
# Of files: what the loaded models say themselves, and what no number follows from.
_SAID_ELSEWHERE = frozenset({"dtype", "attention_implementation", "pad_token_id", "puts_bos_first"})
# Said first, by a part of their names: what a wrong value of changes most.
_FIRST = (
    "rope", "eps", "scal", "softcap", "act", "head", "tie", "quant", "window", "layer_types",
    "token_id", "vocab",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SideDifference:
    """One thing that the two models hold otherwise.

    Attributes:
        part: "configs", "tokenizer", "code", "settings", what it belongs to.
        path: dotted name of it; ``name`` as it is said.
        base, candidate: None where a side does not hold it.
    """

    part: str
    path: str
    name: str
    base: Value
    candidate: Value
    said: str = ""

    @property
    def text(self) -> str:
        """Return "rope_theta 10000 -> 50000"."""
        return self.said or f"{self.name} {_shown(self.base)} -> {_shown(self.candidate)}"


def list_side_differences(
    sides: tuple[RunIdentity, RunIdentity],
    models: tuple[ModelDescription | None, ModelDescription | None],
    declared: tuple[Sequence[HeldValue], Sequence[HeldValue]] = ((), ()),
) -> tuple[SideDifference, ...]:
    """List in which configs, tokenizers, code and settings two models differ, weightiest first.

    Args:
        sides, models: of base and candidate; None for a finished run, which shows none of it.
        declared: what the files of a model say that another library runs; () where it shows itself.
    """
    base, candidate = models
    if base is None or candidate is None:
        return ()
    differences = [*compare_models(base, candidate), *_declared(models, declared)]
    parts = list(
        dict.fromkeys(difference.part for difference in differences)
    )  # what belongs together is said so
    differences.sort(key=lambda difference: parts.index(difference.part))
    return (*differences, *_settings(sides, differences))


def find_side_differences(found: Sequence[SideDifference]) -> tuple[Finding, ...]:
    """Say in which configs, tokenizers, code and settings two models differ; () if in none."""
    if not found:
        return ()
    values: dict[str, FindingValue] = {
        f"{difference.part}.{difference.path}": (
            _held(difference.base),
            _held(difference.candidate),
        )
        for difference in found
    }
    return (Finding(kind="sides_differ", text=_sentence(found), values=values),)


def compare_models(base: ModelDescription, candidate: ModelDescription) -> Iterator[SideDifference]:
    """Give what two models hold otherwise, beside their weights, the weightiest first."""
    sections = [_sections(model) for model in (base, candidate)]
    if all(sections):
        yield from _configs(*(section["config"] for section in sections))
        yield from _generation(*sections)
    if base.dtype and candidate.dtype and base.dtype != candidate.dtype:
        yield _difference("configs", "dtype", base.dtype, candidate.dtype)
    if all(sections):
        yield from _tokenizers(*(section["tokenizer"] for section in sections))
        yield from _code(*(section["code"] for section in sections))
    if base.model_type and base.model_type != candidate.model_type:
        yield _difference("code", "model type", base.model_type, candidate.model_type)
    yield from _packages(base.environment, candidate.environment)


def _sections(description: ModelDescription) -> Mapping[str, Mapping[str, Value]]:
    configuration = description.configuration
    return {name: of for name, of in configuration.items() if isinstance(of, Mapping)}


def _difference(part: str, path: str, base: Value, candidate: Value) -> SideDifference:
    name = path.rpartition(".")[2]
    return SideDifference(part=part, path=path, name=name, base=base, candidate=candidate)


def _configs(base: Mapping[str, Value], candidate: Mapping[str, Value]) -> Iterator[SideDifference]:
    same_kind = base.get("model_type") == candidate.get("model_type")
    differences = [
        _difference("configs", path, base.get(path), candidate.get(path))
        for path in dict.fromkeys((*base, *candidate))
        if path != "model_type"
        and (same_kind or (path in base and path in candidate))
        and not _same(base.get(path), candidate.get(path))
    ]
    shared = {path.rpartition(".")[2] for path in base.keys() & candidate.keys()}
    if not same_kind:
        differences += _by_common_names(base, candidate, shared)
    yield from sorted(differences, key=_rank)


def _by_common_names(
    base: Mapping[str, Value], candidate: Mapping[str, Value], shared: set[str]
) -> list[SideDifference]:
    """What two architectures call otherwise and mean the same by, where they hold other values."""
    ours, theirs = (read_named_values(of, prefix="") for of in (base, candidate))
    known = {value.name for value in ours if value.source.rpartition(".")[2] in shared}
    return _differing([value for value in ours if value.name not in known], theirs)


def _differing(base: Sequence[HeldValue], candidate: Sequence[HeldValue]) -> list[SideDifference]:
    return [
        _difference("configs", delta.name, delta.base, delta.candidate)
        for delta in compare_hyperparameters(base, candidate)
        if delta.verdict == "differs" and delta.name not in _SAID_ELSEWHERE
    ]


def _declared(
    models: tuple[ModelDescription | None, ModelDescription | None],
    declared: tuple[Sequence[HeldValue], Sequence[HeldValue]],
) -> list[SideDifference]:
    """What files say of a side that another library runs, beside what the other one holds."""
    if not any(declared):
        return []
    held = []
    for model, of in zip(models, declared, strict=True):
        config = {} if model is None else _sections(model).get("config", {})
        held.append(list(of) or read_named_values(config, prefix=""))
    return sorted(_differing(*held), key=_rank)


def _rank(one: SideDifference) -> tuple[int, str]:
    places = [at for at, part in enumerate(_FIRST) if part in one.path]
    return min(places, default=len(_FIRST)), one.path


def _same(one: Value, other: Value) -> bool:
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other or (not one and other is None) or (one is None and not other)
    return one == other or (one in (None, [], "") and other in (None, [], ""))


def _generation(
    base: Mapping[str, Mapping[str, Value]], candidate: Mapping[str, Mapping[str, Value]]
) -> Iterator[SideDifference]:
    ours, theirs = base["generation"], candidate["generation"]
    for name in dict.fromkeys((*ours, *theirs)):
        as_config = [side["config"].get(name) for side in (base, candidate)]
        if ours.get(name) == theirs.get(name) or as_config == [ours.get(name), theirs.get(name)]:
            continue
        yield _difference("configs", f"generation.{name}", ours.get(name), theirs.get(name))


def _tokenizers(
    base: Mapping[str, Value], candidate: Mapping[str, Value]
) -> Iterator[SideDifference]:
    for name in dict.fromkeys((*base, *candidate)):
        ours, theirs = base.get(name), candidate.get(name)
        if ours == theirs:
            continue
        wording = ""
        if name in ("rules", "chat template"):
            wording = (
                name if ours and theirs else f"{name} on the {'base' if ours else 'candidate'} only"
            )
        yield SideDifference(
            part="tokenizer", path=name, name=name, base=ours, candidate=theirs, said=wording
        )


def _code(base: Mapping[str, Value], candidate: Mapping[str, Value]) -> Iterator[SideDifference]:
    remote = [bool(side.get("remote")) for side in (base, candidate)]
    if remote[0] != remote[1]:
        side, held = ("candidate", candidate) if remote[1] else ("base", base)
        wording = f"remote on the {side} ({held.get('class')})"
    elif base.get("class") != candidate.get("class"):
        wording = ""
    elif base.get("digest") != candidate.get("digest"):
        wording = "remote, and not the same"
    else:
        return
    # classes of transformers' own can be mistaken for each other; a port's own code is meant
    path = "remote_class" if remote[1] else "remote_base_class" if remote[0] else "class"
    yield SideDifference(
        part="code", path=path, name="class", base=base.get("class"),
        candidate=candidate.get("class"), said=wording,
    )  # fmt: skip


def _packages(
    base: Mapping[str, Value], candidate: Mapping[str, Value]
) -> Iterator[SideDifference]:
    ours, theirs = (of.get("packages") for of in (base, candidate))
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        for name in _PACKAGES:
            if ours.get(name) and theirs.get(name) and ours[name] != theirs[name]:
                yield _difference("code", name, ours[name], theirs[name])


def _settings(
    sides: tuple[RunIdentity, RunIdentity], found: Sequence[SideDifference]
) -> list[SideDifference]:
    """What the guard file sets on either side, beside what the models show of it themselves."""
    base, candidate = ({setting.name: setting for setting in side.settings} for side in sides)
    shown = {f"config.{difference.path}" for difference in found} | {
        f"model_args.{difference.path}" for difference in found
    }
    named = []
    for name in dict.fromkeys((*candidate, *base)):
        ours, theirs = _setting_value(base, candidate, name), _setting_value(candidate, base, name)
        target = (candidate.get(name) or base[name]).target
        if ours != theirs and not _is_shown(target, shown):
            named.append(_difference("settings", name, ours, theirs))
    return named


def _setting_value(
    own: Mapping[str, SettingState], other: Mapping[str, SettingState], name: str
) -> Value:
    """A side's value of a setting; of one that only the other declares, its reference there."""
    return own[name].value if name in own else other[name].reference


def _is_shown(target: str, shown: set[str]) -> bool:
    last = target.rpartition(".")[2]
    if not target.startswith(("config.", "model_args.")):
        return False
    return target in shown or any(path.rpartition(".")[2] == last for path in shown)


def _sentence(found: Sequence[SideDifference]) -> str:
    """All parts, each once, as long as there is room; then how many more there are."""
    sentence, part, remaining = "", "", list(found)
    while remaining:
        difference = remaining[0]
        text = (
            difference.text
            if difference.part == part
            else f"{difference.part} differ: {difference.text}"
        )
        if difference.part in ("tokenizer", "code") and difference.part != part:
            text = f"{difference.part}: {difference.text}"
        joined = ", " if difference.part == part else "; "
        longer = f"{sentence}{joined}{text}" if sentence else text
        if sentence and len(longer) > _MOST_TEXT:
            break
        sentence, part = longer, difference.part
        remaining.pop(0)
    return f"{sentence} and {len(remaining)} more" if remaining else sentence


def _shown(value: Value) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _MOST_VALUE else f"{text[: _MOST_VALUE - 3]}..."


def _held(value: Value) -> str | int | float | None:
    if value is None or isinstance(value, (str, int, float)):
        return value
    return json.dumps(value)
