"""Tests of network profiles: their variables, their precedence, and the page about them."""

import re
from pathlib import Path
from typing import Any

import pytest

from ddp_operator.api.network import NetworkProfile
from ddp_operator.builders.network_profiles import PROFILES
from tests.operator.builders.test_env import variables

PAGE = Path(__file__).parents[3] / "docs" / "use" / "network-profiles.md"
ROW = re.compile(
    r"^\| (\w+) \| `(\w+)` \| `([^`]+)` \| \[[^]]+\]\((https://\S+)\) \|$", re.MULTILINE
)


def with_profile(profile: NetworkProfile, **spec: Any) -> dict[str, str]:
    network = spec.pop("network", {})
    return variables(network={"profile": profile.value, **network}, **spec)


@pytest.mark.parametrize("profile", NetworkProfile)
def test_network_profile_sets_its_variables_and_no_others(profile: NetworkProfile) -> None:
    found = with_profile(profile)
    assert {name: found[name] for name in found.keys() - variables().keys()} == dict(
        PROFILES[profile].variables
    )


def test_job_without_a_profile_leaves_the_network_to_nccl() -> None:
    assert not any(name.startswith(("NCCL_", "FI_")) for name in variables())


@pytest.mark.parametrize("profile", NetworkProfile)
def test_variable_of_the_job_takes_precedence_over_that_of_the_profile(
    profile: NetworkProfile,
) -> None:
    for name in PROFILES[profile].variables:
        assert with_profile(profile, env=[{"name": name, "value": "mine"}])[name] == "mine"


def test_other_network_fields_take_precedence_over_the_profile() -> None:
    found = with_profile(NetworkProfile.GCP_TCPX, network={"interface": "eth9"})
    assert found["NCCL_SOCKET_IFNAME"] == "eth9"
    assert with_profile(NetworkProfile.GCP_TCPX)["NCCL_SOCKET_IFNAME"] == "eth0"


def test_no_network_profile_sets_a_variable_of_the_agent() -> None:
    names = {name for profile in PROFILES.values() for name in profile.variables}
    assert not any(name.startswith("DDP_") for name in names)


def test_page_of_network_profiles_lists_each_variable_with_value_and_source() -> None:
    listed = ROW.findall(PAGE.read_text(encoding="utf-8"))
    assert listed == [
        (profile.value, name, value, PROFILES[profile].source)
        for profile in NetworkProfile
        for name, value in PROFILES[profile].variables.items()
    ]
