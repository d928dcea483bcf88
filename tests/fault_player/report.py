"""A pytest plugin that prints one line per test and a summary instead of dots.

    pytest -p tests.fault_player.report -q -m api

The line of a test that docs/develop/fault-matrix.md names begins with the fault. With `--faults`
only those tests run, and those marked `sweep`.
"""

from collections import Counter
from collections.abc import Container, Generator

import pytest

from tests.fault_player import matrix

_ENVIRONMENTS = (("cluster", "two nodes"), ("api", "API server"))
_REASON_LINES = 40
_PHASES = {"setup", "call", "teardown"}


class FaultReport:
    """Collects the result of each test and prints it in one line."""

    def __init__(self) -> None:
        self._titles = matrix.titles()
        self._outcomes: dict[str, str] = {}
        self._reasons: dict[str, str] = {}
        self._seconds: Counter[str] = Counter()
        self.figures: Counter[str] = Counter()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Record each phase of a test, and print its line after the last phase."""
        report = yield
        key = item.nodeid
        self._seconds[key] += report.duration  # type: ignore[assignment]
        if report.failed:
            self._outcomes[key] = "FAILED"
            self._reasons.setdefault(key, reason(report))
        elif report.skipped:
            self._outcomes[key] = "skipped"
        if report.when == "teardown":
            outcome = self._outcomes.get(key, "ok")
            self.figures[outcome] += 1
            title = self._titles.get(matrix.without_parameters(key), "")
            self._print(item, line(item, title, outcome, self._seconds[key]))
            if key in self._reasons:
                self._print(item, self._reasons[key])
        return report

    @staticmethod
    def _print(item: pytest.Item, text: str) -> None:
        terminal = item.config.pluginmanager.get_plugin("terminalreporter")
        if terminal is not None:
            terminal.write_line(text)

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Suppress the dots. pytest still lists failures at the end."""
        if report.when not in _PHASES:
            return None
        if report.failed:
            return "failed" if report.when == "call" else "error", "", ""
        if report.when == "call":
            return "passed", "", ""
        return "", "", ""

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the number of tests by result."""
        counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(self.figures.items()))
        terminalreporter.write_line(f"tests: {counts or 'none'}")


def line(item: pytest.Item, title: str, outcome: str, seconds: float) -> str:
    """Return environment, result, seconds, and fault and name of a test in one line."""
    environment = next((name for mark, name in _ENVIRONMENTS if item.get_closest_marker(mark)), "-")
    what = f"{title}: {item.name}" if title else item.name
    return f"{environment:<10}  {outcome:<7}  {seconds:6.1f} s  {what}"


def reason(report: pytest.TestReport) -> str:
    """Return why a test failed, to print it at once: an interrupted part lists no failures."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = report.longreprtext if crash is None else f"{crash.path}:{crash.lineno}: {crash.message}"
    return "\n".join(f"         {part}" for part in text.splitlines()[:_REASON_LINES])


def selected(items: list[pytest.Item], titles: Container[str]) -> list[pytest.Item]:
    """Return the tests that the matrix names, and those marked `sweep`."""
    return [
        item
        for item in items
        if matrix.without_parameters(item.nodeid) in titles or item.get_closest_marker("sweep")
    ]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that selects tests."""
    parser.addoption("--faults", action="store_true", help="only tests of faults and sweeps")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Apply the option."""
    if config.getoption("--faults"):
        kept = selected(items, matrix.titles())
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept


def pytest_configure(config: pytest.Config) -> None:
    """Register the plugin."""
    config.pluginmanager.register(FaultReport(), "fault-report")
