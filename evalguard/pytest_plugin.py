"""evalguard in pytest: marker, fixture, options.

Every pytest that finds evalguard installed imports this file: it imports nothing but pytest.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

if TYPE_CHECKING:
    from evalguard.comparison.result import CompareResult

# Under it a comparison travels with the report of its test, from the processes of xdist, too.
PROPERTY = "evalguard"
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
            _check_marker(item, marker)
            if names is not None and "evalguard" not in names:
                names.append("evalguard")
        if skipping and names is not None and "evalguard" in names:
            item.add_marker(skip)


def _check_marker(item: pytest.Item, marker: pytest.Mark) -> None:
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


@pytest.fixture(name="evalguard")
def evalguard_fixture(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Comparisons:
    """Compare models: ``evalguard.check("orig", "port")`` fails the test if the port is worse.

    ``evalguard.compare(...)`` only returns the result; ``evalguard.result`` is that of the marker.
    """

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


# A test neither adds to a history nor sends a run anywhere unless it asks for that.
_TEST_DEFAULTS: Mapping[str, Any] = {"quiet": True, "history": "none", "track": ("none",)}


class Comparisons:
    """Comparisons of one test. The command line's options win over those of the test.

    Attributes:
        result: of the test's marker; None where it has none.
    """

    def __init__(self, *, node: pytest.Item, chosen: Mapping[str, Any], folder: Path) -> None:
        """``chosen``: options of the command line; ``folder``: where run folders go else."""
        self.result: CompareResult | None = None
        self._node, self._chosen, self._folder = node, chosen, folder

    def compare(self, base: str | Path, candidate: str | Path, **options: Any) -> CompareResult:
        """Compare as :func:`evalguard.compare` does; the test decides what that means.

        Raises:
            EvalguardError: nothing is known (see :func:`evalguard.compare`).
        """
        import evalguard
        from evalguard.errors import Interrupted

        own = {"output_path": self._folder, **_TEST_DEFAULTS, **options, **self._chosen}
        try:
            result = evalguard.compare(base, candidate, **own)
        except Interrupted as stopped:
            raise KeyboardInterrupt from stopped
        gate = result.gate
        summary = (
            f"{_side_name(candidate)} against {_side_name(base)}: {gate.state.upper()}, "
            f"{gate.reason}"
        )
        self._node.user_properties.append((PROPERTY, _terminal_text(summary)))
        return result

    def check(self, base: str | Path, candidate: str | Path, **options: Any) -> CompareResult:
        """Compare, and fail the test if the gate does not pass, or if nothing is known."""
        from evalguard.errors import EvalguardError

        try:
            result = self.compare(base, candidate, **options)
        except EvalguardError as error:
            hint = f"\nhint: {error.hint}" if error.hint else ""
            message = _terminal_text(f"no verdict: {error}{hint}")
        else:
            return self._passed(result)
        # Not in the handler: pytest would show the error itself beside this, as it came.
        pytest.fail(message, pytrace=False)

    def _passed(self, result: CompareResult) -> CompareResult:
        if result.exit_code != 0:
            pytest.fail(result.render(width=80, color=False), pytrace=False)
        return result


def _side_name(side: str | Path) -> str:
    return str(side).rstrip("/").rsplit("/", 1)[-1]


def _terminal_text(text: str) -> str:
    """Lines that go to a terminal and to pytest's JUnit file, without secrets."""
    from evalguard.core.redaction import redacted_text

    return "\n".join(map(_terminal_line, redacted_text(text).split("\n")))


def _terminal_line(text: str) -> str:
    """One line without a character that acts on a terminal."""
    return "".join(character if character.isprintable() else " " for character in text)
