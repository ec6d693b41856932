"""The hooks of pytest. This module is imported by every pytest that finds evalguard installed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from evalguard.pytest_plugin import PROPERTY

if TYPE_CHECKING:
    from evalguard.pytest_plugin.comparisons import Comparisons

_MARKER = (
    "evalguard(base, candidate, **options): the candidate must pass the gate of a comparison with "
    "its base, or the test fails before it begins; options as of evalguard.compare."
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options, and one key of the ini file."""
    group = parser.getgroup("evalguard", "evalguard: comparisons of language models")
    group.addoption(
        "--evalguard-config", metavar="FILE", help="Guard file. Default: as evalguard_config says."
    )
    group.addoption(
        "--evalguard-limit",
        type=float,
        metavar="N",
        help="Only the first N documents of each task, or a share below 1.",
    )
    group.addoption(
        "--evalguard-strict", action="store_true", help="An undecided comparison fails."
    )
    group.addoption(
        "--evalguard-output",
        metavar="FOLDER",
        help="Where run folders go. Default: pytest's temporary folder.",
    )
    group.addoption("--evalguard-cache", metavar="FOLDER", help="Where finished scores are kept.")
    group.addoption(
        "--evalguard-skip", action="store_true", help="Skip every test that compares models."
    )
    parser.addini("evalguard_config", "Guard file of comparisons, from the folder of the ini file.")


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known, for --strict-markers and --markers."""
    config.addinivalue_line("markers", _MARKER)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give marked tests the fixture, and refuse marks that could not be heeded."""
    skip = pytest.mark.skip(reason="--evalguard-skip")
    skipping = config.getoption("--evalguard-skip")
    for item in items:
        marker = item.get_closest_marker("evalguard")
        names = getattr(item, "fixturenames", None)
        if marker is not None:
            _check(item, marker)
            if names is not None and "evalguard" not in names:
                names.append("evalguard")
        if skipping and names is not None and "evalguard" in names:
            item.add_marker(skip)


def _check(item: pytest.Item, marker: pytest.Mark) -> None:
    """Refuse what would make a marked test pass without a comparison.

    Raises:
        pytest.UsageError: with what to write instead.
    """
    if not isinstance(item, pytest.Function) or hasattr(item.cls, "assertEqual"):
        raise pytest.UsageError(
            f"{item.nodeid}: the evalguard marker works on test functions, and on methods of "
            "classes that are no unittest.TestCase"
        )
    given = len(marker.args) + len({"base", "candidate"} & marker.kwargs.keys())
    if given != 2 or len(marker.args) > 2:
        raise pytest.UsageError(
            f"{item.nodeid}: the evalguard marker takes a base and a candidate: "
            '@pytest.mark.evalguard("orig", "port", limit=500)'
        )


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    """Before a marked test begins: its comparison, which fails it or lets it run."""
    marker = pyfuncitem.get_closest_marker("evalguard")
    if marker is not None:
        comparisons = cast("Comparisons", pyfuncitem.funcargs["evalguard"])
        comparisons.result = comparisons.check(*marker.args, **marker.kwargs)


@pytest.fixture
def evalguard(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Comparisons:
    """Compare models: ``evalguard.check("orig", "port")`` fails the test if the port is worse.

    ``evalguard.compare(...)`` only returns the result; ``evalguard.result`` is that of the marker.
    """
    from evalguard.pytest_plugin.comparisons import Comparisons

    option = request.config.getoption
    ini = request.config.getini("evalguard_config")
    root = request.config.inipath.parent if request.config.inipath else request.config.rootpath
    config = option("--evalguard-config") or (str(root / ini) if ini else None)
    given = {
        "config": config,
        "limit": option("--evalguard-limit"),
        "strict": option("--evalguard-strict") or None,
        "cache_dir": option("--evalguard-cache"),
        "output_path": option("--evalguard-output"),
    }
    return Comparisons(
        node=request.node,
        chosen={name: value for name, value in given.items() if value is not None},
        folder=Path(tmp_path_factory.getbasetemp()) / "evalguard",
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A line for each comparison that was made, those of xdist's processes too."""
    lines = [
        f"{report.nodeid}  {text}"
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", "") == "call"
        for name, text in report.user_properties
        if name == PROPERTY
    ]
    if lines:
        terminalreporter.section("evalguard")
        for line in sorted(lines):
            terminalreporter.write_line(line)
