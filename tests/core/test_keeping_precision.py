"""Options that leave modules as they are, read by the rules of those who take them."""

from __future__ import annotations

import ast
import fnmatch
import json
import re
import shlex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.quantizers.quantizers_utils import should_convert_module

from evalguard.bisect.settings.quantised_modules import keyword_of, llama_cpp_option, skip_option

KINDS = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "mlp.shared_expert.down_proj": "ffn_down_shexp",
}  # fmt: skip
LAYERS = 12  # so that layer 1 begins as layers 10 and 11 do
MODULES = [f"model.layers.{n}.{kind}" for n in range(LAYERS) for kind in KINDS]
TENSORS = {
    f"model.layers.{n}.{kind}": f"blk.{n}.{name}.weight"
    for n in range(LAYERS)
    for kind, name in KINDS.items()
}
SOME = st.one_of(
    st.lists(st.sampled_from(MODULES), min_size=1, unique=True),
    st.integers(0, LAYERS - 1).map(lambda n: [m for m in MODULES if f".{n}." in m]),
    st.sampled_from([*KINDS]).map(lambda kind: [m for m in MODULES if m.endswith(f".{kind}")]),
)


def listed(option: str) -> list[str]:
    """The list behind a keyword, in YAML or in Python."""
    found = json.loads(re.split(r"=|: ", option, maxsplit=1)[1])
    assert isinstance(found, list)
    return found


@given(SOME)
def test_transformers_leaves_these_modules_out_and_no_others(wanted: list[str]) -> None:
    skipped = listed(skip_option("torchao", wanted, MODULES))
    # torchao asks by the name of the weight, bitsandbytes by that of the module.
    for end in ("", ".weight"):
        left = [m for m in MODULES if not should_convert_module(m + end, skipped)]
        assert sorted(left) == sorted(wanted)


@given(SOME)
def test_compressed_tensors_ignores_these_modules_and_no_others(wanted: list[str]) -> None:
    ignore = listed(skip_option("compressed-tensors", wanted, MODULES))

    def matches(name: str, target: str) -> bool:
        """As its match_name has it."""
        if target.startswith("re:"):
            return re.match(target.removeprefix("re:"), name) is not None
        return target == name

    left = [m for m in MODULES if any(matches(m, one) for one in ignore)]
    assert sorted(left) == sorted(wanted)


@given(SOME)
def test_gptqmodel_leaves_these_modules_out_and_no_others(wanted: list[str]) -> None:
    dynamic = json.loads(skip_option("gptq", wanted, MODULES).removeprefix("dynamic: "))
    assert all(rule.startswith("-:") and not changes for rule, changes in dynamic.items())
    left = [m for m in MODULES if any(re.match(rule[2:], m) for rule in dynamic)]
    assert sorted(left) == sorted(wanted)


@given(SOME)
def test_modelopt_turns_the_quantisers_of_these_modules_off_and_no_others(
    wanted: list[str],
) -> None:
    entries = ast.literal_eval(
        skip_option("modelopt", wanted, MODULES).removeprefix("quant_cfg += ")
    )
    assert all(one["enable"] is False for one in entries)
    for quantiser in ("weight_quantizer", "input_quantizer"):
        left = [
            m
            for m in MODULES
            if any(fnmatch.fnmatch(f"{m}.{quantiser}", one["quantizer_name"]) for one in entries)
        ]
        assert sorted(left) == sorted(wanted)


@given(SOME)
@settings(max_examples=50)
def test_llama_quantize_gives_these_tensors_their_type_and_no_others(wanted: list[str]) -> None:
    option = llama_cpp_option({TENSORS[m]: "bf16" for m in wanted}, [*TENSORS.values()])
    words = shlex.split(option)
    assert words[::2] == ["--tensor-type"] * (len(words) // 2)
    rules = [word.rsplit("=", 1) for word in words[1::2]]
    assert {kind for _, kind in rules} == {"bf16"}
    # Names are lower case, and the expression is searched for.
    hit = {one for one in TENSORS.values() if any(re.search(p.lower(), one) for p, _ in rules)}
    assert hit == {TENSORS[m] for m in wanted}


def test_one_layer_and_one_kind_are_one_pattern_each() -> None:
    layer = [m for m in MODULES if ".layers.1." in m]
    kind = [m for m in MODULES if m.endswith("up_proj")]
    assert skip_option("bitsandbytes", layer, MODULES, ["lm_head"]) == (
        'llm_int8_skip_modules=["lm_head", "model.layers.1[.]"]'
    )
    assert skip_option("torchao", kind, MODULES) == 'modules_to_not_convert=[".*up_proj"]'
    assert skip_option("compressed-tensors", layer, MODULES, ["lm_head"]) == (
        'ignore: ["lm_head", "re:model.layers.1[.]"]'
    )
    assert skip_option("gptq", kind, MODULES) == 'dynamic: {"-:.*up_proj$": {}}'
    assert skip_option("modelopt", layer, MODULES) == (
        "quant_cfg += [{'quantizer_name': 'model.layers.1.*', 'enable': False}]"
    )
    # the shortest end would take shared experts along
    down = [m for m in MODULES if m.endswith("mlp.down_proj")]
    assert skip_option("compressed-tensors", down, MODULES) == 'ignore: ["re:.*mlp.down_proj$"]'
    tensors = [*TENSORS.values()]
    assert llama_cpp_option({TENSORS[m]: "f16" for m in layer}, tensors) == (
        "--tensor-type 'blk.1[.]=f16'"
    )
    assert llama_cpp_option({TENSORS[m]: "f16" for m in down}, tensors) == (
        "--tensor-type 'ffn_down[.]=f16'"
    )
    assert llama_cpp_option({TENSORS[layer[0]]: "f16"}, tensors) == "--tensor-type blk.1.attn_q=f16"


def test_embeddings_and_head_have_options_of_their_own_in_llama_cpp() -> None:
    ends = {"token_embd.weight": "f16", "output.weight": "q8_0"}
    assert llama_cpp_option(ends, [*ends, *TENSORS.values()]) == (
        "--token-embedding-type f16 --output-tensor-type q8_0"
    )


@pytest.mark.parametrize("method", ["", "hqq", "nobody's"])
def test_of_a_quantiser_that_is_not_known_there_is_no_option(method: str) -> None:
    assert keyword_of(method) == ""
    assert skip_option(method, MODULES[:1], MODULES) == ""
