"""Settings on a real, trained tiny model do what these conversions are known to do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from test_loading import opened

from evalguard.core.scorer import Request, Scorer
from evalguard.core.settings import Value

pytestmark = pytest.mark.data

QUANTISE = '''
import torch

def quantise(model, bits):
    """Round every linear weight per output channel to a signed grid of so many bits."""
    if bits is None:
        return
    top = 2 ** (bits - 1) - 1
    for module in model.modules():
        if isinstance(module, torch.nn.Linear) and module is not model.lm_head:
            scale = module.weight.abs().amax(dim=1, keepdim=True) / top
            module.weight.copy_((module.weight / scale).round().clamp(-top, top) * scale)
'''


def requests(shared_data: Path) -> list[Request]:
    import json

    file = shared_data / "stories260K" / "tinystories_lastword.jsonl"
    passages = [json.loads(line)["text"] for line in file.read_text().splitlines()[:600]]
    return [
        Request(
            task="lastword", doc_id=i, index=0, kind="loglikelihood",
            arguments=(text.rpartition(" ")[0], " " + text.rpartition(" ")[2]),
        )
        for i, text in enumerate(passages)
    ]  # fmt: skip


def mean_loglikelihood(scorer: Scorer, asked: list[Request]) -> float:
    return float(np.mean([answer.loglikelihood for answer in scorer.score(asked)]))


@pytest.mark.slow
def test_int5_weights_cost_far_more_than_int8_and_none_costs_nothing(
    shared_data: Path, tmp_path: Path
) -> None:
    (tmp_path / "quantise.py").write_text(QUANTISE)
    folder, asked = shared_data / "stories260K" / "hf", requests(shared_data)
    means: dict[int | None, float] = {}
    for bits in (None, 8, 5):
        targets: dict[str, Value] = {"call:quantise.py:quantise": bits}
        scorer, told = opened(folder, targets, allow_code=True, code_folder=str(tmp_path))
        assert told.effective == {"call:quantise.py:quantise": {"called": bits}}
        means[bits] = mean_loglikelihood(scorer, asked)
    plain = mean_loglikelihood(opened(folder)[0], asked)
    assert means[None] == plain
    assert means[8] != plain
    assert abs(means[8] - plain) < 0.02
    assert plain - means[5] > 5 * abs(means[8] - plain)


@pytest.mark.parametrize(
    ("target", "value", "least", "most"),
    [
        # drift in base standard errors: attention scale / 1.0695 costs 0.50, rope base 50,000
        # costs 2.06, norms in bfloat16 nothing (data/README.md); 0.09 nats are about one
        pytest.param(
            "attr:model.layers.*.self_attn.scaling",
            8**-0.5 / 1.0695,
            0.02,
            0.08,
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "config.rope_parameters.rope_theta", 50000.0, 0.1, 0.35, marks=pytest.mark.slow
        ),
        pytest.param("dtype:**norm", "bfloat16", -0.01, 0.01, marks=pytest.mark.slow),
    ],
)
def test_known_conversion_mistakes_cost_what_they_are_known_to_cost(
    shared_data: Path, target: str, value: Value, least: float, most: float
) -> None:
    folder, asked = shared_data / "stories260K" / "hf", requests(shared_data)
    plain = mean_loglikelihood(opened(folder)[0], asked)
    scorer, _ = opened(folder, {target: value})
    assert least < plain - mean_loglikelihood(scorer, asked) < most
