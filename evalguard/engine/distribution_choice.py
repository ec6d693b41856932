"""Whether and how the two models' distributions are compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from evalguard.config.options import CompareOptions, DistributionMode, MemoryUse, RunOptions
from evalguard.engine.sources import ReferenceSource, Source, StoredSource
from evalguard.errors import UsageError

DEFAULT_TOP_K = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class DistributionChoice:
    """How distributions are compared.

    Attributes:
        mode: "lockstep": both models are loaded, and their distributions meet batch by batch.
            "reference": the base is scored first and leaves its ``top_k`` most probable tokens.
            "auto": lock-step where it is possible. "off": not at all.
        top_k: tokens of the base that a reference keeps at every position.
        file: that the reference is written to; None: no file.
        base_recurs: the base is compared with more candidates, so that "auto" keeps a reference of
            it in place of running it beside each of them.
    """

    mode: DistributionMode = "auto"
    top_k: int = DEFAULT_TOP_K
    file: Path | None = None
    base_recurs: bool = False


def choose_distributions(
    sources: Sequence[Source], run: RunOptions, options: CompareOptions
) -> DistributionChoice:
    """Settle how distributions are compared; the command line wins over the guard file.

    Raises:
        UsageError: for finished runs, which hold no distributions, if they are asked for.
    """
    file = options.save_reference
    base = next((source for source in sources if isinstance(source, ReferenceSource)), None)
    mode = options.distributions or ("reference" if base or file else run.distributions) or "auto"
    if mode == "auto" and (base or file):
        mode = "reference"
    if (base or file) and mode != "reference":
        what = f"{base.path} (--base)" if base else f"{file} (save_reference)"
        raise UsageError(
            f"{what} is of answers and distributions, which distributions {mode} does not compare",
            hint="leave out one of the two",
        )
    if base and (file or options.reference_top_k):
        raise UsageError(
            f"{base.path} is the base, and keeps its own tokens: nothing is kept of it once more",
            hint="leave out save_reference and reference_top_k (--save-reference)",
        )
    if file and file.exists():
        raise UsageError(
            f"{file} is there already",
            hint=f"--base {file} compares with it; remove it to make it anew",
        )
    top_k = options.reference_top_k or run.reference_top_k or DEFAULT_TOP_K
    if options.reference_top_k and mode != "reference":
        raise UsageError(
            f"reference_top_k has no effect with distributions {mode}",
            hint="--distributions reference scores the base first and keeps a reference of it",
        )
    stored = [source for source in sources if isinstance(source, StoredSource)]
    if mode in ("lockstep", "reference") and stored:
        raise UsageError(
            f"'{stored[0].name}' is a finished run, which holds no distributions",
            hint="name the model instead of its run, or leave out --distributions",
        )
    return DistributionChoice(mode=mode, top_k=top_k, file=file)


def choose_memory(options: CompareOptions, distributions: DistributionChoice) -> MemoryUse:
    """Settle whether both models are loaded.

    Raises:
        UsageError: for a way of comparing distributions that needs the opposite.
    """
    memory = options.memory or "auto"
    opposite = {"lockstep": "reference", "sequential": "lockstep"}.get(memory)
    if distributions.mode == opposite:
        loads = "one model at a time" if opposite == "reference" else "both models"
        raise UsageError(
            f"memory {memory} does not go with distributions {opposite}, which needs {loads}",
            hint="leave out one of memory and distributions (run: {memory: ...}, --distributions)",
        )
    return memory
