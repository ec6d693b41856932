"""Models of five systems, faults that a conversion makes of them, and values that make no sense.

For each system: healthy, the fault of the case that was reported, three faults that no page of the
documentation names, and nonsense for each documented setting.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
import yaml

ROOT = Path(__file__).parent.parent
sys.path += [str(ROOT / "tests" / one) for one in ("", "models", "systems")]
from hubert_port import Faults, Port, make_hubert, make_wave  # noqa: E402
from system_models import MODEL, run_in, save_rwkv7  # noqa: E402

CACHE = Path.home() / ".cache" / "evalguard-systems"
TRAINED = ROOT / "demo" / "rwkv7" / "rwkv7.pth"
TORCH = ["torch==2.13.0", "transformers==5.23.0"]
PACKAGES = {
    "rwkv": ["torch==2.13.0", "rwkv==0.8.32", "tokenizers", "numpy"],
    "fla": [*TORCH, "triton==3.9.0", "flash-linear-attention==0.6.0"],
    "torchao": [*TORCH, "torchao==0.18.0"],
    "mergekit": [*TORCH, "mergekit==0.1.5"],
    "lens": [*TORCH, "transformer-lens==3.5.1"],
}
Weights = dict[str, torch.Tensor]
Model = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One candidate: what it is compared with and traced against, and who is to be named.

    ``seed``: the figure of the case that was reported, ``ours``: reads the same off a document.
    """

    system: str
    what: str
    base: Model | None = None
    candidate: Model | None = None
    traced: Model | None = None
    words: tuple[str, ...] = ()
    limit: float = 1e-6
    names: frozenset[str] = frozenset()
    code: int = 1
    seed: str = ""
    ours: Callable[[Mapping[str, Any]], str] = field(default=lambda _: "")


def changed(weights: Weights, change: Callable[[Weights], None]) -> Weights:
    made = {name: one.clone() for name, one in weights.items()}
    change(made)
    return made


def fresh(folder: Path, source: Path, change: Callable[[Weights], None], **config: Any) -> Path:
    """A copy of a checkpoint with other weights, or with other entries of its config."""
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    shutil.copytree(source, folder)
    file = folder / "model.safetensors"
    with safe_open(file, "pt") as found:
        metadata = found.metadata()  # torchao has the kinds of its weights there
    save_file(changed(load_file(file), change), file, metadata=metadata)
    told = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**told, **config}))
    return folder


def keep(_: Weights) -> None:
    """No change."""


def kl(document: Mapping[str, Any]) -> str:
    found = document.get("distributions") or []
    return f"KL {found[0]['kl']['value']:.2g}" if found else ""


# Each system: its rows, and its documented settings with a value that makes no sense.


