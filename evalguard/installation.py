"""The package that pip installs: its name, where it came from, and another that has its folder."""

from __future__ import annotations

import functools
import json
import shlex
from pathlib import Path
from urllib.parse import unquote, urlsplit

# On a registry, `evalguard` is another project's package.
DISTRIBUTION = "lm-evalguard"
_NAMESAKE = "evalguard"


def extra_command(extra: str) -> str:
    """Return the command that installs what an extra needs, as evalguard itself was installed.

    From the folder, the wheel or the commit that it came from; where that is gone, the packages.
    """
    origin, editable = _origin()
    if origin is None or not origin:
        words = [f"{DISTRIBUTION}[{extra}]"] if origin is None else _requirements(extra)
    elif origin.startswith("/") and not origin.endswith(".whl"):
        here = "." if Path(origin) == Path.cwd() else origin
        words = [*(["-e"] if editable else []), f"{here}[{extra}]"]
    elif origin.startswith("/"):
        words = [f"{origin}[{extra}]"]
    else:
        words = [f"{DISTRIBUTION}[{extra}] @ {origin}"]
    return f"pip install {' '.join(map(shlex.quote, words))}"


@functools.cache
def _origin() -> tuple[str | None, bool]:
    """Path or address that evalguard was installed from, and whether that is edited in place.

    None: from a registry. "": from a path that is not there any more.
    """
    from importlib import metadata  # it loads much, which --help does without

    try:
        text = metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
    except metadata.PackageNotFoundError:  # its folder is on the path
        source = Path(__file__).absolute().parent.parent
        return (str(source) if (source / "pyproject.toml").is_file() else None), True
    if text is None:
        return None, False
    record = json.loads(text)
    address = urlsplit(record["url"])
    if address.scheme == "file":
        path = unquote(address.path)
        return (path if Path(path).exists() else ""), bool(
            record.get("dir_info", {}).get("editable")
        )
    version = record.get("vcs_info", {})
    pinned = (
        f"{version['vcs']}+{record['url']}@{version['commit_id']}" if version else record["url"]
    )
    return pinned, False


def _requirements(extra: str) -> list[str]:
    """The packages of an extra, as the installed package lists them."""
    from importlib import metadata

    marker = f'extra == "{extra}"'
    listed = metadata.requires(DISTRIBUTION) or ()
    of_extra = [requirement.partition(";") for requirement in listed]
    return [
        name.strip() for name, _, condition in of_extra if marker in condition.replace("'", '"')
    ]


def namesake_note() -> str:
    """What is said where the other project's package lies in the same folder, "" where it does not.

    Both bring a folder and a command `evalguard`: files of one have replaced those of the other.
    """
    namesakes = Path(__file__).parent.parent.glob(f"{_NAMESAKE}-*.dist-info")
    version = next((path.stem.removeprefix(f"{_NAMESAKE}-") for path in namesakes), "")
    if not version:
        return ""
    return (
        f"another project's package {_NAMESAKE} {version} is installed in the same folder, and "
        f"files of both are mixed: pip uninstall {_NAMESAKE} {DISTRIBUTION}, then install "
        f"{DISTRIBUTION} alone"
    )
