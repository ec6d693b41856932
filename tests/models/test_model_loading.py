"""Loading a model: every way to fail says what was found and what to do."""

from __future__ import annotations

import ast
import importlib.util
import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from architectures import save_architecture
from lm_eval.models import MODEL_MAPPING
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from evalguard.core.scorer import ScoringPolicy
from evalguard.errors import EvalguardError, EvaluationError, SettingError, UsageError
from evalguard.models.arguments import GENERATING_TYPES, check_device, check_shows_likelihoods
from evalguard.models.built_findings import list_built_findings
from evalguard.models.checkpoint_files import find_model_type
from evalguard.models.config_overrides import override_config
from evalguard.models.loading import load_lm

POLICY = ScoringPolicy(batch_size=4, device="cpu")


def load(
    pretrained: object = None,
    *,
    model: str = "hf",
    overrides: dict[str, Any] | None = None,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    **model_args: Any,
) -> Any:
    named = {} if pretrained is None else {"pretrained": str(pretrained)}
    return load_lm(
        model,
        {**named, **model_args},
        overrides or {},
        POLICY,
        trust_remote_code=trust_remote_code,
        allow_pickle=allow_pickle,
    )


@pytest.fixture
def copy(tiny_llama: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_llama, tmp_path / "copy"))


def edit_config(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match=r"there is no model folder .*nowhere"):
        load(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("files", "model_type"),
    [
        (("config.json", "model.safetensors", "model.gguf", "model.onnx"), "hf"),
        (("config.json", "pytorch_model-00001-of-00002.bin"), "hf"),
        (("config.json", "model.gguf"), "llama_cpp"),
        (("README.md", "model-00001-of-00002.gguf", "model-00002-of-00002.gguf"), "llama_cpp"),
        (("config.json", "openvino_model.xml", "openvino_model.bin"), "openvino"),
        (("config.json", "tokenizer.json", "model.onnx", "model.onnx_data"), "onnx"),
        (("config.json", "onnx/model_q4.onnx"), "onnx"),
        (("model.xml", "model.bin"), "openvino"),
        (("model.bin", "notes.xml", "config.json"), "hf"),
        (("notes.xml", "consolidated.00.pth", "params.json"), "hf"),
        ((), "hf"),
    ],
)
def test_what_lies_in_a_folder_says_which_type_reads_it(
    tmp_path: Path, files: tuple[str, ...], model_type: str
) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    assert find_model_type(tmp_path) == model_type


@pytest.mark.parametrize(
    ("name", "model_type"),
    [("m.gguf", "llama_cpp"), ("M.GGUF", "llama_cpp"), ("m.onnx", "onnx"), ("m.pth", "rwkv"),
     ("openvino_model.xml", "openvino"), ("model.safetensors", "hf"), ("config.json", "hf")],
)  # fmt: skip
def test_a_file_says_which_type_reads_it(tmp_path: Path, name: str, model_type: str) -> None:
    (tmp_path / name).write_bytes(b"")
    assert find_model_type(tmp_path / name) == model_type
    assert find_model_type(tmp_path / "nowhere.gguf") == "hf"
    if model_type != "hf":
        with pytest.raises(EvaluationError) as raised:
            load(tmp_path / name)
        assert raised.value.hint.startswith(f"model: {model_type} reads it")


def test_a_graph_of_openvino_is_no_pickled_checkpoint(tiny_llama: Path, tmp_path: Path) -> None:
    shutil.copy(tiny_llama / "config.json", tmp_path)
    for suffix in ("xml", "bin"):
        (tmp_path / f"openvino_model.{suffix}").write_bytes(b"")
    with pytest.raises(EvaluationError, match="no weights of transformers") as raised:
        load(tmp_path)
    assert "model: openvino" in raised.value.hint


def test_a_file_is_no_model_folder(tiny_llama: Path) -> None:
    with pytest.raises(EvaluationError, match="is a file, not a model folder"):
        load(tiny_llama / "config.json")