def rwkv_rows(work: Path) -> Iterator[Row]:
    """RWKV-7 of 3 layers and 3 heads of 64, by rwkv-pip and as fla's checkpoint."""
    good = save_rwkv7(work / "good.pth", vocabulary=1344, width=192, layers=3, head=64, rank=24)
    weights = torch.load(good, weights_only=True)

    def pip(file: Path) -> Model:
        given = {"pretrained": str(file), "tokenizer": str(MODEL), "add_bos_token": True}
        return {"model": "rwkv", "model_args": given, "requirements": PACKAGES["rwkv"]}

    def fla(file: Path, **settings: Any) -> Model:
        build = {"call": "rwkv7", "inputs": {"source": str(file), "tokenizer": str(MODEL)}}
        given = {"dtype": "float32", "prefill": "recurrent"}
        return {"model": "fla", "model_args": given, "requirements": PACKAGES["fla"],
                "build": build, "settings": settings}  # fmt: skip

    def shift_decay(x: Weights) -> None:
        for layer in range(3):
            x[f"blocks.{layer}.att.w0"] = weights[f"blocks.{(layer + 1) % 3}.att.w0"].clone()

    def drop_first_values(x: Weights) -> None:
        for layer in (1, 2):
            x[f"blocks.{layer}.att.v0"].fill_(-30.0)
            x[f"blocks.{layer}.att.v2"].zero_()

    def negate_bonus(x: Weights) -> None:
        x["blocks.1.att.r_k"] *= -1

    def attention(part: str, *layers: int) -> frozenset[str]:
        return frozenset(f"model.layers.{one}.attn{part}" for one in layers)

    system = "RWKV-7, fla"
    yield Row(system=system, what="healthy", base=pip(good), candidate=fla(good), code=0,
              traced=fla(good), ours=kl)  # fmt: skip
    seeds = {
        "bos": {"reference": True, "candidate": False, "target": "model_args.add_bos_token"},
        "g_norm": {"reference": "float32", "candidate": "bfloat16",
                   "target": "dtype:model.layers.*.attn.g_norm"},
        "prefill": {"reference": "recurrent", "candidate": "chunk", "target": "model_args.prefill"},
    }  # fmt: skip
    yield Row(system=system, what="seed: BOS missing, group norm bf16, chunks",
              base=pip(TRAINED), candidate=fla(TRAINED, **seeds), limit=5e-4,
              words=("--bisect", "auto", "--limit", "48"),
              names=frozenset({"bos"}), seed="perplexity 4.263 for 4.133, p = 0.07 unpaired",
              ours=kl)  # fmt: skip
    for what, change, names in (
        ("decay table of the next layer", shift_decay, attention(".w_lora.lora.2", 0, 1, 2)),
        ("values of layer 0 not mixed in", drop_first_values, attention(".v_lora.lora.2", 1, 2)),
        ("sign of r_k in a layer", negate_bonus, attention("", 1)),
    ):
        file = work / f"{what.replace(' ', '-')}.pth"
        torch.save(changed(weights, change), file)
        yield Row(system=system, what=what, base=pip(good), candidate=fla(file), traced=fla(good),
                  names=names, ours=kl)  # fmt: skip
    wrong = {
        "prefill": "banana", "fuse_norm": "banana", "pad_to": "banana", "segment": "banana",
        "state_layout": "banana", "dtype": "banana", "device": "banana", "max_length": "banana",
        "add_bos_token": "banana", "prefix_token_id": "banana", "tokenizer": "banana",
        "pretrained": "banana",
    }  # fmt: skip
    for name, value in wrong.items():
        port = fla(good)
        port["model_args"][name] = value
        if name == "pretrained":
            del port["build"]
        yield nonsense(system, f"fla {name}: {value}", port)
    for name in ("source", "tokenizer", "dtype"):
        port = fla(good)
        port["build"]["inputs"][name] = "banana"
        yield nonsense(system, f"recipe {name}: banana", port)
    for name in ("pretrained", "strategy", "tokenizer", "add_bos_token", "prefix_token_id",
                 "max_length"):  # fmt: skip
        port = pip(good)
        port["model_args"][name] = "banana"
        yield nonsense(system, f"rwkv {name}: banana", port)


def nonsense(system: str, what: str, port: Model) -> Row:
    original = {"model_args": {"pretrained": str(MODEL), "dtype": "float32"}}
    return Row(system=system, what=f"nonsense: {what}", base=original, candidate=port, code=2)


def random_model(folder: Path, config: Any, **changes: Any) -> Path:
    """A checkpoint with the demo's tokenizer and random weights."""
    kind = transformers.AutoModelForCausalLM
    config = config(vocab_size=1344, num_hidden_layers=3, max_position_embeddings=512,
                    bos_token_id=2, eos_token_id=1, pad_token_id=0, **changes)  # fmt: skip
    torch.manual_seed(11)
    kind.from_config(config).save_pretrained(folder)
    for file in MODEL.glob("tokenizer*"):
        shutil.copyfile(file, folder / file.name)
    return folder


def hf(folder: Path, **more: Any) -> Model:
    return {"model_args": {"pretrained": str(folder), "dtype": "float32"}, **more}


