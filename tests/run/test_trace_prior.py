"""What a trace suspects becomes the weights of the settings that can change it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evalguard.bisect.bisect_report import TracedPlace
from evalguard.bisect.settings.module_settings import find_trace, weigh_settings
from evalguard.core.settings import Setting, Target


def setting(name: str, target: str) -> Setting:
    return Setting(name=name, reference="base", candidate=None, target=Target.parse(target))


def write(folder: Path, **changes: Any) -> Path:
    document = {
        "schema": "evalguard.trace/1",
        "base": {"name": "orig"},
        "candidate": {"name": "port"},
        "suspects": [
            {"module": "model.layers.3.self_attn", "local_ratio": 9.0},
            {"module": "model.layers.3.self_attn", "local_ratio": 4.0},
            {"module": "model.layers.1.mlp.up_proj", "local_ratio": None},
        ],
        "first": {"module": "model.layers.1.mlp.up_proj", "operation": "weights: scaled"},
        **changes,
    }
    folder.mkdir()
    (folder / "trace.json").write_text(json.dumps(document))
    return folder / "trace.json"


def test_the_newest_trace_of_the_two_models_counts(tmp_path: Path) -> None:
    write(tmp_path / "2026-01-01", suspects=[])
    newest = write(tmp_path / "2026-02-01")
    write(tmp_path / "2026-03-01", candidate={"name": "another"})
    write(tmp_path / "2026-04-01", schema="evalguard.trace/9")
    (write(tmp_path / "2026-05-01")).write_text("{")
    (tmp_path / "2026-06-01").mkdir()
    found = find_trace(tmp_path, "orig", "port")
    assert found is not None
    assert found.folder == newest.parent
    assert found.ratios == {
        "model.layers.3.self_attn": 9.0,
        "model.layers.1.mlp.up_proj": float("inf"),
    }
    assert found.first == TracedPlace(
        folder=str(newest.parent), module="model.layers.1.mlp.up_proj", operation="weights: scaled"
    )


@pytest.mark.parametrize("suspects", [None, [{}], [3], [{"module": "a", "local_ratio": "much"}]])
def test_a_trace_that_cannot_be_read_is_none(suspects: object, tmp_path: Path) -> None:
    write(tmp_path / "run", suspects=suspects)
    assert find_trace(tmp_path, "orig", "port") is None
    assert find_trace(tmp_path / "nowhere", "orig", "port") is None


def test_a_setting_weighs_what_the_largest_suspect_in_its_target_does() -> None:
    settings = [
        setting("model.layers.3", "module:model.layers.3"),
        setting("model.layers.1", "module:model.layers.1"),
        setting("model.layers.0", "module:model.layers.0"),
        setting("weights.mlp", "weights:model.norm,model.layers.[0-2].mlp"),
        setting("scale", "attr:model.layers.*.self_attn.scaling"),
        setting("layer_dtype", "dtype:model.layers.*"),
        setting("eps", "config.rms_norm_eps"),
    ]
    ratios = {"model.layers.3.self_attn": 9.0, "model.layers.1.mlp.up_proj": 4.0}
    assert weigh_settings(ratios, settings) == {
        "model.layers.3": 9.0,
        "model.layers.1": 4.0,
        "weights.mlp": 4.0,
        "scale": 9.0,
        "layer_dtype": 9.0,
    }


def test_a_modules_own_code_is_suspected_by_itself_only() -> None:
    settings = [
        setting("model.layers.3.own", "module:model.layers.3"),
        setting("model.layers.3.self_attn.own", "module:model.layers.3.self_attn"),
    ]
    assert weigh_settings({"model.layers.3.self_attn": 9.0}, settings) == {
        "model.layers.3.self_attn.own": 9.0
    }
    assert weigh_settings({"model.layers.3.self_attn.q_proj": 9.0}, settings) == {}
    assert weigh_settings({"model.layers.3": 0.0}, settings) == {}
