"""Runtimes: models without lm-eval read and score what lm-eval would have had them read."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opened_models import open_hf

from evalguard.core.divergence import divergence_from, reference
from evalguard.core.scorer import ModelDescription, Request, ScoringPolicy
from evalguard.errors import EvaluationError, UsageError
from evalguard.models.runtimes import fla, graphs, llama_cpp, torch_runtime
from evalguard.models.runtimes.runtime import Runtime, RuntimeArguments
from evalguard.models.runtimes.runtime_scorer import RuntimeScorer, log_softmax
from evalguard.models.runtimes.tokenizer import TextEncoder, split_into_windows
from evalguard.models.runtimes.types import RUNTIME_TYPES, load_runtime

POLICY = ScoringPolicy()


@given(
    ids=st.lists(st.integers(3, 99), max_size=60),
    longest=st.integers(1, 12),
)
def test_whole_texts_are_cut_into_lm_evals_windows(ids: list[int], longest: int) -> None:
    from lm_eval import utils

    theirs = utils.get_rolling_token_windows(
        token_list=ids, prefix_token=1, max_seq_len=longest, context_len=1
    )
    ours = list(split_into_windows(ids, 1, longest))
    assert ours == [utils.make_disjoint_window(window) for window in theirs]


@pytest.fixture(scope="module")
def runtime(tiny_llama: Path) -> Any:
    given = {"pretrained": str(tiny_llama), "dtype": "float32"}
    return load_runtime("transformers", RuntimeArguments(model_type="hf", given=given))


@pytest.fixture(scope="module")
def scorer(runtime: Runtime) -> RuntimeScorer:
    return RuntimeScorer(runtime, POLICY, ModelDescription(model_type="transformers"))


def request(kind: Any, *arguments: Any, doc_id: int = 0) -> Request:
    return Request(task="t", doc_id=doc_id, index=0, kind=kind, arguments=arguments)


PAIRS = [
    request("loglikelihood", "the cat sat on", " the mat", doc_id=0),
    request("loglikelihood", "the cat sat on ", "the mat", doc_id=1),
    request("loglikelihood", "", "once upon a time", doc_id=2),
    request("loglikelihood", "a " * 60, " b c", doc_id=3),
]
TEXTS = [request("loglikelihood_rolling", text, doc_id=n) for n, text in enumerate(
    ["once upon a time there was a cat", "a b " * 40, "x"])]  # fmt: skip
PROMPTS = [request("generate_until", "the cat", {"until": ["z"], "max_gen_toks": 5})]


@pytest.mark.parametrize("requests", [PAIRS, TEXTS], ids=["pairs", "whole texts"])
def test_scores_and_token_ids_are_those_of_lm_evals_hugging_face_model(
    scorer: RuntimeScorer, tiny_llama: Path, requests: list[Request]
) -> None:
    theirs = open_hf(tiny_llama)
    assert scorer.encode(requests) == theirs.encode(requests)
    for one, other in zip(scorer.score(requests), theirs.score(requests), strict=True):
        assert one.token_hash == other.token_hash
        assert (one.n_tokens, one.truncated) == (other.n_tokens, other.truncated)
        assert one.is_greedy == other.is_greedy
        assert one.loglikelihood == pytest.approx(other.loglikelihood, abs=1e-4)
        assert one.token_logprobs == pytest.approx(other.token_logprobs, abs=1e-5)


def test_a_generated_text_is_that_of_lm_evals_hugging_face_model(
    scorer: RuntimeScorer, tiny_llama: Path
) -> None:
    theirs = open_hf(tiny_llama).score(PROMPTS)
    for one, other in zip(scorer.score(PROMPTS), theirs, strict=True):
        assert one.text == other.text
        assert one.generated is not None
        assert other.generated is not None
        assert np.array_equal(one.generated.ids, other.generated.ids)
        assert np.array_equal(one.generated.others, other.generated.others)
        assert one.generated.margins == pytest.approx(other.generated.margins, abs=1e-4)


def test_a_reference_of_a_model_says_that_it_is_the_same_model(scorer: RuntimeScorer) -> None:
    responses, references = scorer.score_reference(PAIRS, top_k=1000, samples=8)
    again, compared = scorer.score_against(PAIRS, references)
    assert [one.loglikelihood for one in responses] == [one.loglikelihood for one in again]
    assert compared.reason == ""
    assert all(not one.kl.any() for one in compared.divergences if one is not None)


def test_a_reference_of_other_tokens_is_compared_with_nothing(scorer: RuntimeScorer) -> None:
    _, references = scorer.score_reference(PAIRS[:1], top_k=4, samples=2)
    _, compared = scorer.score_against(PAIRS[2:3], references)
    assert "score other tokens" in compared.reason
    assert compared.divergences == ()


class Counted(Runtime):
    """Says the token after the last one; fails where it is told to."""

    max_length, vocabulary_size, prefix_token_id, eot_token_id = 8, 16, 0, 15
    fails: Any = None

    def encode(self, text: str, special: bool | None = None) -> list[int]:
        return [int(word) for word in text.split()]

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(map(str, ids))

    def decode_special(self, token: int) -> str:
        return ""

    def logits(self, ids: Sequence[int], first: int) -> np.ndarray:
        if self.fails is not None:
            raise self.fails
        rows = np.zeros((len(ids) - first, 16), dtype=np.float32)
        rows[np.arange(len(rows)), [(one + 1) % 16 for one in ids[first:]]] = 9.0
        return rows

    def close(self) -> None:
        pass


def counted(fails: Any = None) -> RuntimeScorer:
    runtime = Counted()
    runtime.fails = fails
    return RuntimeScorer(runtime, POLICY, ModelDescription(model_type="counted"))


def test_a_text_ends_at_its_stop_sequence_at_eos_or_at_its_length() -> None:
    def text(context: str, **options: Any) -> Any:
        return counted().score([request("generate_until", context, options)])[0].text

    assert text("3", max_gen_toks=3) == "4 5 6"
    assert text("3", until=["6"], max_gen_toks=5) == "4 5 "
    assert text("12", max_gen_toks=5) == "13 14"
    assert text("3", max_gen_toks=5, end_at={"other_than": [4, 5, 7]}) == "4 5 6"


def test_a_text_that_loops_ends_there_where_that_is_asked() -> None:
    class Circle(Counted):
        """Goes round 14 numbers, and never says 15."""

        max_length = 512

        def logits(self, ids: Sequence[int], first: int) -> np.ndarray:
            rows = np.zeros((len(ids) - first, 16), dtype=np.float32)
            rows[np.arange(len(rows)), [(one + 1) % 14 for one in ids[first:]]] = 9.0
            return rows

    scorer = RuntimeScorer(Circle(), POLICY, ModelDescription(model_type="circle"))
    options: dict[str, Any] = {"max_gen_toks": 400}
    whole, ended = (
        scorer.score([request("generate_until", "1", {**options, **more})])[0]
        for more in ({}, {"end_at": {"loop": True}})
    )
    assert ended.text is not None
    assert whole.text is not None
    assert whole.text.startswith(ended.text)
    assert len(ended.text) < len(whole.text) / 2
    assert (whole.ended, ended.ended) == ("length", "")


def test_the_token_that_ended_a_text_is_kept_with_its_margin() -> None:
    [found] = counted().score([request("generate_until", "12", {"max_gen_toks": 5})])
    assert found.generated is not None
    assert found.generated.ids.tolist() == [13, 14, 15]
    assert found.generated.margins.tolist() == [9.0, 9.0, 9.0]


@pytest.mark.parametrize(
    ("fails", "said"),
    [
        (RuntimeError("no such kernel"), r"RuntimeError\nno such kernel"),
        (EvaluationError("the disk is full"), "the disk is full"),
    ],
)
def test_what_a_library_raises_is_an_error_and_no_number(fails: Exception, said: str) -> None:
    with pytest.raises(EvaluationError, match=said):
        counted(fails).score([request("loglikelihood", "1 2", " 3")])


def test_logits_of_another_shape_are_refused() -> None:
    runtime = Counted()
    runtime.vocabulary_size = 17
    scorer = RuntimeScorer(runtime, POLICY, ModelDescription(model_type="counted"))
    with pytest.raises(EvaluationError, match=r"logits of \(1, 16\) in place of \(1, 17\)"):
        scorer.score([request("loglikelihood", "1 2", " 3")])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"do_sample": True, "temperature": 0.7}, "decodes greedily"),
        ({"num_beams": 4}, "num_beams"),
        (
            {"max_gen_toks": 8},
            "8 tokens are to be generated, which leaves no room for a context in the model's 8",
        ),
    ],
)
def test_a_generation_that_it_cannot_do_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(EvaluationError, match=said):
        counted().score([request("generate_until", "1", options)])


def test_a_text_that_begins_with_bos_in_letters_gets_no_other(runtime: Runtime) -> None:
    encoder = TextEncoder(runtime)
    bos = runtime.decode_special(runtime.prefix_token_id)
    assert encoder.tok_encode(f"{bos}a").count(runtime.prefix_token_id) == 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"pretrained": "/nowhere"}, "there is nothing at /nowhere"),
        ({}, "needs model_args.pretrained"),
        ({"dtype": "float31"}, "is no dtype here; did you mean 'float32'"),
        ({"device": "tpu"}, "device: 'tpu' is not a device"),
        ({"device": "vulkan"}, "device 'vulkan' is not to be had"),
        ({"max_lenght": 5}, "takes no argument 'max_lenght'; did you mean 'max_length'"),
        ({"max_length": "long"}, "max_length: 'long' is no whole number from 1 on"),
        ({"max_length": 1.5}, "max_length: 1.5 is no whole number from 1 on"),
        ({"max_length": True}, "max_length: True is no whole number"),
        ({"prefix_token_id": -1}, "prefix_token_id: -1 is no whole number from 0 on"),
        ({"prefix_token_id": 10**9}, "1000000000, is none of the"),
        ({"add_bos_token": "yes"}, "add_bos_token: 'yes' is neither true nor false"),
    ],
)
def test_arguments_that_do_not_exist_are_refused_with_the_nearest(
    tiny_llama: Path, given: Mapping[str, Any], said: str
) -> None:
    whole = {"pretrained": str(tiny_llama), **given} if given else {}
    with pytest.raises(UsageError, match=said):
        load_runtime("transformers", RuntimeArguments(model_type="hf", given=whole))


def test_a_type_whose_package_is_missing_says_what_installs_it() -> None:
    missing = [name for name, kind in RUNTIME_TYPES.items() if kind.missing]
    assert missing, "every runtime is installed here"
    for name in missing:
        with pytest.raises(EvaluationError) as caught:
            load_runtime(name, RuntimeArguments(model_type=name, given={}))
        assert RUNTIME_TYPES[name].requirements[-1] in caught.value.hint


def test_log_softmax_of_rows_sums_to_one_whatever_their_size() -> None:
    rows = np.array([[1e4, 0.0, -1e4], [0.0, 0.0, 0.0]], dtype=np.float32)
    found = np.exp(log_softmax(rows).astype(np.float64))
    assert found.sum(axis=1) == pytest.approx([1.0, 1.0])
    kept = reference(log_softmax(rows), np.array([0, 1]), top_k=3, samples=1, seed=0)
    assert not divergence_from(kept, log_softmax(rows)).kl.any()


@pytest.mark.slow
def test_the_worker_needs_numpy_alone(tmp_path: Path) -> None:
    """What runs in a model's own environment, imported where only numpy is."""
    code = (
        "import sys, importlib.abc\n"
        "allowed = {'numpy', 'evalguard'}\n"
        "class Only(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        top = name.partition('.')[0]\n"
        "        own = top in sys.stdlib_module_names or top.startswith('_sysconfigdata')\n"
        "        if top not in allowed and not own:\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Only())\n"
        "import evalguard.engine.worker_main, evalguard.engine.loading.own_environment\n"
        "import evalguard.models.runtimes.runtime_scorer, evalguard.models.runtimes.types\n"
        "import evalguard.models.runtimes.llama_cpp, evalguard.models.runtimes.rwkv\n"
        "import evalguard.models.runtimes.fla, evalguard.recipes.rwkv7\n"
        "import evalguard.models.runtimes.graphs, evalguard.recipes.onnx\n"
        "import evalguard.models.runtimes.transformer_lens, evalguard.models.runtimes.hf\n"
        "import evalguard.recipes.gguf, evalguard.recipes.torchao, evalguard.recipes.mergekit\n"
        "import evalguard.models.tokenizers\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr


FOUR_BITS = {"quant_method": "bitsandbytes", "load_in_4bit": True}


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"quant_method": "quant0"}, "'quant0' is not known; did you mean 'quanto'?"),
        ({"load_in_8bit": True}, "quant_method None is not known"),
        ("int8", "'int8' is not a mapping"),
        ({**FOUR_BITS, "bnb_4bit_quant_type": "nf5"}, "'nf5' is not one of fp4, nf4"),
        ({**FOUR_BITS, "bnb_4bit_quant_typ": "nf4"}, "reads no 'bnb_4bit_quant_typ'; did you"),
        ({**FOUR_BITS, "bnb_4bit_compute_dtype": "flaot16"}, "has no attribute 'flaot16'"),
        ({"quant_method": "torchao"}, "TorchAoConfig needs 'quant_type'"),
        ({"quant_method": "bitsandbytes"}, "not told how many bits"),
    ],
)
def test_a_quantisation_that_transformers_does_not_know_is_refused(
    tiny_llama: Path, told: Any, said: str
) -> None:
    given = {"pretrained": str(tiny_llama), "quantization_config": told}
    with pytest.raises(UsageError, match=re.escape(said)):
        load_runtime("transformers", RuntimeArguments(model_type="hf", given=given))