def lens_rows(work: Path) -> Iterator[Row]:
    """Gemma 2 of 3 layers and 3 heads of 256."""
    gemma = random_model(
        work / "gemma", transformers.Gemma2Config, hidden_size=48, intermediate_size=80,
        num_attention_heads=3, num_key_value_heads=1, head_dim=256, query_pre_attn_scalar=256,
        sliding_window=512, initializer_range=0.3,
    )  # fmt: skip
    original = {"model_args": {"pretrained": str(gemma), "dtype": "float32",
                               "attn_implementation": "eager"}}  # fmt: skip

    def lens(folder: Path, settings: Any = None, **given: Any) -> Model:
        told = {"pretrained": str(folder), "dtype": "float32", "api": "hooked", **given}
        return {"model": "transformer_lens", "model_args": told, "requirements": PACKAGES["lens"],
                "settings": settings or {}}  # fmt: skip

    def layer(number: int, part: str) -> str:
        return f"model.layers.{number}.{part}"

    def add_one_twice(x: Weights) -> None:
        x[layer(1, "input_layernorm.weight")] += 1

    def interleave_keys(x: Weights) -> None:
        name = layer(0, "self_attn.k_proj.weight")
        x[name] = x[name].view(2, 128, -1).transpose(0, 1).reshape(256, -1).contiguous()

    def exchange_heads(x: Weights) -> None:
        name = layer(2, "self_attn.o_proj.weight")
        x[name] = x[name].view(48, 3, 256)[:, [1, 0, 2]].reshape(48, 768).contiguous()

    system = "TransformerLens"
    yield Row(system=system, what="healthy", base=original, candidate=lens(gemma), traced=original,
              code=0, ours=kl)  # fmt: skip
    version = {"package.transformer-lens": {"reference": "3.5.1", "candidate": "2.3.0 typeguard<3"}}
    yield Row(system=system, what="seed: attention scale 14.97 for 16", base=original,
              candidate=lens(gemma, version), words=("--bisect", "auto"), names=frozenset(version),
              seed="mean logit difference 1.47e-2 (healthy 1.6e-6)", ours=kl)  # fmt: skip
    for what, change, name in (
        ("a norm's 1 added twice", add_one_twice, layer(1, "input_layernorm")),
        ("rotary pairs of k interleaved", interleave_keys, layer(0, "self_attn.k_proj")),
        ("two heads of o exchanged", exchange_heads, layer(2, "self_attn.o_proj")),
    ):
        folder = fresh(work / what.replace(" ", "-"), gemma, change)
        yield Row(system=system, what=what, base=original, candidate=lens(folder), traced=original,
                  names=frozenset({name}), ours=kl)  # fmt: skip
    for name in ("api", "attn_scale", "attn_scores_soft_cap", "output_logits_soft_cap",
                 "attn_types", "window_size", "eps", "rotary_base", "act_fn", "dtype", "device",
                 "compatibility_mode", "attn_implementation"):  # fmt: skip
        yield nonsense(system, f"{name}: banana", lens(gemma, **{name: "banana"}))


def merge_rows(work: Path) -> Iterator[Row]:
    """The demo's model, and the same with noise that a merge has to take away again."""

    def add_noise(x: Weights) -> None:
        draw = torch.Generator().manual_seed(23)
        for name, one in x.items():
            if one.ndim == 2:
                x[name] = one + 0.7 * one.std() * torch.randn(one.shape, generator=draw)

    noisy = fresh(work / "noisy", MODEL, add_noise)
    tuned = {"model": str(MODEL), "weight": 1.0}

    def merged(setting: Any = None, **inputs: Any) -> Model:
        told = {"base": str(noisy), "models": [tuned], "method": "ties", **inputs}
        settings = {"dtype": {"reference": "float32", "candidate": "bfloat16",
                              "target": "build.dtype"}, **(setting or {})}  # fmt: skip
        build = {"call": "evalguard.recipes.mergekit:merge", "inputs": told}
        return {"model_args": {"dtype": "float32"}, "requirements": PACKAGES["mergekit"],
                "build": build, "settings": settings}  # fmt: skip

    system = "mergekit"
    yield Row(system=system, what="healthy", base=hf(MODEL), code=0, limit=1e-3, ours=kl,
              candidate=merged(), words=("--set", "dtype=reference"))  # fmt: skip
    small = random_model(work / "small", transformers.LlamaConfig, hidden_size=96,
                         intermediate_size=160, num_attention_heads=6)  # fmt: skip

    def store_low(x: Weights) -> None:
        x.update({name: one.bfloat16() for name, one in x.items()})

    def tune(x: Weights) -> None:
        draw = torch.Generator().manual_seed(5)
        for name, one in x.items():
            if one.ndim == 2:
                x[name] = one + 5e-4 * torch.randn(one.shape, generator=draw)
        store_low(x)

    low, near = fresh(work / "low", small, store_low), fresh(work / "near", small, tune)
    one_vector = merged(base=str(low), models=[{"model": str(near), "weight": 1.0}])
    one_vector["settings"] = {}

    def lost(document: Mapping[str, Any]) -> str:
        found = [one["values"] for one in document["findings"] if one["kind"] == "deltas_lost"]
        return f"mask false {found[0]['lost_before'] / found[0]['trained']:.2%}" if found else ""

    yield Row(system=system, what="seed: the sign mask of one task vector, bfloat16",
              base=hf(near), candidate=one_vector, code=0, limit=1e-3, seed="mask false 7.10%",
              ours=lost)  # fmt: skip
    none = [{"filter": "self_attn", "value": 0.0}, {"value": 1.0}]
    for what, name, reference, candidate in (
        ("a task vector taken off", "models", [tuned], [{**tuned, "weight": -1.0}]),
        ("attention left out by a filter", "models", [tuned], [{**tuned, "weight": none}]),
        ("weights that fade over the layers", "models", [tuned], [{**tuned, "weight": [1.0, 0.2]}]),
    ):
        setting = {"planted": {"reference": reference, "candidate": candidate,
                               "target": f"build.{name}"}}  # fmt: skip
        yield Row(system=system, what=what, base=hf(MODEL), limit=1e-3,
                  candidate=merged(setting, method="task_arithmetic"), words=("--bisect", "auto"),
                  names=frozenset({"planted"}), ours=kl)  # fmt: skip
    text = ("base", "models", "method", "dtype", "normalize", "density", "require_sign_consensus")
    for name, value in (
        *((name, "banana") for name in text), ("parameters", {"lambda": "banana"}),
        ("density", 2.0), ("density", -0.5),
    ):  # fmt: skip
        port = merged(**{name: value})
        port["settings"] = {}
        yield nonsense(system, f"{name}: {value}", port)