def test_a_folder_that_is_no_model_says_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(EvaluationError, match=r"has no config\.json") as raised:
        load(tmp_path)
    assert "notes.txt" in raised.value.hint


def test_a_hub_id_without_a_network_says_so() -> None:
    with pytest.raises(EvaluationError, match=r"there is no folder some/model.*cannot be reached"):
        load("some/model")


def test_damaged_safetensors_are_named(copy: Path) -> None:
    file = copy / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(EvaluationError, match=r"model\.safetensors is damaged or incomplete"):
        load(copy)


def test_a_folder_without_weights_is_an_error(copy: Path) -> None:
    (copy / "model.safetensors").unlink()
    with pytest.raises(EvaluationError, match="has no safetensors weights"):
        load(copy)


def test_pickled_weights_are_refused_by_name_and_load_when_allowed(copy: Path) -> None:
    weights = load_file(copy / "model.safetensors")
    (copy / "model.safetensors").unlink()
    torch.save(weights, copy / "pytorch_model.bin")
    with pytest.raises(
        EvaluationError, match=r"pytorch_model\.bin holds pickled weights"
    ) as raised:
        load(copy)
    assert "allow_pickle" in raised.value.hint
    assert load(copy, allow_pickle=True).max_length == 48


def test_a_checkpoint_that_lacks_weights_is_not_filled_with_random_numbers(copy: Path) -> None:
    weights = load_file(copy / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(EvaluationError, match=r"lacks 1 of the model's weights .*up_proj"):
        load(copy)


def _untie(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))


