"""torch's switches, set otherwise."""

from __future__ import annotations

from typing import Any

from world_changes import Case, Change, deterministic


def medium_precision(*_: Any) -> None:
    import torch

    torch.set_float32_matmul_precision("medium")


def without_mkldnn(*_: Any) -> None:
    import torch

    torch.backends.mkldnn.enabled = False  # type: ignore[assignment]


def variable(name: str, value: str) -> Change:
    return lambda _, patch: patch.setenv(name, value)


SWITCHED: dict[str, Case] = {
    "deterministic algorithms": Case(deterministic, matters=None),
    "precision of float32 products": Case(medium_precision, matters=None),
    "oneDNN off": Case(without_mkldnn, matters=None),
    "a variable of MKL": Case(variable("MKL_CBWR", "COMPATIBLE"), matters=None),
    "a variable of oneDNN": Case(variable("ONEDNN_MAX_CPU_ISA", "AVX2"), matters=None),
}