def torchao_rows(work: Path) -> Iterator[Row]:
    """A Llama of 3 layers and 6 heads, in int8 with groups of 32."""
    llama = random_model(
        work / "llama", transformers.LlamaConfig, hidden_size=96, intermediate_size=160,
        num_attention_heads=6, num_key_value_heads=3, initializer_range=0.2,
    )  # fmt: skip
    arguments = {"weight_dtype": "int8", "granularity": {"PerGroup": 32}}

    def quantised(**inputs: Any) -> Model:
        told = {"source": str(llama), "config": "IntxWeightOnlyConfig", "arguments": arguments}
        build = {"call": "evalguard.recipes.torchao:quantise", "inputs": {**told, **inputs}}
        return {"model_args": {"dtype": "float32"}, "requirements": PACKAGES["torchao"],
                "build": build}  # fmt: skip

    system = "torchao"
    limit = 1e-2
    yield Row(system=system, what="healthy", base=hf(llama), candidate=quantised(), code=0,
              traced=hf(llama), limit=limit, ours=kl)  # fmt: skip
    stored = work / "stored"
    script = work / "quantise.py"
    script.write_text(
        "from evalguard.recipes.torchao import quantise\n"
        f"quantise({str(stored)!r}, {str(llama)!r}, 'IntxWeightOnlyConfig', {arguments!r})\n"
    )
    run_in(PACKAGES["torchao"], CACHE, str(script))
    down = "model.layers.1.mlp.down_proj"

    def shift_zero(x: Weights) -> None:
        x[f"{down}._weight_zero_point"] += 1

    def roll_scales(x: Weights) -> None:
        x[f"{down}._weight_scale"] = x[f"{down}._weight_scale"].roll(1, 0).contiguous()

    def coarsen(x: Weights) -> None:
        levels = x[f"{down}._weight_qdata"].float() / 18
        x[f"{down}._weight_qdata"] = (levels.round() * 18).to(torch.int8)

    for what, change, code in (
        ("zero point off by one in a module", shift_zero, 0),  # a tenth of what int8 costs
        ("scales of the row before in a module", roll_scales, 1),
        ("one module of 4 bits among those of 8", coarsen, 1),
    ):
        folder = fresh(work / what.replace(" ", "-"), stored, change)
        yield Row(system=system, what=what, base=hf(llama), limit=limit, names=frozenset({down}),
                  candidate=hf(folder, requirements=PACKAGES["torchao"]), traced=hf(llama),
                  code=code, ours=kl)  # fmt: skip
    yield _round_trip(system, work)
    for name, value in (
        ("source", "banana"), ("config", "banana"), ("skip", ["banana"]), ("dtype", "banana"),
        ("arguments", "banana"), ("arguments", {"banana": 1}),
        *(("arguments", {**arguments, key: "banana"}) for key in
          ("weight_dtype", "granularity", "mapping_type", "scale_dtype", "version")),
        ("arguments", {"granularity": {"PerGroup": "banana"}}),
        ("arguments", {"granularity": {"banana": 32}}),
    ):  # fmt: skip
        yield nonsense(system, f"{name}: {value}", quantised(**{name: value}))
    for key in ("group_size", "set_inductor_config"):
        port = quantised(config="Int8WeightOnlyConfig", arguments={key: "banana"})
        yield nonsense(system, f"{key}: banana", port)


