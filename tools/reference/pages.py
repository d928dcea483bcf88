"""Build the pages of docs/reference about settings, commands, exit codes and variables."""

from tools.reference.cli_page import build_cli_page
from tools.reference.environment_page import build_environment_page
from tools.reference.exit_codes_page import build_exit_codes_page
from tools.reference.settings_page import build_settings_page


def build_pages() -> dict[str, str]:
    """Return the pages as Markdown, by file name."""
    return {
        "cli.md": build_cli_page(),
        "environment.md": build_environment_page(),
        "exit-codes.md": build_exit_codes_page(),
        "settings.md": build_settings_page(),
    }
