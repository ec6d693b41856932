"""Models of many kinds take another assignment as they would be loaded, or are loaded anew."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

import pytest
from architectures import save_architecture

from evalguard.core.scorer import ReassignableScorer, Request, ScoringPolicy
from evalguard.core.settings import Setting, Target, Value, Variant
from evalguard.engine.loading.load_scorer import load_scorer
from evalguard.worker.messages import DESCRIPTION, RESPONSES

POLICY = ScoringPolicy(device="cpu", threads=1)
# name -> (an attribute of every layer, modules), and whether nothing but loading will do
KINDS: Mapping[str, tuple[str, str, bool]] = {
    "gpt_neox: partial rotary": ("**.input_layernorm.eps", "**.mlp", False),
    "mistral: sliding window": ("**.self_attn.scaling", "**.self_attn", False),
    "mixtral: experts": ("**.self_attn.scaling", "**.self_attn", False),
    "qwen3_5: gated delta rule": ("**.input_layernorm.eps", "**.mlp", False),
    "recurrent_gemma: gated recurrences": ("**.temporal_pre_norm.eps", "**.mlp_block", False),
    "gpt_oss: sinks, every other layer with a window": (
        "**.self_attn.scaling", "**.input_layernorm", False,
    ),
    # its weights are scaled in place when it is first read
    "rwkv: a state without a mask": ("**.ln1.eps", "**.feed_forward", True),
}  # fmt: skip


def variant(folder: Path, values: Mapping[str, Value]) -> Variant:
    settings = tuple(
        Setting(name=target, reference=None, candidate=value, target=Target.parse(target))
        for target, value in values.items()
    )
    where = {"pretrained": str(folder), "dtype": "float32"}
    return Variant(
        name="port", model="hf", model_args=where, settings=settings, assignment=dict(values)
    )


def shown(scorer: ReassignableScorer) -> tuple[object, ...]:
    texts = ("Mara carried the lantern", "Nobody at the pier had seen the boat, and the keeper")
    asked = [
        Request(task="t", doc_id=i, index=0, kind="loglikelihood", arguments=(text, " boat"))
        for i, text in enumerate(texts)
    ]
    return DESCRIPTION.encode(scorer.describe()), RESPONSES.encode(tuple(scorer.score(asked)))


@pytest.mark.slow
@pytest.mark.parametrize("name", list(KINDS))
def test_every_kind_of_model_is_what_loading_it_gives(name: str, tmp_path: Path) -> None:
    attribute, modules, only_loading = KINDS[name]
    folder = save_architecture(tmp_path / "model", name)

    def loaded(values: Mapping[str, Value], *, reusable: bool) -> ReassignableScorer:
        one = variant(folder, values)
        return load_scorer(one, POLICY, cache_dir=tmp_path, reusable=reusable)

    first: dict[str, Value] = {f"attr:{attribute}": 0.25, f"dtype:{modules}": "bfloat16"}
    scorer = loaded(first, reusable=True)
    shown(scorer)
    for values in ({f"attr:{attribute}": 0.5, f"dtype:{modules}": "float64"}, {}, first):
        assert scorer.reassign(variant(folder, values)) is not only_loading
        if only_loading:
            return
        with contextlib.closing(loaded(values, reusable=False)) as fresh:
            assert shown(scorer) == shown(fresh)
