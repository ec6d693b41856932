"""WantedModel: a variant as it has to be loaded, planned and built, with what proves its files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from evalguard.conversion.building import build
from evalguard.conversion.digests import KnownDigests
from evalguard.conversion.planning import ConversionPlan, plan, with_build
from evalguard.pipeline.weight_digests import code_digests, weights_of
from evalguard.settings import Value, Variant, digest_of

_TAKEN = "weights:"  # digests of checkpoints that settings take weights from


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedModel:
    """What loading a variant takes.

    Attributes:
        plan: its settings by target.
        model_args: of lm-eval, with the path of what was built in its place.
        proofs: digests of weights and code, as they are now; None where they cannot be proven.
    """

    variant: Variant
    plan: ConversionPlan
    model_args: Mapping[str, Value]
    proofs: Mapping[str, Value] | None

    @classmethod
    def of(
        cls, variant: Variant, *, cache_dir: Path, known: KnownDigests | None = None
    ) -> WantedModel:
        """Plan a variant, build it if it is not built yet, and digest its files.

        Raises:
            SettingError: settings that cannot be planned.
            BuildError: the build recipe failed.
        """
        wanted = plan(variant)
        model_args: Mapping[str, Value] = wanted.model_args
        if variant.build is not None:
            model_args = with_build(model_args, str(build(variant, wanted, cache_dir)))
        proofs = proofs_of(variant, wanted, model_args, known)
        return cls(variant=variant, plan=wanted, model_args=model_args, proofs=proofs)

    def loads_as(self, other: WantedModel) -> bool:
        """Whether both are the same model, from the same files, until settings edit it."""
        files = [
            None if one.proofs is None else _without_taken(one.proofs["weights"])
            for one in (self, other)
        ]
        return files[0] == files[1] and same_loading(self.variant, other.variant)


def same_loading(one: Variant, other: Variant) -> bool:
    """Whether two variants differ at most in settings that edit the loaded model.

    Raises:
        SettingError: settings that cannot be planned.
    """
    return digest_of(_loading(one)) == digest_of(_loading(other))


def _loading(variant: Variant) -> dict[str, Value]:
    wanted = plan(variant)
    return {
        "model": variant.model,
        "model_args": dict(wanted.model_args),
        "config": dict(wanted.config_overrides),
        "env": dict(wanted.env),
        "build": None if variant.build is None else asdict(variant.build),
        "inputs": dict(wanted.build_inputs),
        "trust": [variant.trust_remote_code, variant.allow_pickle, variant.allow_code],
        "code_folder": variant.code_folder,
    }


def proofs_of(
    variant: Variant,
    wanted: ConversionPlan,
    model_args: Mapping[str, Value],
    known: KnownDigests | None,
) -> dict[str, Value] | None:
    """Digests of the weights and of the code; None where one of them cannot be proven."""
    weights = weights_of(variant, model_args, known, checkpoints=wanted.checkpoints)
    if weights is None:
        return None
    code = code_digests(variant, wanted, model_args, known)
    return None if code is None else {"weights": weights, "code": dict(code)}


def _without_taken(weights: Value) -> dict[str, Value]:
    assert isinstance(weights, dict)
    return {name: digest for name, digest in weights.items() if not name.startswith(_TAKEN)}
