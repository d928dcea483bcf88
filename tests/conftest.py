"""Settings that apply to all tests."""

from hypothesis import HealthCheck, settings

from tests.harness.ending import clean_up_when_terminated

# Deadlines are off because a slow machine is no fault of the code. All other settings are
# Hypothesis' defaults.
settings.register_profile(
    "untimed", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("untimed")


def pytest_configure() -> None:
    """Let SIGTERM stop the cluster and the processes that the tests started."""
    clean_up_when_terminated()