def _round_trip(system: str, work: Path) -> Row:
    """test_int8_wo_quant_save_load as ROCm answered it: a product of 1 x 32 by 32 x 64 in fp16."""
    draw = torch.Generator().manual_seed(3)
    weight = torch.nn.init.kaiming_uniform_(torch.empty(64, 32), a=5**0.5, generator=draw)
    x = torch.rand(1, 32, generator=draw)
    scale = weight.abs().amax(dim=1, keepdim=True) / 127
    weight = (weight / scale).round() * scale
    for name, dtype in (("before", torch.float32), ("after", torch.float16)):
        np.savez(work / f"{name}.npz", output=(x.to(dtype) @ weight.T.to(dtype)).float().numpy())
    words = ("tensors", str(work / "before.npz"), str(work / "after.npz"), "--atol", "1e-5",
             "--rtol", "1.3e-6")  # fmt: skip

    def ours(document: Mapping[str, Any]) -> str:
        (one,) = document["tensors"]
        most = [one[f"greatest_{kind}"]["value"] for kind in ("absolute", "relative")]
        return f"{one['mismatched']} of 64, {most[0]:.2g}, {most[1]:.2g}"

    return Row(system=system, what="seed: saved and loaded in another precision", words=words,
               seed="63 of 64, 0.00057, 0.0322", ours=ours)  # fmt: skip


def hubert_rows(work: Path) -> Iterator[Row]:
    """HuBERT of width 96 and two layers, and a port to plain loops that dumps what flows in it."""
    model, wave = make_hubert(hidden=96, layers=2), make_wave(frames=30)
    transformers.utils.logging.disable_progress_bar()
    model.save_pretrained(work / "hubert")
    np.savez(work / "wave.npz", input_values=wave)
    conv, gelu = (f"feature_extractor.conv_layers.{{}}.{one}" for one in ("conv", "activation"))
    layer = "encoder.layers.1"
    everywhere = frozenset(conv.format(n) for n in range(3))
    gelus = frozenset(gelu.format(n) for n in range(3))
    names = {"map": [{"base": f"**:{end}", "cand": f"**:{end}"} for end in ("in", "out")]}

    def row(what: str, faults: Faults, *, told: Any = None, map_: Any = None, **more: Any) -> Row:
        folder = work / "".join(c if c.isalnum() else "-" for c in what)
        folder.mkdir()
        np.savez(folder / "wave.npz", **Port(model, "naive", faults)(wave))
        if told:
            (folder / "config.yaml").write_text(yaml.safe_dump(told))
        (work / f"{folder.name}.yaml").write_text(yaml.safe_dump(map_ or names))
        words = ("trace", "--base", str(work / "hubert"), "--cand", str(folder), "--map",
                 str(work / f"{folder.name}.yaml"), "--inputs", str(work / "wave.npz"))  # fmt: skip
        return Row(system="GGML HuBERT", what=what, words=words, **more)

    def error(document: Mapping[str, Any]) -> str:
        points = {one["point"]: one for one in document["layers"]}
        found = points[f"{conv.format(0)}:out"]["local"]["relative_l2"]
        return f"first convolution {found:.2g}"

    yield row("healthy", Faults(), code=0, seed="5.3e-7", ours=error)
    yield row("seed: convolutions in fp16, GELU by tanh",
              Faults(half_input=everywhere, tanh_gelu=gelus), names=everywhere | gelus,
              seed="1.36e-3", ours=error)  # fmt: skip
    every = {name: 9.99999975e-06 for name, one in model.named_modules() if hasattr(one, "eps")}
    yield row("seed, innocent: eps 9.99999975e-06", Faults(epsilon=every), code=0,
              seed="is 1e-5 in float32", ours=error)  # fmt: skip
    yield row("scale of attention by sqrt(d + 1)",
              Faults(scale={f"{layer}.attention": (48 / 49) ** 0.5}),
              names=frozenset({f"{layer}.attention"}))  # fmt: skip
    yield row(
        "keys and values exchanged",
        names=frozenset({f"{layer}.attention.k_proj"}),
        faults=Faults(swapped={f"{layer}.attention.k_proj": f"{layer}.attention.v_proj"}),
    )
    projection = frozenset({"feature_projection.projection"})
    yield row("no bias in the projection", Faults(no_bias=projection), names=projection)
    for key in ("precision", "computes_in"):
        yield row(f"nonsense: {key}: banana", Faults(), told={key: "banana"}, code=2)
    rule = {"base": "(root):out", "cand": "(root):out"}
    for key in ("base", "cand", "transpose", "reshape", "split", "take", "permute", "scale", "add"):
        mapped = {"map": [{**rule, key: "banana"}]}
        yield row(f"nonsense: map {key}: banana", Faults(), map_=mapped, code=2)
    yield row("nonsense: ignore: banana", Faults(), map_={**names, "ignore": "banana"}, code=2)


ROWS: tuple[Callable[[Path], Iterator[Row]], ...] = (
    rwkv_rows, lens_rows, merge_rows, torchao_rows, hubert_rows,
)  # fmt: skip
