"""The table of the size benchmark marks a missed goal."""

import random

from bench.scale.conduct import Conduct
from bench.scale.goals import (
    of_bare_client,
    of_many_jobs,
    of_neighbours,
    of_one_job,
    of_policy,
    of_starts,
    table,
)
from bench.scale.loads import ManyJobs, OneJob
from bench.scale.neighbours import Neighbours
from bench.scale.policy import PolicyCost
from bench.scale.starts import Starts


def test_one_api_request_too_many_misses_the_goal() -> None:
    figures = of_one_job(OneJob(nodes=1000, requests=1009))
    assert [one.name for one in figures if one.missed] == ["requests to Running"]
    assert "| 1 job x 1,000 pods | requests to Running | 1,009  (missed) | 1,008 |" in table(
        figures
    )


def test_figures_equal_to_their_goals_miss_no_goal() -> None:
    many = ManyJobs(1000, 4, status_p99=1.0, resident_megabytes=256.0, cores=0.3)
    many.megabytes_before, many.megabytes_after = 100.0, 120.0
    assert not [one for one in of_many_jobs(many) if one.missed]
    assert not [one for one in of_one_job(OneJob(1000, requests=1008)) if one.missed]
    assert not [one for one in of_bare_client(1000, [6.0, 6.0], [5.0, 5.0]) if one.missed]


def test_operator_slower_than_the_bare_client_misses_the_goal() -> None:
    figures = of_bare_client(10, [6.1, 6.2, 6.3], [5.0, 5.0, 5.0])
    assert [one.missed for one in figures] == [False, True]


def test_slow_admission_of_the_operators_requests_misses_the_goal() -> None:
    seconds = {("the operator", True): [4.0], ("the operator", False): [2.0]}
    seconds |= {("an administrator", True): [2.0], ("an administrator", False): [2.0]}
    missed = [one.name for one in of_policy(PolicyCost(1000, seconds)) if one.missed]
    assert missed == ["as a multiple of that without the policy, by the operator"]


def test_one_small_job_that_waits_too_long_misses_the_scale_goal() -> None:
    missed = [one.name for one in of_starts(Starts([0.1, 2.1, 0.1], 20.0)) if one.missed]
    assert missed == ["apply to first pod, longest"]
    assert not [one for one in of_starts(Starts([0.1, 2.0], 20.0)) if one.missed]


def beside(factor: float) -> list[str]:
    """Return the missed goals when hostile jobs slow a new job down by a factor."""
    draw = random.Random(1)  # noqa: S311 (samples)
    found = Neighbours(crowd_jobs=100)
    for conduct in (None, Conduct.SILENT, Conduct.HOSTILE):
        slower = factor if conduct is Conduct.HOSTILE else 1.0
        found.created[conduct] = [slower * draw.uniform(0.02, 0.04) for _ in range(24)]
        found.running[conduct] = [slower * draw.uniform(0.06, 0.12) for _ in range(24)]
    return [one.name for one in of_neighbours(found) if one.missed]


def test_ratio_misses_its_goal_only_if_its_whole_interval_does() -> None:
    assert beside(1.0) == []
    assert beside(2.0) == [
        "last pod created, as a multiple of alone",
        "Running, as a multiple of alone",
    ]
