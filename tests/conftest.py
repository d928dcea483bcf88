"""What holds for all tests."""

from hypothesis import HealthCheck, settings

from tests.harness.ending import clean_up_when_terminated

# A test that fails because the machine was slow says nothing about the code. The rest is as
# Hypothesis has it, by hand and in CI.
settings.register_profile(
    "untimed", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("untimed")


def pytest_configure() -> None:
    """Ended by SIGTERM, a run stops the cluster and the processes that its tests started."""
    clean_up_when_terminated()
