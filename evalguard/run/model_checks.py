"""Checks of the models before anything long runs: are they there, are they models at all?"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from evalguard.conversion.planning import plan_conversion
from evalguard.core.redaction import redacted_text
from evalguard.core.settings import Value
from evalguard.errors import (
    EvaluationError,
    UsageError,
)
from evalguard.models.answer_failures import UNREACHABLE_HINT
from evalguard.models.arguments import CLIENT_TYPES, HF_TYPES, check_type
from evalguard.models.loading import check_engine
from evalguard.models.model_folders import (
    HUB_TIMEOUT,
    check_model_folder,
    checkpoint_folder,
    find_local_folder,
    hub_snapshot,
)
from evalguard.models.quantised_folders import check_quantisation
from evalguard.run.error_places import with_location
from evalguard.run.loading.own_environment import (
    check_runtime,
    is_runtime,
)
from evalguard.run.loading.serving import check_served
from evalguard.run.sources import (
    ModelSource,
)

_CONFIG_FILE = "config.json"
_QUANTISATION = "quantization_config"
_ONLINE_HINT = "give a path, or go online and try again"


def check_models(sources: Iterable[ModelSource]) -> None:
    """Refuse models that can be seen to be none, before the first one is loaded and scored.

    Raises:
        UsageError: for a folder or hub id that leads nowhere, a folder that holds no model, or a
            model type whose numbers are wrong.
        EvaluationError: for weights that are damaged, or pickled and not allowed to be; for an
            address where no server is.
        SettingError: for settings that contradict each other.
    """
    for source in sources:
        with with_location(source):
            variant = source.variant
            check_type(variant.model)
            plan = plan_conversion(variant)
            arguments = plan.model_args
            check_served(variant)
            check_runtime(variant)
            if variant.model not in HF_TYPES and not is_runtime(variant):
                check_engine(variant.model)
            if variant.model in CLIENT_TYPES and variant.serve is None:
                _check_server(str(arguments.get("base_url") or ""))
            # What a recipe builds is not there yet; other model types read names their own way.
            if variant.model in HF_TYPES and variant.build is None:
                _check_model(arguments, allow_pickle=variant.allow_pickle)
                # An environment of its own has another transformers.
                edited = any(path.startswith(_QUANTISATION) for path in plan.config_overrides)
                if variant.environment is None and not edited:
                    _check_quantisation(arguments)


def _check_model(arguments: Mapping[str, Value], *, allow_pickle: bool) -> None:
    name = arguments.get("pretrained")
    if not (isinstance(name, str) and name):
        return
    try:
        folder = find_local_folder(name)
        if folder is not None:
            folder = _model_folder(folder, arguments)
    except EvaluationError as error:
        raise UsageError(str(error), hint=error.hint) from error
    if folder is None:
        check_hub_model(name, arguments)
    else:
        check_model_folder(folder, allow_pickle=allow_pickle, needed=())


def _check_server(address: str) -> None:
    """Refuse an address where nothing listens, before the other side has been scored.

    Whatever else may be wrong with a server, or lie behind a proxy, is for its client to say.

    Raises:
        EvaluationError: the connection is refused, or the host is not known.
    """
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        return
    if not host or (getproxies() and not proxy_bypass(host)):
        return
    try:
        socket.create_connection((host, port), timeout=HUB_TIMEOUT).close()
    except (ConnectionRefusedError, socket.gaierror) as error:
        raise EvaluationError(
            f"no server answers at {redacted_text(address)}", hint=UNREACHABLE_HINT
        ) from error
    except OSError:
        return


def _check_quantisation(arguments: Mapping[str, Value]) -> None:
    name, subfolder = str(arguments.get("pretrained") or ""), str(arguments.get("subfolder") or "")
    revision = str(arguments.get("revision") or "main")
    folder = checkpoint_folder(name, revision, subfolder) if name else None
    if folder is not None and not arguments.get("gguf_file"):
        check_quantisation(name, folder / subfolder / _CONFIG_FILE, arguments)


def _model_folder(folder: Path, arguments: Mapping[str, Value]) -> Path:
    """Return the folder that holds the model.

    Raises:
        EvaluationError: if it is not there, or holds none.
    """
    folder /= str(arguments.get("subfolder") or "")
    if not folder.is_dir():
        raise EvaluationError(f"there is no model folder {folder}")
    if not (arguments.get("gguf_file") or (folder / _CONFIG_FILE).is_file()):
        check_model_folder(folder, allow_pickle=True, needed=(_CONFIG_FILE,))
    return folder


def _answers(address: str) -> bool:
    """Whether anything answers there, whatever it says: asked once, through proxies as they are."""
    from huggingface_hub import get_session

    try:
        get_session().head(address, timeout=HUB_TIMEOUT)
    except Exception:  # noqa: BLE001 - of requests or httpx, as the library's version has it
        return False
    return True


def check_hub_model(name: str, arguments: Mapping[str, Value]) -> None:
    """Refuse a hub id that leads nowhere; its config.json, which loading needs, is fetched.

    What else may be wrong with a hub model (no permission, no config.json) loading says better.

    Raises:
        UsageError: if the hub has no such model, or the local cache has none and going online is
            switched off.
        EvaluationError: if it is not in the cache and the hub does not answer.
    """
    from huggingface_hub import constants, hf_hub_download
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    absent = f"there is no folder {name}, and no such model in the local Hugging Face cache"
    revision = str(arguments.get("revision") or "main")
    subfolder = str(arguments.get("subfolder") or "")
    # The library asks six times, aloud, for half a minute, where nothing is there to answer.
    if not constants.HF_HUB_OFFLINE and not _answers(constants.ENDPOINT):
        if hub_snapshot(name, revision, subfolder) is not None:
            return
        raise EvaluationError(f"{absent}; the hub cannot be reached", hint=_ONLINE_HINT)
    try:
        hf_hub_download(name, _CONFIG_FILE, revision=revision, subfolder=subfolder or None)
    except GatedRepoError:
        return
    except RepositoryNotFoundError as error:
        raise UsageError(
            f"there is no folder {name}, and the Hugging Face hub has no such model",
            hint="give a path, or check the hub id (a private model needs a login)",
        ) from error
    except LocalEntryNotFoundError as error:
        if constants.HF_HUB_OFFLINE:
            raise UsageError(
                f"{absent}; HF_HUB_OFFLINE forbids to look further",
                hint="give a path, or unset HF_HUB_OFFLINE",
            ) from error
        raise EvaluationError(f"{absent}; the hub cannot be reached", hint=_ONLINE_HINT) from error
    except (EntryNotFoundError, HfHubHTTPError, HFValidationError, OSError):
        return
