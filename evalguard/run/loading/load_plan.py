"""LoadPlan: a variant as it has to be loaded, planned and built, with what proves its files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from evalguard.conversion.building import build
from evalguard.conversion.digests import KnownDigests
from evalguard.conversion.planning import ConversionPlan, plan_conversion, with_build
from evalguard.core.settings import Value, Variant, digest_of
from evalguard.models.arguments import SERVED_TYPES
from evalguard.run.loading.loaded_files import digest_code, digest_weights

_TAKEN_PREFIX = "weights:"  # digests of checkpoints that settings take weights from


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
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
    ) -> LoadPlan:
        """Plan a variant, build it if it is not built yet, and digest its files.

        Raises:
            SettingError: settings that cannot be planned.
            BuildError: the build recipe failed.
        """
        wanted = plan_conversion(variant)
        model_args: Mapping[str, Value] = wanted.model_args
        if variant.build is not None and variant.serve is None:  # else its server has it
            model_args = with_build(model_args, str(build(variant, wanted, cache_dir)))
        proofs = prove_files(variant, wanted, model_args, known)
        return cls(variant=variant, plan=wanted, model_args=model_args, proofs=proofs)

    def loads_as(self, other: LoadPlan) -> bool:
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
    return digest_of(_loading_settings(one)) == digest_of(_loading_settings(other))


def _loading_settings(variant: Variant) -> dict[str, Value]:
    wanted = plan_conversion(variant)
    return {
        "model": variant.model,
        "model_args": dict(wanted.model_args),
        "config": dict(wanted.config_overrides),
        "env": dict(wanted.env),
        "build": None if variant.build is None else asdict(variant.build),
        "inputs": dict(wanted.build_inputs),
        "trust": [variant.trust_remote_code, variant.allow_pickle, variant.allow_code],
        "code_folder": variant.code_folder,
        **({} if variant.serve is None else {"serve": dict(variant.serve.proofs)}),
    }


def prove_files(
    variant: Variant,
    wanted: ConversionPlan,
    model_args: Mapping[str, Value],
    known: KnownDigests | None,
) -> dict[str, Value] | None:
    """Digests of the weights and of the libraries; None where the weights cannot be proven."""
    if variant.serve is not None:
        return dict(variant.serve.proofs) or None
    if variant.model in SERVED_TYPES:
        return None  # files that a client names are not what a server has
    weights = digest_weights(variant, model_args, known, checkpoints=wanted.checkpoints)
    if weights is None:
        return None
    return {"weights": weights, "code": dict(digest_code(variant, wanted, known))}


def _without_taken(weights: Value) -> dict[str, Value]:
    assert isinstance(weights, dict)
    return {name: digest for name, digest in weights.items() if not name.startswith(_TAKEN_PREFIX)}


def taken_sources(weights: Value) -> dict[str, Value]:
    """Digests of the other checkpoints that settings take weights and modules from."""
    assert isinstance(weights, dict)
    return {name: digest for name, digest in weights.items() if name.startswith(_TAKEN_PREFIX)}
