"""``init``, ``models``, ``schema`` and ``tasks``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from evalguard.config.guard_writing import TEMPLATE


def test_init_then_models_works_in_an_empty_folder(run: Any) -> None:
    made = run("init")
    assert (made.code, made.out) == (0, "")
    assert "wrote evalguard.yaml" in made.err
    assert "evalguard models" in made.err
    models = run("models")
    assert models.code == 0
    assert "(hf, evalguard.yaml)" in models.out
    assert "setting " in models.out
    assert "pair: --base " in models.out


def test_init_leaves_a_file_alone_unless_forced(run: Any) -> None:
    Path("evalguard.yaml").write_text("mine")
    ran = run("init")
    assert ran.code == 2
    assert "evalguard.yaml exists and is left alone" in ran.err
    assert "--force" in ran.err
    assert Path("evalguard.yaml").read_text() == "mine"
    assert run("init", "--force").code == 0
    assert Path("evalguard.yaml").read_text() == TEMPLATE


def test_init_takes_another_name_and_says_how_to_use_it(run: Any) -> None:
    ran = run("init", "guard/mine.yaml")
    assert ran.code == 3
    assert "cannot be written" in ran.err
    Path("guard").mkdir()
    ran = run("init", "guard/mine.yaml")
    assert ran.code == 0
    assert "evalguard models --config guard/mine.yaml" in ran.err


@pytest.mark.parametrize("name", ["compare", "floor", "nightly", "trace"])
def test_the_schemas_of_documents_are_printed_by_name(run: Any, name: str) -> None:
    schema = run("schema", name).document
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["properties"]["schema"]["const"] == f"evalguard.{name}/1"


def test_a_schema_that_is_none_is_named(refused: Any) -> None:
    found = refused(2, "schema", "trance")
    assert "there is no schema 'trance'; did you mean 'trace'" in found.err


def test_the_schema_describes_the_file_that_init_writes(run: Any) -> None:
    run("init")
    schema = run("schema").document
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(yaml.safe_load(Path("evalguard.yaml").read_text()), schema)


def test_models_as_json_have_settings_and_pairs(run: Any, world: Any) -> None:
    models = {model["name"]: model for model in json.loads(
        run("models", "--config", world.guard, "--json").out
    )}  # fmt: skip
    assert list(models)[:4] == ["orig", "same", "sharp", "soft"]
    assert models["orig"]["candidates"] == ["sharp"]
    assert models["sharp"]["settings"][0] == {
        "name": "gain",
        "target": "attr:model.norm.weight",
        "reference": 1.0,
        "candidate": 2.0,
    }
    assert models["orig"]["description"] == "a tiny Llama with random weights"


def test_models_as_text_are_paragraphs(run: Any, world: Any) -> None:
    text = run("models", "--config", world.guard).out
    first = text.split("\n\n")[0].splitlines()
    assert first[0].startswith("orig  (hf, ")
    assert first[1] == "  a tiny Llama with random weights"
    assert "  pair: --base orig --cand sharp" in first
    assert "  setting gain: 1.0 -> 2.0  [attr:model.norm.weight]" in text


def test_a_broken_guard_file_is_named_with_its_line(refused: Any) -> None:
    Path("evalguard.yaml").write_text("models:\n  a: {modle: hf}\n")
    ran = refused(2, "models")
    assert "evalguard.yaml:2: unknown key 'modle'" in ran.err
    assert "did you mean 'model'?" in ran.err


def test_tasks_are_listed_by_pattern(run: Any, world: Any, few_tasks: None) -> None:
    words = ("--config", world.guard)
    assert run("tasks", "sw_*", *words).out.split() == [
        "sw_choice", "sw_f1", "sw_long", "sw_mcc", "sw_text", "sw_word"
    ]  # fmt: skip
    assert json.loads(run("tasks", "sw_[wt]*", *words, "--json").out) == ["sw_text", "sw_word"]


def test_tasks_of_a_folder_on_the_command_line(run: Any, world: Any, few_tasks: None) -> None:
    assert run("tasks", "sw_word", "--include_path", world.tasks).out == "sw_word\n"


def test_a_pattern_that_matches_nothing_says_so(run: Any, world: Any, few_tasks: None) -> None:
    ran = run("tasks", "sw_wrod", "--config", world.guard)
    assert (ran.code, ran.out) == (2, "")
    assert "no task matches 'sw_wrod'; did you mean 'sw_word'?" in ran.err


def test_our_own_tasks_are_found_without_reading_all_of_lm_eval(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evalguard.harness.tasks import TaskIndex

    def names(self: object) -> None:
        raise AssertionError("reads 14,000 names")

    monkeypatch.setattr(TaskIndex, "names", names)
    found = run("tasks", "evalguard_*").out.split()
    assert found == ["evalguard_choice", "evalguard_lastword", "evalguard_rolling"]


def test_guard_files_of_another_program_do_not_hide_the_tasks(run: Any) -> None:
    Path("configs").mkdir()
    Path("configs/train.yaml").write_text("defaults: [model, data]\n")
    ran = run("tasks", "evalguard_l*")
    assert (ran.code, ran.out) == (0, "evalguard_lastword\n")
    assert "note: no guard file is used: configs/train.yaml:1" in ran.err


def test_check_says_what_a_guard_file_defines(run: Any, world: Any) -> None:
    ran = run("check", world.guard)
    assert (ran.code, ran.out) == (0, f"{world.guard}: 9 models, 1 pair, 4 settings\n")


def test_check_names_every_problem_of_every_file(refused: Any, world: Any) -> None:
    Path("a.yaml").write_text("models:\n  a: {modle: hf}\n  b: {extends: c}\n")
    Path("b.yaml").write_text("models: [")
    ran = refused(2, "check", world.guard, "a.yaml", "b.yaml", "gone.yaml")
    for problem in ("a.yaml:2: unknown key 'modle'", "b.yaml:1", "gone.yaml: no such guard file"):
        assert problem in ran.err


def test_check_names_mistakes_of_all_kinds_at_once(
    refused: Any, few_tasks: None, world: Any
) -> None:
    Path("tasks").mkdir()
    Path("tasks/mine.yaml").write_text(
        "task: mine\ndataset_path: json\ndataset_kwargs: {data_files: {test: mine.jsonl}}\n"
    )
    Path("mine.jsonl").write_text('{"q": 1}\n{"q" 2}\n\n[3]\n')
    Path("calls.jsonl").write_text('{"mesages": []}\n')
    Path("evalguard.yaml").write_text(
        "models:\n"
        "  a: {modle: hf}\n"
        "  b: {model: hff}\n"
        "  c:\n"
        "    model_args:\n"
        f"      pretrained: {world.models['llama']}\n"
        "      dtype: flaot32\n"
        "      max_lenght: 10\n"
        "      batch_size: 4\n"
        "      max_length: -1\n"
        "      n_embd: 3\n"
        "    settings:\n"
        "      x: {reference: eager, candidate: egaer, target: model_args.attn_implementation}\n"
        "      y: {reference: 1, candidate: 2, target: 'atr:model.norm'}\n"
        "  d: {model: llama_cpp, model_args: {pretrained: ./gone.gguf, type_kv: q8_0}}\n"
        "  e: {model: local-completions, model_args: {base_ulr: 'http://127.0.0.1:1/v1'}}\n"
        "  f: {extends: g}\n"
        "pairs: [{base: a, cand: z, tasks: [mine, sw_wrod]}]\n"
        "include_path: [./tasks]\n"
        "requests: calls.jsonl\n"
        "run: {limit: -3, device: cdua}\n"
        "gate: {margin: 0}\n"
    )
    said = refused(2, "check").err
    for problem in (
        "evalguard.yaml:2: unknown key 'modle' in models.a; did you mean 'model'?",
        "evalguard.yaml:3: there is no model type 'hff'; did you mean 'hf'?",
        "evalguard.yaml:7: model_args.dtype: 'flaot32' is not a dtype; did you mean 'float32'?",
        "evalguard.yaml:8: model type 'hf' takes no argument 'max_lenght'; did you mean 'max_le",
        "evalguard.yaml:9: model_args.batch_size belongs to the run",
        "evalguard.yaml:10: model_args.max_length: -1 is not a number of tokens",
        "evalguard.yaml:11: model type 'hf' takes no argument 'n_embd'",
        "evalguard.yaml:13: model_args.attn_implementation: 'egaer' is not known; did you mean",
        "evalguard.yaml:14: setting 'y': unknown target 'atr:model.norm'; did you mean 'attr'?",
        "evalguard.yaml:15: pretrained of 'd': there is nothing at ./gone.gguf",
        "evalguard.yaml:15: model type 'llama_cpp' takes no argument 'type_kv'; did you mean",
        "evalguard.yaml:16: model type 'local-completions' takes no argument 'base_ulr'; did you",
        "evalguard.yaml:17: 'f' extends 'g', which is not a model of this file",
        "evalguard.yaml:18: pair names 'z', which is not a model of this file",
        "evalguard.yaml:18: there is no lm-eval task, group or tag 'sw_wrod'",
        "mine.jsonl:2: not JSON: Expecting ':' delimiter, column 6",
        "mine.jsonl:4: JSON, but no object",
        "evalguard.yaml:20: ",
        "calls.jsonl, line 1: it has no messages; did you mean 'mesages'?",
        "evalguard.yaml:21: run.limit: found -3",
        "evalguard.yaml:21: run.device: 'cdua' is not a device",
        "evalguard.yaml:22: gate.margin: found 0",
    ):
        assert problem in said, problem
    assert sum(".yaml:" in line or ".jsonl:" in line for line in said.splitlines()) == 21


def test_check_holds_values_to_what_their_type_takes(refused: Any, world: Any) -> None:
    llama = world.models["llama"]
    four_bits = "quant_method: bitsandbytes, load_in_4bit: true"
    wrong = {
        "hf": (
            "dtype: int8", "parallelize: 2", "revision: 12", "subfolder: gone", "gguf_file: gone",
            "device_map: balancd", "quantization_config: {quant_method: bitsnbytes}",
            "quantization_config: bitsandbytes", "quantization_config: {quant_method: torchao}",
            f"quantization_config: {{{four_bits}, bnb_4bit_quant_type: nf5}}",
            f"quantization_config: {{{four_bits}, bnb_4bit_quant_typ: nf4}}",
            f"quantization_config: {{{four_bits}, bnb_4bit_compute_dtype: flaot16}}",
            "quantization_config: {quant_method: quanto, weight: int8}",
            "quantization_config: {quant_method: hqq, nbits: four}",
            "backend: causl", "use_fast_tokenizer: maybe", "enable_thinking: 1", "peft: 3",
            "chat_template_args: thinking", "experts_implementation: grouped", "tokenizer: 3",
            "rms_norm_eps: tiny", "rms_norm_eps: -1", "max_memory_per_gpu: [1]",
            "max_cpu_memory: lots", "low_cpu_mem_usage: banana", "use_safetensors: 'no'",
            "tp_plan: automatic", "tp_size: two", "offload_buffers: 1",
        ),
        "llama_cpp": (
            "type_v: q8", "flash_attn: maybe", "n_ctx: big", "n_ubatch: 0", "threads: 1.5",
        ),
        "onnx": (
            "optimization: full", "threads: -1", "file: gone.onnx", "file: 3",
            "provider: CPUExecutionProvder", "provider: CUDA",
        ),
        "openvino": (
            "precision: fp16", "max_length: 0", "target: GPPU", "target: cpu", "target: 1",
        ),
        "vllm": (
            "dtype: flaot16", "max_num_seqs: many", "max_num_seqs: 0", "enforce_eager: 'no'",
            "gpu_memory_utilization: most", "kv_cache_dtype: 8", "tensor_parallel_size: 1.5",
            "worker_cls: x.Y", "lora_local_path: adapter", "data_parallel_size: 2",
        ),
        "rwkv": ("strategy: cpu fp33", "add_bos_token: 1"),
        "transformer_lens": (
            "act_fn: 1", "api: bridged", "eps: tiny", "use_attn_scale: 0", "window_size: 0",
            "act_fn: banana", "attn_types: local", "attn_types: [local, globe]",
        ),
        "fla": ("prefill: chunks", "state_layout: kvk", "fuse_norm: 'no'"),
        "local-completions": (
            "base_url: '127.0.0.1:1'", "num_concurrent: four", "tokenizer_backend: tokenizers",
            "tokenized_requests: maybe", "verify_certificate: 'no'", "header: text",
            "timeout: .inf",
        ),
    }  # fmt: skip
    lines = [
        f"  m{number}: {{model: {kind}, model_args: {{pretrained: {llama}, {argument}}}}}\n"
        for number, (kind, argument) in enumerate(
            (kind, argument) for kind, arguments in wrong.items() for argument in arguments
        )
    ]
    served = [line.replace("pretrained:", "model:") for line in lines if "local-comp" in line]
    lines = [*(line for line in lines if "local-comp" not in line), *served]
    Path("evalguard.yaml").write_text("models:\n" + "".join(lines))
    said = refused(2, "check").err.removeprefix("error: ").splitlines()
    named = [int(one.split(":")[1]) for one in said if one.startswith("evalguard.yaml:")]
    assert named == list(range(2, 2 + len(lines)))


def test_check_accepts_what_a_library_takes_beyond_its_named_arguments(
    run: Any, world: Any, few_tasks: None
) -> None:
    llama = world.models["llama"]
    Path("evalguard.yaml").write_text(
        "models:\n"
        f"  of_config: {{model_args: {{pretrained: {llama}, rms_norm_eps: 1.0e-5}}}}\n"
        f"  of_loader: {{model_args: {{pretrained: {llama}, low_cpu_mem_usage: true, "
        "tp_plan: auto, max_memory_per_gpu: 20 gb, use_safetensors: true}}\n"
        "  of_lens: {model: transformer_lens, model_args: {pretrained: own/er, act_fn: silu, "
        "attn_types: [local, global]}}\n"
        "  of_some_config: {model_args: {pretrained: own/er, n_embd: 8, parallelize: true}}\n"
        "  of_its_code: {model_args: {pretrained: own/er, whatever: 8}, trust_remote_code: true}\n"
        "  in_bits:\n"
        "    model_args:\n"
        f"      pretrained: {llama}\n"
        "      quantization_config: {quant_method: bitsandbytes, load_in_4bit: true, "
        "bnb_4bit_quant_type: nf4, bnb_4bit_compute_dtype: bfloat16, llm_int8_threshold: 6.0}\n"
        "      device_map: auto\n"
        "  a_gguf:\n"
        "    model: llama_cpp\n"
        f"    model_args: {{pretrained: {llama}, type_k: q8_0, flash_attn: 'on', n_ctx: 64}}\n"
        f"  a_graph: {{model: onnx, model_args: {{pretrained: {llama}, threads: 0, "
        "provider: CUDAExecutionProvider}}\n"
        "  devices: {model: openvino, model_args: {pretrained: own/er, target: 'HETERO:GPU.1,CPU'}}"
        "\n"
        "  written_by_a_tool:\n"
        "    model_args:\n"
        "      pretrained: own/er\n"
        "      quantization_config: {quant_method: gptq, bits: 4, static_groups: false}\n"
        "      max_memory_per_gpu: 20GiB\n"
        "      think_end_token: 7\n"
        f"  rwkv: {{model: rwkv, model_args: {{pretrained: {llama}, strategy: 'cuda:1 bf16'}}}}\n"
        "  an_engine: {model: vllm, model_args: {pretrained: own/er, kv_cache_dtype: fp8}}\n"
        "  a_server:\n"
        "    model: local-completions\n"
        "    model_args: {model: m, base_url: 'http://127.0.0.1:1/v1', top_logprobs: 5, "
        "timeout: 2.5, tokenizer_backend: auto, verify_certificate: false}\n"
        "  elsewhere: {requirements: [torch], model_args: {pretrained: own/er, dtype: auto}}\n"
        "tasks: ['sw_*', sw_word]\n"
        f"include_path: {world.tasks}\n"
        "run: {device: 'cuda:3'}\n"
    )
    assert run("check").code == 0


def test_check_says_what_reads_packed_weights_that_are_not_read_here(
    run: Any, tmp_path: Path
) -> None:
    (tmp_path / "packed").mkdir()
    settings = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
    (tmp_path / "packed" / "config.json").write_text(json.dumps({"quantization_config": settings}))
    (tmp_path / "evalguard.yaml").write_text("models:\n  a: {model_args: {pretrained: ./packed}}\n")
    ran = run("check")
    assert ran.code == 0
    assert ran.err.startswith(
        "note: evalguard.yaml:2: ./packed holds modelopt (NVFP4) quantised weights, which cannot "
        "be read here: transformers "
    )
    assert ran.err.endswith("only vLLM reads it: vllm:./packed (pip install vllm)\n")


def test_check_says_which_arguments_only_an_absent_library_knows(run: Any) -> None:
    Path("evalguard.yaml").write_text(
        "models:\n"
        "  a: {model: vllm, model_args: {pretrained: own/er, max_num_seq: 3}}\n"
        "  b:\n"
        "    model: vllm\n"
        "    requirements: [vllm]\n"
        "    model_args: {pretrained: own/er, max_num_seqs: 3, hf_overrides: {}}\n"
    )
    ran = run("check")
    assert (ran.code, ran.out) == (0, "evalguard.yaml: 2 models, 0 pairs, 0 settings\n")
    assert ran.err == (
        "note: evalguard.yaml:2: model_args.max_num_seq is not checked: 'vllm' is not in this "
        "environment; did you mean 'max_num_seqs'?\n"
        "note: evalguard.yaml:6: model_args.hf_overrides is not checked: 'vllm' is not in this "
        "environment\n"
    )


def test_check_names_what_is_not_there_with_its_line(refused: Any) -> None:
    Path("weights/llama").mkdir(parents=True)
    Path("evalguard.yaml").write_text(
        "models:\n"
        "  a: {model_args: {pretrained: ./gone}}\n"
        "  b: {extends: a, model_args: {tokenizer: /nowhere/at/all}}\n"
        "  c: {model_args: {pretrained: weights/llama/v2}}\n"
        "  d:\n"
        "    model_args: {pretrained: weights/llama}\n"
        "    settings:\n"
        "      norms: {reference: ../original, candidate: null, target: 'weights:model.norm'}\n"
        "include_path: [./weights, ./tasks]\n"
    )
    said = refused(2, "check").err
    for problem in (
        "evalguard.yaml:2: pretrained of 'a': there is nothing at ./gone",
        "evalguard.yaml:3: tokenizer of 'b': there is nothing at /nowhere/at/all",
        "evalguard.yaml:4: pretrained of 'c': there is nothing at weights/llama/v2",
        "evalguard.yaml:8: setting 'norms' of 'd': there is nothing at ../original",
        "evalguard.yaml:9: include_path: there is no folder ./tasks",
    ):
        assert problem in said
    assert (said.count("./gone"), "./weights" in said) == (1, False)
    assert "hint: a relative path starts at the guard file; a hub id is NAME or OWNER/NAME" in said


def test_check_lets_hub_ids_addresses_and_what_is_built_stand(run: Any) -> None:
    Path("owner").mkdir()
    Path("evalguard.yaml").write_text(
        "models:\n"
        "  a: {model_args: {pretrained: owner/name, tokenizer: gpt2}}\n"
        "  b: {model: vllm, model_args: {pretrained: 's3://bucket/models/b'}}\n"
        "  c: {model: vllm, model_args: {pretrained: project/model/version}}\n"
        "  d:\n"
        "    model_args: {pretrained: ./not-yet, tokenizer: '{build}/tokenizer'}\n"
        "    build: {command: [make], output: out}\n"
    )
    ran = run("check")
    assert (ran.code, ran.out) == (0, "evalguard.yaml: 4 models, 0 pairs, 0 settings\n")


def test_what_init_writes_passes_the_check(run: Any) -> None:
    run("init")
    assert run("check").code == 0


@pytest.mark.parametrize(
    "named", ["http://127.0.0.1:9/v1", "vllm:./port", "org/model", "./port", "model.gguf"]
)
def test_check_says_which_command_takes_a_model(refused: Any, named: str) -> None:
    Path("port").mkdir()
    ran = refused(2, "check", named)
    assert named.removeprefix("./") in ran.err
    assert "evalguard compare --base MODEL --cand MODEL" in ran.err


def test_a_misspelt_guard_file_has_its_neighbour_for_a_hint(refused: Any) -> None:
    Path("evalguard.yaml").write_text("models: {}")
    for named in ("evalgard.yaml", "evalguard"):
        assert "did you mean 'evalguard.yaml'" in refused(2, "check", named).err


def test_check_without_files_reads_what_compare_would_find(refused: Any) -> None:
    Path("evalguard.yaml").write_text("models:\n  a: {modle: hf}\n")
    assert "evalguard.yaml:2" in refused(2, "check").err


@pytest.mark.parametrize("command", ["check", "nightly"])
def test_where_there_is_no_guard_file_the_demo_is_not_taken_for_one(
    refused: Any, command: str
) -> None:
    ran = refused(2, command)
    assert "there is no guard file here: no evalguard.yaml" in ran.err
    assert not Path("reports").exists()