@pytest.mark.parametrize(
    ("keep", "rename", "number", "hint"),
    [
        (lambda n: "layers.1." not in n, str, 9, "all of layer 1 is missing from the files: a sha"),
        (lambda n: "layers" not in n, str, 18, "all of layers 0 to 1 is missing"),
        (lambda n: "lm_head" not in n, str, 1, "tie_word_embeddings: true"),
        (lambda n: n != "model.norm.weight", str, 1, "the files hold no such tensors: they were"),
        (lambda n: True, lambda n: f"net.{n}", 21, "with 'net.' where the model has no prefix"),
        (
            lambda n: True,
            lambda n: n.replace("layers", "h"),
            18,
            "with 'model.h.' where the model has 'model.layers.'",
        ),
        (
            lambda n: True,
            lambda n: n.replace("up_proj", "w3"),
            2,
            "hold 2 tensors that the model does not have .*w3.*were renamed",
        ),
    ],
    ids=[
        "a layer", "all layers", "the head", "a norm", "a prefix", "another list", "other names",
    ],
)  # fmt: skip
def test_the_hint_about_lost_tensors_says_how_they_are_usually_lost(
    copy: Path, keep: Any, rename: Any, number: int, hint: str
) -> None:
    weights = load_file(copy / "model.safetensors")
    weights.setdefault("lm_head.weight", weights["model.embed_tokens.weight"].clone())
    _untie(copy)
    kept = {rename(name): one for name, one in weights.items() if keep(name)}
    save_file(kept, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(EvaluationError, match=rf"lacks {number} of the model's weights") as raised:
        load(copy)
    assert re.search(hint, raised.value.hint), raised.value.hint
    assert "architecture in config.json does not fit" not in raised.value.hint


def test_weights_of_other_shapes_are_not_called_lost(copy: Path) -> None:
    weights = load_file(copy / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    weights[name] = torch.zeros(3, weights[name].shape[1])
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(EvaluationError, match=r"other shapes for 1 .*3, .* stored") as raised:
        load(copy)
    assert "sizes in config.json" in raised.value.hint


def test_unused_weights_are_seen_by_every_reader(copy: Path) -> None:
    from evalguard.models.model_caveats import list_model_findings

    weights = load_file(copy / "model.safetensors")
    weights["model.layers.7.extra.weight"] = torch.zeros(2)
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    (found,) = list_model_findings(load(copy, dtype="float32"), {})
    assert found.kind == "weights_unused"
    assert found.values == {"weights": 1, "first": "model.layers.7.extra.weight"}


MERGE = {
    "method": "ties", "dtype": "bfloat16", "unused": [],
    "deltas": {
        "trained": 1000, "lost_before": 20, "lost_in_merge": 50, "added": 900, "lost_in_sum": 0,
        "tensors": [{"name": "w", "lost": 60, "trained": 100}],
    },
}  # fmt: skip


def test_what_rounding_has_eaten_of_a_merge_is_read_beside_its_weights(tmp_path: Path) -> None:
    file, deltas = tmp_path / "evalguard-merge.json", MERGE["deltas"]
    file.write_text(json.dumps(MERGE))
    (found,) = list_built_findings(str(tmp_path))
    assert (found.kind, found.values["lost_in_merge"]) == ("deltas_lost", 50)
    assert "7.0% of the merge's deltas (70 of 1,000 trained elements): 20 in the" in found.text
    harmless = {**MERGE, "deltas": {**deltas, "lost_before": 0, "lost_in_merge": 1}}
    file.write_text(json.dumps(harmless))
    assert not list(list_built_findings(str(tmp_path)))
    for nothing in ("owner/name", "x" * 5000, "a\0b", None):
        assert not list(list_built_findings(nothing))


def test_counts_of_a_merge_that_are_damaged_are_said_to_be(tmp_path: Path) -> None:
    file, deltas = tmp_path / "evalguard-merge.json", MERGE["deltas"]
    damaged = (
        [], 1, {}, {**MERGE, "deltas": None}, {**MERGE, "unused": None},
        {**MERGE, "deltas": {**deltas, "trained": 0}},
        {**MERGE, "deltas": {**deltas, "tensors": []}},
        {**MERGE, "deltas": {**deltas, "trained": "many"}},
    )  # fmt: skip
    for text in ('{"method":', "", *map(json.dumps, damaged)):
        file.write_text(text)
        (found,) = list_built_findings(str(tmp_path))
        assert (found.kind, found.values) == ("deltas_lost", {"file": str(file)}), text
        assert "is damaged, or of another version" in found.text


def test_an_unknown_architecture_says_that_transformers_lacks_it(copy: Path) -> None:
    edit_config(copy, model_type="hyperllama", architectures=["HyperLlamaForCausalLM"])
    with pytest.raises(EvaluationError, match="does not know the architecture"):
        load(copy)


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (transformers.HubertConfig(), "HubertModel"),
        (transformers.HubertConfig(), "HubertForCTC"),
        (transformers.ViTConfig(), "ViTModel"),
        (transformers.WhisperConfig(), "WhisperForConditionalGeneration"),
        (transformers.CLIPConfig(), "CLIPModel"),
    ],
)
def test_a_checkpoint_that_is_no_language_model_is_said_to_be_none(
    config: Any, kind: str, tmp_path: Path
) -> None:
    config.architectures = [kind]
    config.save_pretrained(tmp_path)
    with pytest.raises(UsageError, match=f"{kind}, no language model") as caught:
        load(tmp_path)
    assert "evalguard trace" in caught.value.hint


@pytest.mark.parametrize(
    "kind", ["LlamaModel", "LlamaForSequenceClassification", "OfAnotherLibrary"]
)
def test_a_language_models_files_may_name_a_class_without_its_head(copy: Path, kind: str) -> None:
    edit_config(copy, architectures=[kind])
    assert load(copy).score_pairs


def test_remote_code_is_refused_and_never_run(copy: Path) -> None:
    edit_config(copy, model_type="mine", auto_map={"AutoConfig": "mine.MyConfig"})
    (copy / "mine.py").write_text("raise SystemExit('remote code ran')\n")
    with pytest.raises(EvaluationError, match="own Python code") as raised:
        load(copy)
    assert "trust_remote_code" in raised.value.hint


def test_remote_code_in_model_args_needs_the_models_own_permission(tiny_llama: Path) -> None:
    with pytest.raises(UsageError, match="not allowed to run remote code"):
        load_lm(
            "hf",
            {"pretrained": str(tiny_llama), "trust_remote_code": True},
            {},
            POLICY,
            trust_remote_code=False,
            allow_pickle=False,
        )


