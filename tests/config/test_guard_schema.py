"""The JSON Schema says what validation does."""

from __future__ import annotations

import functools
import re
from typing import Any

import jsonschema
import pytest
import yaml
from guard_texts import FULL
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from evalguard.config.gate_entry import LimitsEntry
from evalguard.config.guard_search import embedded_folder
from evalguard.config.guard_shape import TARGET_PATTERN, GuardFile
from evalguard.config.guard_writing import TEMPLATE, build_guard_schema
from evalguard.core.figures import FIGURES
from evalguard.core.limits import KINDS as LIMITS
from evalguard.core.settings import Target
from evalguard.errors import UsageError


@functools.cache
def validator() -> Any:
    return jsonschema.Draft202012Validator(build_guard_schema())


def is_valid(data: Any) -> bool:
    return bool(validator().is_valid(data))


def test_the_schema_is_a_schema_with_an_identity() -> None:
    jsonschema.Draft202012Validator.check_schema(build_guard_schema())
    assert build_guard_schema()["$id"].startswith("urn:evalguard:")


def test_the_demo_the_template_and_the_full_example_fit_the_schema() -> None:
    demo = (embedded_folder() / "configs" / "demo.yaml").read_text(encoding="utf-8")
    for text in (demo, TEMPLATE, FULL):
        assert is_valid(yaml.safe_load(text))


def test_every_key_is_described() -> None:
    for name, shape in build_guard_schema()["$defs"].items():
        for key, said in shape.get("properties", {}).items():
            assert said.get("description"), f"{name}.{key}"


def changed(path: str, value: object) -> Any:
    data = yaml.safe_load(FULL)
    place = data
    *parents, last = path.split("/")
    for part in parents:
        place = place[int(part) if isinstance(place, list) else part]
    place[last] = value
    return data


