"""Traces to show: one with suspects, one without, one of which nothing is known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from evalguard.core.compare_report import RunIdentity
from evalguard.core.hyperparameters import HyperparameterDelta
from evalguard.core.trace_record import (
    ActivationError,
    LayerDelta,
    SuspectModule,
    TokenDetail,
    Trace,
    TwinFacts,
    UnalignedPoint,
)
from evalguard.tracing.trace_report import TracedDocument, TraceReport

INF, NAN = float("inf"), float("nan")
FLOOR = 2e-7
HOSTILE = "<script>alert(1)</script>\x1b[31m\u202e\nname"


def error(size: float) -> ActivationError:
    return ActivationError(
        relative_l2=size, cosine=1.0 - size, max_abs=size * 3, sum_base=-11980.996,
        sum_candidate=-11849.844, mean_base=0.5, mean_candidate=0.25, elements=1024,
    )  # fmt: skip


def layer(order: int, module: str, local: float, far: float, **more: Any) -> LayerDelta:
    number = module.split(".")[2] if module.startswith("model.layers.") else None
    values: dict[str, Any] = {
        "point": f"{module}:out", "module": module, "kind": "leaf", "order": order,
        "layer": None if number is None else int(number), "local": error(local * FLOOR),
        "accumulated": error(far * FLOOR), "floor": FLOOR, "accumulated_floor": FLOOR,
        "local_ratio": local, "accumulated_ratio": far,
    }  # fmt: skip
    return LayerDelta(**{**values, **more})


def suspect(order: int, module: str, ratio: float, **more: Any) -> SuspectModule:
    values: dict[str, Any] = {
        "module": module, "operation": "LlamaAttention, before o_proj: computes something else",
        "fault": "operation", "point": f"{module}.o_proj:in", "order": order,
        "layer": int(module.split(".")[2]), "check": "as it runs", "local_ratio": ratio,
        "accumulated_ratio": ratio / 2,
    }  # fmt: skip
    return SuspectModule(**{**values, **more})


def layers(number: int, guilty: int) -> tuple[LayerDelta, ...]:
    found = [layer(0, "model.embed_tokens", 0.8, 0.8)]
    for at in range(number):
        far = 1.0 if at < guilty else 300.0 + at
        found.append(
            layer(
                2 * at + 1, f"model.layers.{at}.self_attn", 340.0 if at == guilty else 0.5, far,
                point=f"model.layers.{at}.self_attn.o_proj:in", kind="glue", place="before o_proj",
            )
        )  # fmt: skip
        found.append(layer(2 * at + 2, f"model.layers.{at}.mlp.down_proj", 0.5, far))
    return (*found, layer(2 * number + 1, "lm_head", 0.9, 280.0))


def trace_of(number: int = 4, guilty: int = 1, **more: Any) -> Trace:
    first = suspect(2 * guilty + 1, f"model.layers.{guilty}.self_attn", 340.0, swap_sigma=1.27)
    later = suspect(2 * number - 1, f"model.layers.{number - 1}.self_attn", 12345.0)
    values: dict[str, Any] = {
        "layers": layers(number, guilty), "suspects": (later, first), "first": first,
        "unaligned": (UnalignedPoint(name="model.sinks", side="base", reason="no such module"),),
        "never_run": ("model.layers.0.unused",), "documents": 2, "tokens": 9,
        "twin": TwinFacts(
            dtype="bfloat16", weights="bfloat16", votes={"bfloat16": 14, "float32": 1},
            twins=("the sequence repeated",), upcast=True, threshold=3.0,
            attention=("eager", "sdpa"),
        ),
    }  # fmt: skip
    return Trace(**{**values, **more})


def trace_report(trace: Trace, **more: Any) -> TraceReport:
    values: dict[str, Any] = {
        "created": "2026-01-02T03:04:05+00:00",
        "command": "evalguard trace --base ./orig --cand ./port --text a.txt --device cpu",
        "base": RunIdentity(name="orig", digest="b" * 16, description="hf, 8 parameters, float32"),
        "candidate": RunIdentity(name="port", digest="c" * 16, description="hf, 8 parameters"),
        "trace": trace,
        "hyperparameters": HYPERPARAMETERS,
        "documents": (
            TracedDocument(name="sw_word 3", tokens=5, task="sw_word", doc_id=3, drift=0.2),
            TracedDocument(name="sw_word 4", tokens=4, task="sw_word", doc_id=4),
        ),
        "chosen": "2 of sw_word that moved most on perplexity in reports/a",
        "swap_task": "sw_word perplexity",
        "notes": ("1 document is cut to the model's context of 48 tokens",),
        "exit_code": 1,
        "version": "0",
    }  # fmt: skip
    return TraceReport(**{**values, **more})


HYPERPARAMETERS = (
    HyperparameterDelta(
        name="attention_scale", base=0.0625, candidate=0.0668, verdict="differs",
        where="model.layers.1.self_attn", modules=("model.layers.1.self_attn",),
        base_source="scaling", candidate_source="scaling",
    ),
    HyperparameterDelta(
        name="mlp_bias", base=None, candidate=True, verdict="one side only",
        candidate_source="bias",
    ),
    HyperparameterDelta(
        name="norm_eps", base=1e-5, candidate=9.99999975e-06, verdict="equal as float32",
        base_source="eps", candidate_source="eps",
    ),
    HyperparameterDelta(
        name="heads", base=4, candidate=4, verdict="equal", base_source="config.heads",
        candidate_source="config.heads",
    ),
)  # fmt: skip
DETAIL = TokenDetail(
    point="model.layers.1.self_attn.o_proj:in",
    tokens=((0.1, 0.5, NAN, 0.2, 0.3), (0.4, 0.0, 0.0, 0.0)),
    heads=(0.5, 1e-7, 2e-7, 0.25),
)
LOCATED = trace_report(trace_of())
CLEAR = trace_report(
    trace_of(layers=layers(4, 9), suspects=(), first=None), hyperparameters=(), exit_code=0
)
ANOTHER_LAYOUT = suspect(
    7, "model.layers.2.self_attn", 2.0e6, cancels_at="model.layers.2.self_attn:out"
)
CANCELLING = trace_report(
    trace_of(
        layers=(
            *layers(4, 9)[:-1],
            layer(7, "model.layers.2.self_attn", 2.0e6, 1.0, cancels_at=ANOTHER_LAYOUT.cancels_at),
        ),
        suspects=(),
        first=None,
        other_layouts=(ANOTHER_LAYOUT,),
    ),
    exit_code=0,
)
UNKNOWN = trace_report(
    trace_of(layers=(), suspects=(), first=None, twin=None, caveats=("nothing could be seen",)),
    notes=(),
    exit_code=3,
)
DETAILED = trace_report(
    trace_of(details=(DETAIL,)),
    documents=(
        TracedDocument(name="a.txt", tokens=5, token_texts=("a", " b", "\n", "d", "e")),
        TracedDocument(name="b.txt", tokens=4),
    ),
)
ENDLESS = trace_report(
    trace_of(
        layers=(
            *layers(4, 1)[:-1],
            replace(
                layer(99, "lm_head", 1.0, INF),
                local=replace(error(0.1), relative_l2=INF, cosine=NAN),
                local_ratio=INF,
            ),
        ),
        suspects=(suspect(9, "model.layers.1.self_attn", INF),),
    )
)
NAMED_BY_OTHERS = trace_report(
    trace_of(
        layers=(layer(0, HOSTILE, 500.0, 2.0, layer=3), layer(1, "lm_head", 1.0, 2.0)),
        suspects=(suspect(0, f"model.layers.1.{HOSTILE}", 500.0, operation=HOSTILE),),
        first=suspect(0, f"model.layers.1.{HOSTILE}", 500.0, operation=HOSTILE),
        caveats=(HOSTILE,),
        details=(replace(DETAIL, point=HOSTILE),),
    ),
    base=RunIdentity(name=HOSTILE, digest="", description=HOSTILE),
    chosen=HOSTILE,
    hyperparameters=(replace(HYPERPARAMETERS[0], name=HOSTILE, base=HOSTILE, where=HOSTILE),),
    documents=(TracedDocument(name=HOSTILE, tokens=1, token_texts=(HOSTILE,)),),
)
EXAMPLES = {
    "located": LOCATED,
    "clear": CLEAR,
    "cancelling": CANCELLING,
    "unknown": UNKNOWN,
    "detailed": DETAILED,
    "endless": ENDLESS,
    "hostile": NAMED_BY_OTHERS,
    "deep": trace_report(trace_of(80, 41)),
}