@pytest.mark.parametrize("name", RUNTIME_TYPES)
def test_the_names_of_a_types_arguments_are_those_that_it_takes(name: str) -> None:
    """``evalguard check`` reads the list, a loader's own calls decide."""
    kind = RUNTIME_TYPES[name]
    assert kind.arguments is not None
    module = importlib.import_module(f"evalguard.models.runtimes.{kind.module}")
    source = inspect.getsource(module)
    of_torch = "take_common(" in source
    taken = set(re.findall(r'arguments\.(?:take\w*|choose)\(\s*"(\w+)"', source))
    taken |= {"pretrained", "revision"}
    taken |= {*getattr(module, "_NUMBERS", ()), *getattr(module, "_FLAGS", ())}
    if of_torch:
        taken |= set(re.findall(r'take\w*\("(\w+)"', inspect.getsource(torch_runtime)))
    taken -= {"onnx": {"target", "precision"}, "openvino": {"provider", "optimization"}}.get(
        name, set()
    )
    known = set(kind.arguments)
    assert taken <= known if kind.others else taken == known


def test_a_check_without_the_library_knows_the_words_that_its_module_reads() -> None:
    known = {name: RUNTIME_TYPES[name].arguments or {} for name in RUNTIME_TYPES}
    assert (
        known["llama_cpp"]["type_k"] == known["llama_cpp"]["type_v"] == tuple(llama_cpp._KV_TYPES)
    )
    assert known["llama_cpp"]["flash_attn"] == tuple(llama_cpp._FLASH)
    assert known["onnx"]["optimization"] == tuple(graphs._OPTIMIZATIONS)
    assert known["openvino"]["precision"] == graphs._PRECISIONS
    assert known["fla"]["prefill"] == fla._PREFILLS
    assert known["fla"]["state_layout"] == fla._STATE_LAYOUTS
