"""Trust: which parts of a guard file run code, and whether the user let this file do so.

A guard file may run code if the user named it (``--config``), passed ``--allow-code``, or it came
with evalguard. One that was only found in the working folder may not: a cloned repository must not
run code because somebody evaluates a model in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from evalguard.config.document import Document
from evalguard.config.domain import CodeUse, Guard
from evalguard.config.inherit import Inherited
from evalguard.config.model import SettingEntry
from evalguard.config.task_code import find_task_code
from evalguard.config.yaml_nodes import Loc
from evalguard.errors import UsageError
from evalguard.settings import Target, Value, Variant

# Environment variables that can make a worker process load code or read a file that holds some.
_ENV_CODE = (
    (r"LD_.*|DYLD_.*|GCONV_PATH|GLIBC_TUNABLES|LIBRARY_PATH", "the dynamic loader loads libraries"),
    (r"PYTHON.*", "the interpreter loads modules"),
    (r"PATH|SHELL|ENV|BASH_ENV|IFS|PROMPT_COMMAND", "programs are found or started"),
    (r"HOME|TMPDIR|XDG_.*|VIRTUAL_ENV", "configuration and modules are looked up"),
    (r"(HF|TRANSFORMERS|HUGGINGFACE)_.*", "models, their code and tasks are fetched and trusted"),
    (r"TORCH_FORCE_.*|TORCH_DEVICE_BACKEND_AUTOLOAD", "pickles or backends are loaded"),
    (r"TORCHINDUCTOR_.*|TORCH_COMPILE_.*|TRITON_.*", "compiled kernels are loaded or built"),
    (r"CC|CXX|NVCC.*|CUDAHOSTCXX|CUDA_NVCC.*|.*FLAGS|NINJA.*|MAKE.*", "a compiler is started"),
    (r"OMP_TOOL.*|CUDA_INJECTION.*|NVTX_INJECTION.*|HSA_TOOLS.*|ROCP_.*", "tools are injected"),
    (r"VLLM_PLUGINS|VLLM_ALLOW_.*", "plugins or pickles are loaded"),
    (r"GIT_.*|NODE_OPTIONS|PERL5.*|RUBY.*|JAVA_.*", "other programs load code"),
    (r".*_PROXY|SSL_.*|OPENSSL_.*|CURL_.*|REQUESTS_CA.*", "downloads go elsewhere"),
    (r".*_(PATH|HOME|DIR|DIRS|LIB|LIBS|LIBRARY|LIBRARIES|PLUGIN|PLUGINS|PRELOAD|ENDPOINT)",
     "something is loaded from another place"),
)  # fmt: skip


def env_danger(name: str) -> str:
    """Return why an environment variable can load code, "" if nothing speaks for that."""
    for pattern, reason in _ENV_CODE:
        if re.fullmatch(pattern, name, re.IGNORECASE):
            return reason
    return ""


def code_uses(model: Inherited, document: Document) -> tuple[CodeUse, ...]:
    """Return everything of a model that runs code, with its place."""
    return tuple(
        CodeUse(what=what, where=document.where(model.place(*loc))) for what, loc in _uses(model)
    )


def require_code_allowed(guard: Guard, variant: Variant) -> None:
    """Check that the user lets the code run that this variant of this guard file needs.

    Raises:
        UsageError: if not; names what would run, where it is written, and how to allow it.
    """
    if guard.code_allowed:
        return
    uses = [*guard.code_uses.get(variant.name, ())]
    for folder in guard.include_paths:
        task_code = find_task_code(folder)
        if task_code:
            uses.append(CodeUse(what=f"include_path: {task_code}", where=guard.include_where))
    if uses:
        listed = "\n".join(f"  {use.where}: {use.what}" for use in uses)
        found = f"{guard.label} was found, not named, so its code does not run"
        raise UsageError(
            f"'{variant.name}' needs code, and {found}:\n{listed}",
            hint=f"if you trust it: --config {guard.label}, or --allow-code",
        )


def _uses(model: Inherited) -> Iterator[tuple[str, Loc]]:
    entry = model.entry
    if entry.trust_remote_code:
        yield "trust_remote_code runs the model's own Python code", ("trust_remote_code",)
    if entry.allow_pickle:
        yield "allow_pickle loads pickled weights, which can run code", ("allow_pickle",)
    if entry.build is not None:
        does = f"calls {entry.build.call}" if entry.build.call else "runs a command"
        yield f"the build recipe {does}", ("build",)
    for name, value in entry.model_args.items():
        if _is_hub_kernel(name, value):
            yield f"{name}: {value} loads a kernel from the hub", ("model_args", name)
    for name, setting in entry.settings.items():
        why = _setting_use(setting, Target.parse(setting.target))
        if why:
            yield f"setting '{name}' {why}", ("settings", name)


def _setting_use(setting: SettingEntry, target: Target) -> str:
    if target.kind == "call":
        return f"calls {target.path}"
    if target.kind == "env" and (reason := env_danger(target.path)):
        return f"sets {target.path}, by which {reason}"
    values = (setting.reference, setting.candidate)
    if any(_is_hub_kernel(target.attribute or target.path, value) for value in values):
        return "loads a kernel from the hub"
    return ""


def _is_hub_kernel(name: str, value: Value) -> bool:
    """Whether this asks transformers for an attention or expert kernel that is a hub repository."""
    return name.endswith("_implementation") and "/" in str(value)
