"""In the worker: numpy and the model's own library are all that may be imported here."""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
import sys
from collections.abc import Mapping
from typing import Any

from evalguard.conversion.edits import apply
from evalguard.conversion.installed_packages import (
    BESIDE,
    LIBRARIES,
    digest_packages,
    installed_versions,
    loaded_packages,
)
from evalguard.conversion.observed_reads import KnownDigests, digest_model
from evalguard.conversion.planning import ConversionPlan, plan_conversion
from evalguard.conversion.readback import check_environment, read_edits
from evalguard.core.scorer import ModelDescription, Scorer, ScoringPolicy
from evalguard.core.settings import Value, Variant
from evalguard.engine.loading.foreign_code import digest_foreign_code
from evalguard.engine.loading.own_environment import EDIT_KINDS, UNSUPPORTED, find_runtime_type
from evalguard.errors import EvalguardError, EvaluationError, SettingError
from evalguard.models.arguments import HF_TYPES
from evalguard.models.built_findings import list_built_findings
from evalguard.models.identity import identity_of_runtime
from evalguard.models.runtimes.engine import make_scorer
from evalguard.models.runtimes.runtime import Runtime, RuntimeArguments
from evalguard.models.runtimes.types import load_runtime


def load_runtime_scorer(
    variant: Variant, policy: ScoringPolicy, *, known: KnownDigests | None = None
) -> Scorer:
    """Load a variant by its runtime, and prove that every setting took.

    ``variant`` comes from ``prepare_worker``: it is built. ``known``: digests of big files from
    earlier runs.

    Raises:
        UsageError: an argument that does not exist.
        SettingError: a setting that could not be applied or did not take.
        EvaluationError: the package is missing, or the model cannot be loaded.
    """
    find_runtime_type(variant)
    model_type = "transformers" if variant.model in HF_TYPES else variant.model
    with contextlib.redirect_stdout(sys.stderr):
        plan = plan_conversion(variant)
        check_environment(plan.env)
        _refuse_unsupported(plan)
        arguments = RuntimeArguments(
            model_type=variant.model,
            given=plan.model_args,
            device=policy.device,
            threads=policy.threads,
            code_allowed=variant.trust_remote_code,
            pickle_allowed=variant.allow_pickle,
        )
        try:
            runtime = load_runtime(model_type, arguments)
        except (EvalguardError, KeyboardInterrupt):
            raise
        except Exception as error:
            raise EvaluationError(
                f"'{variant.name}' cannot be loaded: {type(error).__name__}: {error}"
            ) from error
        effective = _carry_settings(runtime, variant, plan)
        description = describe_runtime(runtime, variant, plan, policy, effective, known)
    return make_scorer(runtime, policy, description)


def _refuse_unsupported(plan: ConversionPlan) -> None:
    for name, (target, _) in plan.targets.items():
        if target.kind in UNSUPPORTED:
            raise SettingError(
                f"setting '{name}' ({target}) works with model: hf in evalguard's own environment",
                hint="use model_args.X, attr:GLOB.X, dtype:GLOB, env.X, build.X or package.X",
                setting=name,
            )


def _carry_settings(runtime: Runtime, variant: Variant, plan: ConversionPlan) -> dict[str, Value]:
    """Edit the loaded module, and read every setting back."""
    effective: dict[str, Value] = {}
    code: dict[str, Any] = {"code_folder": variant.code_folder, "allow_code": variant.allow_code}
    if plan.edits_model:
        if runtime.module is None:
            names = [n for n, (t, _) in plan.targets.items() if t.kind in EDIT_KINDS]
            raise SettingError(
                f"setting '{names[0]}' edits a torch module, and model type '{variant.model}' has "
                "none",
                hint="use model_args.X, env.X, build.X or package.X",
                setting=names[0],
            )
        apply(runtime.module, plan, **code)
    effective |= read_edits(runtime.module, plan, **code)
    shown = runtime.effective
    for name, (target, value) in plan.targets.items():
        if target.kind == "package":
            effective[name] = _read_version(name, target.path, value)
        elif target.kind == "model_args":
            actual = shown.get(target.path, value)
            if value is not None and actual != value:
                raise SettingError(
                    f"setting '{name}' did not take: {target} is {actual!r} after loading, asked "
                    f"was {value!r}",
                    setting=name,
                )
            effective[name] = actual
    return {setting.name: effective[setting.name] for setting in variant.settings}


def _read_version(setting: str, package: str, asked: Value) -> Value:
    try:
        installed = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        installed = "not installed"
    if installed != str(asked).split()[0]:
        raise SettingError(
            f"setting '{setting}' did not take: {package} is {installed}, asked was {asked}",
            setting=setting,
        )
    return asked


def describe_runtime(
    runtime: Runtime,
    variant: Variant,
    plan: ConversionPlan,
    policy: ScoringPolicy,
    effective: Mapping[str, Value],
    known: KnownDigests | None = None,
) -> ModelDescription:
    """Read off a loaded runtime what it is; without files, its scores are not kept."""
    packages = installed_versions()
    environment: dict[str, Value] = {
        "python": platform.python_version(),
        "packages": packages,
        "prefix_token_id": runtime.prefix_token_id,
        "add_bos_token": runtime.encode("a")[:1] == [runtime.prefix_token_id],
        "rolling_bos": _rolling_bos(runtime, policy),
    }
    entries = sorted(runtime.vocabulary.items())
    vocabulary = ""
    if entries:
        from evalguard.models.tokenizers import entries_digest

        vocabulary = entries_digest(entries)
    return ModelDescription(
        model_type=variant.model,
        effective=dict(effective),
        identity=_identity(runtime, variant, plan, policy, effective, packages, known),
        vocabulary_digest=vocabulary,
        vocabulary_size=len(entries) or runtime.vocabulary_size,
        max_length=runtime.max_length,
        dtype=runtime.dtype,
        device=runtime.device,
        parameters=runtime.parameters,
        gives_rows=True,
        environment=environment,
        computation={
            "device": runtime.device.partition(":")[0],
            "threads": policy.threads or None,
            **runtime.computation,
        },
        findings=tuple(list_built_findings(plan.model_args.get("pretrained"))),
        caveats=runtime.caveats,
    )


def _rolling_bos(runtime: Runtime, policy: ScoringPolicy) -> Value:
    adds = runtime.encode("a")[:1] == [runtime.prefix_token_id]
    return policy.rolling_bos if adds else None


def _identity(
    runtime: Runtime,
    variant: Variant,
    plan: ConversionPlan,
    policy: ScoringPolicy,
    effective: Mapping[str, Value],
    packages: Mapping[str, Value],
    known: KnownDigests | None,
) -> dict[str, Value] | None:
    """Everything that can change a score; None where files are not proven."""
    if not runtime.files:
        return None
    libraries = digest_packages((*LIBRARIES, *BESIDE, *loaded_packages()), known)
    return identity_of_runtime(
        variant.model,
        plan.model_args,
        policy,
        {
            "weights": [
                [file.name, digest_model(file, known)] for file in dict.fromkeys(runtime.files)
            ],
            "code": {
                **libraries,
                **digest_foreign_code(variant, plan),
                "env": dict(plan.env),
            },
            "settings": plan.settings_for_identity(effective),
        },
        dtype=runtime.dtype,
        device=runtime.device,
        packages=packages,
    )
