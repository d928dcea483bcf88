"""A pytest plugin that prints one line per case and a summary instead of dots.

    pytest -p tests.fault_player.report -q -m api

A test belongs to a numbered case if its name contains `case_NN`. docs/fault-matrix.md lists the
numbers.
"""

import re
from collections import Counter
from collections.abc import Generator

import pytest

_CASE = re.compile(r"case_(\d+(?:_and_\d+)*)_")
_ENVIRONMENTS = (("cluster", "two nodes"), ("api", "API server"))
_REASON_LINES = 40
_PHASES = {"setup", "call", "teardown"}


class CaseReport:
    """Collects the result of each test and prints it in one line."""

    def __init__(self) -> None:
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
            self._print(item, line(item, outcome, self._seconds[key]))
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
        """Print the number of cases by result."""
        counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(self.figures.items()))
        terminalreporter.write_line(f"cases: {counts or 'none'}")


def line(item: pytest.Item, outcome: str, seconds: float) -> str:
    """Return number, environment, fault, result and seconds of a case in one line."""
    number, fault = number_and_fault(item.name)
    environment = next((name for mark, name in _ENVIRONMENTS if item.get_closest_marker(mark)), "-")
    return f"{number:>7}  {environment:<10}  {fault:<76}  {outcome:<6}  {seconds:6.1f} s"


def reason(report: pytest.TestReport) -> str:
    """Return why a test failed. Printed at once, because an interrupted part lists no failures."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = report.longreprtext if crash is None else f"{crash.path}:{crash.lineno}: {crash.message}"
    return "\n".join(f"         {part}" for part in text.splitlines()[:_REASON_LINES])


def number_and_fault(test: str) -> tuple[str, str]:
    """Return the case's number, or a dash, and its fault in words."""
    name = test.removeprefix("test_")
    match = _CASE.match(name)
    if match is None:
        return "-", name.replace("_", " ")
    return match[1].replace("_and_", "+"), name[match.end() :].replace("_", " ")


def pytest_configure(config: pytest.Config) -> None:
    """Register the plugin."""
    config.pluginmanager.register(CaseReport(), "case-report")