ACCEPT = {
    "task": "t", "metric": "acc", "up_to": 1.5, "until": "2026-12-31", "reason": "known"
}  # fmt: skip
CHANGES: list[tuple[str, object]] = [
    ("more", 1), ("models/orig/more", 1), ("models/fla-port/settings/eps/more", 1),
    ("models/fla-port/build/more", 1), ("pairs/0/more", 1), ("gate/more", 1), ("run/more", 1),
    ("models/fla-port/constraints/0/else", {}), ("models/a b", {}), ("models/-x", {}),
    ("models/fla-port/settings/a b", {"reference": 1, "candidate": 2, "target": "config.x"}),
    ("models/orig/model", None), ("models/orig/model", ""), ("models/orig/extends", None),
    ("models/orig/trust_remote_code", 1), ("models/orig/trust_remote_code", True),
    ("gate/margin", 0), ("gate/margin", True), ("gate/margin", 3), ("gate/fail_on", "x"),
    ("gate/confidence", 1), ("run/limit", 10), ("run/limit", 0.5), ("run/limit", 0),
    ("run/limit", 1.5), ("run/limit", True), ("run/limit", None), ("run/batch_size", 4),
    ("run/batch_size", "auto"), ("run/batch_size", "4"), ("run/batch_size", False),
    ("run/apply_chat_template", "name"), ("run/apply_chat_template", ""),
    ("run/apply_chat_template", 1), ("run/seed", -1), ("run/seed", 0), ("run/device", ""),
    ("run/distributions", "lockstep"), ("run/distributions", False), ("run/distributions", True),
    ("run/distributions", "on"), ("run/distributions", 0), ("run/distributions", None),
    ("answers", {"t": {"json": True}}), ("answers", {"t": {"json": 1}}),
    ("answers", {"t": {"jsn": True}}), ("answers", {"t": {"schema": "s.json"}}),
    ("answers", {"t": {"schema": {"type": "object"}}}), ("answers", {"t": {"schema": [1]}}),
    ("answers", {"t": {"pattern": ""}}), ("answers", {"t": {"pattern": "a"}}),
    ("answers", {"t": {"tools": []}}), ("answers", {"t": {"tools": [{}], "call": "allowed"}}),
    ("answers", {"t": {"tools": [1]}}), ("answers", {"t": {"tools": [{}], "call": "maybe"}}),
    ("run/track", "wandb"), ("run/track", ["wandb", "trackio"]), ("run/track", "none"),
    ("run/track", ["none"]), ("run/track", ["none", "wandb"]), ("run/track", []),
    ("run/track", "wanbd"), ("run/track", ["wanbd"]), ("run/track", None), ("run/track", True),
    ("run/cache_max_size", "20GB"), ("run/cache_max_size", "1.5 GiB"), ("run/cache_max_size", 0),
    ("run/cache_max_size", "lots"), ("run/cache_max_size", 20), ("run/cache_max_size", "20"),
    ("run/cache_max_size", "0"), ("run/cache_max_size", "2k"), ("run/cache_max_size", -1),
    ("run/cache_max_size", True),
    ("run/cache_max_size", "5Gi"), ("run/cache_max_size", " 5"), ("run/cache_max_size", None),
    ("run/execution", "here"), ("run/execution", "ray"), ("run/execution", "ray://auto"),
    ("run/execution", "ray://head:10001"), ("run/execution", "ray?actors=2&num_gpus=0.5"),
    ("run/execution", "dask"), ("run/execution", "ray://head"), ("run/execution", ""),
    ("run/execution", "ray://head:0"), ("run/execution", "ray?actors"), ("run/execution", 1),
    ("run/execution", None),
    ("run/memory", "lockstep"), ("run/memory", "both"), ("run/memory", None),
    ("run/reference_top_k", 0), ("run/reference_top_k", 8),
    ("include_path", ["a", "b"]), ("include_path", []), ("include_path", 3), ("include_path", ""),
    ("gate/metrics", {}), ("gate/metrics", {"kl_men": 1}), ("gate/metrics/kl_mean", 0),
    ("gate/metrics/kl_mean", 2.5), ("gate/metrics/kl_mean", -1), ("gate/metrics/kl_mean", "x"),
    ("gate/metrics/kl_p99_9", 1), ("gate/metrics/same_top1", 1.1), ("gate/metrics/dp_rms", 2),
    ("gate/metrics/same_answer", 0.9), ("gate/metrics/kl_max", None),
    ("gate/metrics/loops", 0), ("gate/metrics/loops", "2%"), ("gate/metrics/loops", 2),
    ("gate/metrics/loops", {"limit": 0.1, "margin": "1pp"}), ("gate/metrics/loops", None),
    ("gate/metrics", {"gsm8k/cut": "1pp"}), ("gate/metrics", {"no_answer,strict": 0.05}),
    ("gate/metrics", {"tokens": 5}), ("gate/metrics", {"tokens": {"margin": "10%"}}),
    ("tasks", []), ("tasks", "a"), ("pairs", []), ("models", {}), ("pairs/0/differs", ["x"]),
    ("pairs/0/accept", [ACCEPT]), ("pairs/0/accept", [{**ACCEPT, "filter": "strict"}]),
    ("pairs/0/accept", [{**ACCEPT, "until": "2026-13-01"}]), ("pairs/0/accept", [{}]),
    ("pairs/0/accept", [{**ACCEPT, "up_to": 0}]), ("pairs/0/accept", [{**ACCEPT, "reason": ""}]),
    ("pairs/0/accept", [{**ACCEPT, "until": 20261231}]), ("pairs/0/accept", ACCEPT),
    ("pairs/0/accept", [{**ACCEPT, "more": 1}]),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value"), CHANGES)
def test_schema_and_validation_accept_and_refuse_the_same(path: str, value: object) -> None:
    data = changed(path, value)
    try:
        GuardFile.model_validate(data)
        accepted = True
    except ValidationError:
        accepted = False
    assert is_valid(data) == accepted


def test_every_limit_of_the_gate_has_a_key() -> None:
    keys = [field.alias or name for name, field in LimitsEntry.model_fields.items()]
    assert keys == [name for name in LIMITS if name not in FIGURES]


def test_unknown_keys_do_not_fit() -> None:
    assert not is_valid(changed("models/orig/modl", "hf"))
    assert is_valid(changed("models/orig/model", "hf"))


KINDS = [
    "model_args.",
    "config.",
    "generation.",
    "attr:",
    "dtype:",
    "weights:",
    "env.",
    "build.",
    "call:",
    "confg.",
    "",
]


@given(st.sampled_from([*KINDS, "confg.", ""]), st.text("ab_1.:*/é\n ", max_size=8))
def test_the_schemas_pattern_of_targets_is_the_parsers(kind: str, rest: str) -> None:
    text = kind + rest
    try:
        Target.parse(text)
        readable = True
    except UsageError:
        readable = False
    assert (re.fullmatch(TARGET_PATTERN.strip("^$"), text) is not None) == readable