def test_an_unknown_model_type_gets_the_nearest_name() -> None:
    with pytest.raises(UsageError, match="no model type 'vlmm'; did you mean 'vllm'"):
        load(model="vlmm")


def test_an_argument_that_a_client_of_servers_would_drop_is_refused() -> None:
    with pytest.raises(UsageError, match="no argument 'max_lenght'; did you mean 'max_length'"):
        load(model="local-completions", base_url="http://127.0.0.1:1/v1", max_lenght=9)


@pytest.mark.parametrize(
    ("model", "module", "hint"),
    [
        ("sglang", "sglang", "pip install sglang"),
        ("trtllm", "tensorrt_llm", "pip install tensorrt_llm"),
        ("ipex", "optimum", "pip install 'optimum[ipex]'"),
        ("onnxruntime-genai", "onnxruntime_genai", "pip install onnxruntime-genai"),
        ("anthropic-completions", "anthropic", "pip install anthropic"),
    ],
)
def test_an_engine_whose_package_is_not_here_says_what_installs_it(
    model: str, module: str, hint: str
) -> None:
    if importlib.util.find_spec(module):
        pytest.skip(f"{module} is installed")
    with pytest.raises(UsageError, match=f"needs {module}, which is not installed here") as error:
        load("./model", model=model)
    assert error.value.hint == hint


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ({"dtypee": "float32"}, "takes no argument 'dtypee'; did you mean 'dtype'"),
        ({"dtype": "float31"}, "'float31' is not a dtype; did you mean 'float32'"),
        ({"atn_implementation": "eager"}, "did you mean 'attn_implementation'"),
        ({"max_length": "48"}, "max_length: '48' is not a number of tokens"),
        ({"max_length": 0}, "max_length: 0 is not a number of tokens"),
        ({"max_length": True}, "max_length: True is not a number of tokens"),
        ({"add_bos_token": "false"}, "add_bos_token: 'false' is not true or false"),
        ({"device": "cpux"}, "'cpux' is not a device"),
        ({"device": "cuda:77"}, "device 'cuda:77' is not to be had: torch .* finds .* here"),
        (
            {"device_map": "cuda:1"},
            "device_map: 'cuda:1' would do nothing: lm-eval takes it beside",
        ),
        ({"device_map": {"": "cpu"}}, "device_map: {'': 'cpu'} would do nothing"),
        ({"batch_size": 8}, "model_args.batch_size belongs to the run"),
        ({"softmax_dtype": "bfloat16"}, "softmax_dtype is always float32"),
        ({"logits_cache": True}, "logits_cache is always False"),
        ({"rolling_bos": "once"}, "takes no argument 'rolling_bos'"),
        ({"load_in_8bit": True}, "load_in_8bit: transformers takes no such argument any more"),
        ({"quantization_config": {"quant_method": "quant0"}}, "quant_method 'quant0' is not known"),
    ],
)
def test_arguments_that_cannot_be_taken_are_usage_errors(
    tiny_llama: Path, argument: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        load(tiny_llama, **argument)


@pytest.mark.parametrize("asked", ["xpu", "hip", "vulkan", "meta", "privateuseone", "ipu:0"])
def test_a_device_that_torch_knows_by_name_alone_is_refused(asked: str) -> None:
    with pytest.raises(UsageError, match=rf"device '{asked}' is not to be had: ") as caught:
        check_device(asked)
    assert "--device cpu" in caught.value.hint


@pytest.mark.parametrize(
    ("asked", "built", "devices", "shown", "hint"),
    [
        ("cuda", None, 0, None, "--device cpu, or a torch that is built for this device"),
        ("mps", "13.0", 1, None, "--device cpu, or a torch that is built for this device"),
        ("cuda", "13.0", 0, "", "CUDA_VISIBLE_DEVICES is '', which hides the others"),
        ("cuda:1", "13.0", 1, "3", "CUDA_VISIBLE_DEVICES is '3', which hides the others"),
        ("cuda", "13.0", 0, None, "built for 13.0: does `nvidia-smi` show a device"),
        ("cuda:7", "13.0", 2, None, "they are cuda:0 to cuda:1"),
        ("cuda:1", "13.0", 1, None, "they are cuda:0"),
        ("MIG-4c1a", "13.0", 1, None, "CUDA_VISIBLE_DEVICES=MIG-4c1a in front of the command"),
        ("1", "13.0", 2, None, "cuda:1"),
        ("cuda:0,1", "13.0", 2, None, "e.g. cpu, cuda, cuda:1"),
    ],
)
def test_a_device_that_is_not_there_says_what_hides_it(
    asked: str,
    built: str | None,
    devices: int,
    shown: str | None,
    hint: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As torch says it of a machine with so many GPUs."""
    monkeypatch.setattr(torch.version, "cuda", built)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if shown is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    with pytest.raises(UsageError) as raised:
        check_device(asked)
    assert hint in raised.value.hint


def test_arguments_that_evalguard_fixes_may_be_written_out(tiny_llama: Path) -> None:
    assert load(tiny_llama, softmax_dtype="float32", logits_cache=False).logits_cache is False


def test_a_folder_without_a_tokenizer_asks_for_one(copy: Path) -> None:
    for file in copy.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(EvaluationError, match="copy has no tokenizer that can be read") as raised:
        load(copy)
    assert "model_args.tokenizer" in raised.value.hint


def test_a_tokenizer_that_cannot_be_had_is_named_not_the_model(tiny_llama: Path) -> None:
    with pytest.raises(EvaluationError, match=r"no folder some/tokenizer, and no such tokenizer"):
        load(tiny_llama, tokenizer="some/tokenizer")


def test_weights_of_other_shapes_are_named_with_both_and_the_field_that_asks_for_them(
    tiny_llama: Path,
) -> None:
    words = r"config.vocab_size cannot be 400: .*\[384, 32\] stored, \[400, 32\] in"
    with pytest.raises(UsageError, match=words) as raised:
        load(tiny_llama, overrides={"rms_norm_eps": 1e-5, "vocab_size": 400})
    assert raised.value.target == "config.vocab_size"
    with pytest.raises(UsageError, match=r"num_hidden_layers cannot be 3: .* lacks 9 of the"):
        load(tiny_llama, overrides={"num_hidden_layers": 3})


def test_weights_that_a_checkpoint_lost_are_no_fault_of_a_setting_beside_them(copy: Path) -> None:
    weights = load_file(copy / "model.safetensors")
    del weights["model.layers.0.mlp.up_proj.weight"]
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(EvaluationError, match=r"lacks 1 of the model's weights .*up_proj"):
        load(copy, overrides={"num_hidden_layers": 1, "rms_norm_eps": 1e-5})


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("hidden_act", "gellu", "did you mean 'gelu'"),
        ("hidden_act", 5, "config.hidden_act cannot be 5"),
        ("hidden_size", "wide", "cannot be 'wide'"),
        ("attention_bias", "banana", "cannot be 'banana'"),
        ("rope_parameters.rope_type", "linar", "did you mean 'linear'"),
        ("rope_parameters.rope_theta", "banana", "no model can be made with it: TypeError"),
        ("head_dim", 7, "no model can be made with it: "),
    ],
)
def test_a_value_that_a_config_cannot_have_is_a_usage_error(
    tiny_llama: Path, path: str, value: Any, said: str
) -> None:
    """Beside a field that is innocent, and comes first."""
    with pytest.raises(UsageError) as raised:
        load(tiny_llama, overrides={"rms_norm_eps": 1e-5, path: value})
    assert f"config.{path} cannot be {value!r}" in str(raised.value)
    assert said in str(raised.value)
    assert raised.value.target == f"config.{path}"


FINITE, FRACTION, ABOVE = "a finite number", "a number from 0 to 1", "a number above 0"
COUNT = "a whole number from 1 on"


@pytest.mark.parametrize(
    ("kind", "path", "value", "wanted"),
    [
        ("llama", "rms_norm_eps", -1e-6, "a number from 0 on"),
        ("llama", "rms_norm_eps", math.nan, FINITE),
        ("llama", "rope_parameters.rope_theta", math.inf, FINITE),
        ("llama", "rope_parameters.rope_theta", -1e4, ABOVE),
        ("llama", "attention_dropout", 2, FRACTION),
        ("llama", "max_position_embeddings", 0, COUNT),
        ("llama", "num_hidden_layers", 0, COUNT),
        ("llama", "num_attention_heads", -4, COUNT),
        ("llama", "num_key_value_heads", 3, "and num_key_value_heads 3 has to divide it"),
        ("llama", "num_attention_heads", 3, "num_attention_heads is 3, and num_key_value_heads"),
        ("llama", "bos_token_id", 384, "a token id below 384"),
        ("llama", "eos_token_id", [1, -2], "a token id below 384"),
        ("gemma2", "sliding_window", 0, COUNT),
        ("gemma2", "query_pre_attn_scalar", -16, ABOVE),
        ("gemma2", "final_logit_softcapping", 0.0, ABOVE),
        ("gpt2", "resid_pdrop", -0.5, FRACTION),
        ("gpt2", "layer_norm_epsilon", -1.0, "a number from 0 on"),
        ("gpt2", "n_head", 0, COUNT),
        ("mixtral", "num_experts_per_tok", 9, "at most num_local_experts, 8"),
        ("mixtral", "router_aux_loss_coef", math.nan, FINITE),
    ],
)
def test_a_number_that_no_model_has_is_refused_with_what_may_stand_there(
    kind: str, path: str, value: Any, wanted: str
) -> None:
    config = AutoConfig.for_model(kind, **({"vocab_size": 384} if kind == "llama" else {}))
    if kind == "llama":
        config.num_attention_heads, config.num_key_value_heads = 4, 2
    with pytest.raises(UsageError) as raised:
        override_config(config, {"use_cache": True, path: value})
    assert f"config.{path} cannot be {value!r}" in str(raised.value)
    assert wanted in raised.value.hint
    assert raised.value.target == f"config.{path}"


@pytest.mark.parametrize(
    ("kind", "overrides"),
    [
        ("llama", {"rms_norm_eps": 0, "attention_dropout": 0, "pad_token_id": None}),
        ("llama", {"num_attention_heads": 6, "num_key_value_heads": 3}),
        ("llama", {"num_key_value_heads": 3, "num_attention_heads": 6}),
        ("gemma2", {"sliding_window": None, "attn_logit_softcapping": None}),
        ("deepseek_v3", {"n_shared_experts": 0, "first_k_dense_replace": 0, "q_lora_rank": None}),
        ("mamba2", {"time_step_limit": (0.0, math.inf), "pad_token_id": -1}),
        ("gpt2", {"n_inner": None, "attn_pdrop": 1}),
    ],
)
def test_numbers_that_are_unusual_and_that_a_model_may_have_are_taken(
    kind: str, overrides: dict[str, Any]
) -> None:
    config = AutoConfig.for_model(kind)
    override_config(config, overrides)
    assert {name: getattr(config, name) for name in overrides} == overrides


def test_an_attention_that_nobody_knows_is_a_usage_error(tiny_llama: Path) -> None:
    with pytest.raises(UsageError, match="did you mean 'sdpa'") as raised:
        load(tiny_llama, attn_implementation="sdpaa")
    assert "eager" in raised.value.hint


def test_a_model_without_a_name_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="name no 'pretrained' model"):
        load()


def test_config_overrides_reach_the_model_before_it_is_built(tiny_gemma2: Path) -> None:
    overrides = {"query_pre_attn_scalar": 9, "rope_parameters.rope_theta": 5000, "rms_norm_eps": 1}
    model = load(tiny_gemma2, overrides=overrides).model
    assert model.model.layers[0].self_attn.scaling == pytest.approx(9.0**-0.5)
    assert model.model.norm.eps == 1.0
    assert model.model.rotary_emb.inv_freq[1].item() == pytest.approx(5000 ** (-1 / 4))


def test_what_a_config_derives_follows_an_override(tmp_path: Path) -> None:
    folder = save_architecture(tmp_path, "qwen3: wide heads")
    edit_config(folder, layer_types=None)  # as in the files on the hub
    window = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}
    config = load(folder, overrides=window).model.config
    assert config.layer_types == ["full_attention", "sliding_attention"]
    assert config.sliding_window == 4
    assert load(folder, overrides={"rms_norm_eps": 0.5}).model.config.layer_types == [
        "full_attention",
        "full_attention",
    ]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"rms_norm_epss": 1e-5}, "did you mean 'rms_norm_eps'"),
        ({"rope_theta": 1e4}, r"did you mean 'rope_parameters\.rope_theta'"),
        ({"rope_parameters.rope_thetta": 1e4}, r"did you mean 'rope_parameters\.rope_theta'"),
        ({"attn_implementation": "eager"}, "has no attribute 'attn_implementation'"),
    ],
)
def test_config_overrides_that_name_nothing_are_errors(
    tiny_llama: Path, overrides: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingError, match=message):
        load(tiny_llama, overrides=overrides)


def test_a_config_key_that_only_the_file_knows_is_no_config_attribute(copy: Path) -> None:
    edit_config(copy, attn_mode="chunk")
    with pytest.raises(SettingError, match="LlamaConfig has no attribute 'attn_mode'"):
        load(copy, overrides={"attn_mode": "fused_recurrent"})


def test_config_values_in_model_args_still_work(tiny_llama: Path) -> None:
    lm = load(tiny_llama, rms_norm_eps=0.5, attn_implementation="eager")
    assert lm.model.model.norm.variance_epsilon == 0.5
    assert lm.model.config._attn_implementation == "eager"


def test_config_overrides_need_a_hugging_face_model() -> None:
    with pytest.raises(SettingError, match="'dummy' has no Hugging Face config"):
        load(model="dummy", overrides={"rms_norm_eps": 1e-5})


def test_every_loading_error_is_one_of_ours(copy: Path) -> None:
    (copy / "tokenizer.json").write_text("{")
    with pytest.raises(EvalguardError) as raised:
        load(copy)
    assert "\n" not in str(raised.value)


def test_every_type_of_lm_eval_that_only_writes_texts_is_known_as_one() -> None:
    found = {name for name, path in MODEL_MAPPING.items() if _refuses_likelihoods(path)}
    assert found
    assert found <= set(GENERATING_TYPES)
    assert set(GENERATING_TYPES) - found <= {"azure-openai-chat-completions"}, "of other versions"
    for name in sorted(GENERATING_TYPES):
        with pytest.raises(UsageError, match="task 'words' needs log-probabilities of prompts"):
            check_shows_likelihoods(name, "model", "words")
    for name in ("hf", "vllm", "local-completions", "sglang-generate", "llama_server", "own-type"):
        check_shows_likelihoods(name, "model", "words")
    check_shows_likelihoods("openai-completions", "davinci-002", "words")
    with pytest.raises(UsageError, match="OpenAI gives none for 'gpt'"):
        check_shows_likelihoods("openai-completions", "gpt", "words")


def _refuses_likelihoods(path: str) -> bool:
    """Whether all that lm-eval's own class does with log-likelihoods is to raise an error."""
    module, _, name = path.partition(":")
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    classes = [one for one in tree.body if isinstance(one, ast.ClassDef)]
    # One name of the table is of no class of its file.
    named = [one for one in classes if one.name == name] or classes
    asked = [
        one
        for of_class in named
        for one in of_class.body
        if isinstance(one, ast.FunctionDef) and one.name == "loglikelihood"
    ]
    return any(isinstance(one.body[0], ast.Raise) for one in asked)
