import pytest

from tests.trainer.user_tasks.drives import FIGURES, SEED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the results of all task runs of this process."""
    if not FIGURES:
        return
    terminalreporter.section(f"tasks as users write them, SEED={SEED}")
    for name in sorted({figure.drive for figure in FIGURES}):
        drive = [figure for figure in FIGURES if figure.drive == name]
        tasks = len({figure.task for figure in drive})
        compared = [figure for figure in drive if figure.difference is not None]
        largest = max(compared, key=lambda figure: figure.difference or 0.0, default=None)
        found = f", largest difference {largest.difference:.1e} ({largest.task})" if largest else ""
        terminalreporter.write_line(f"{name}: {tasks} tasks, {len(drive)} test runs{found}")
    tasks = len({figure.task for figure in FIGURES})
    terminalreporter.write_line(f"in all: {tasks} tasks, {len(FIGURES)} test runs")
