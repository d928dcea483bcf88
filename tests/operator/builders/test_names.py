"""Names and labels of children."""

from hypothesis import given
from hypothesis import strategies as st

from ddp_operator.builders import names
from ddp_operator.builders.service import build_service
from ddp_wire import contract
from tests.operator.support import UID, active_job, new_job

SIZES = st.integers(1, 300) | st.sampled_from([999, 1000, 1001, 9999])


@given(SIZES)
def test_pods_sorted_by_address_are_in_index_order(nodes: int) -> None:
    job = new_job(nodes=nodes)
    addresses = [names.pod_address(job, index) for index in range(nodes)]
    assert sorted(addresses) == addresses
    assert len({names.pod_name(job, index) for index in range(nodes)}) == nodes


@given(SIZES, st.integers(1, 58))
def test_every_host_name_is_a_dns_label(nodes: int, length: int) -> None:
    job = new_job("a" * length, nodes=nodes)
    assert len(names.pod_name(job, nodes - 1)) <= 63
    assert len(names.hostname(job, nodes - 1)) <= 63


@given(SIZES, SIZES)
def test_names_do_not_depend_on_the_size_of_the_job(nodes: int, others: int) -> None:
    job, resized = new_job(nodes=nodes), new_job(nodes=others)
    for index in {0, min(nodes, others) - 1}:
        assert names.pod_name(job, index) == names.pod_name(resized, index) == f"digits-{index}"
        assert names.pod_address(job, index) == names.pod_address(resized, index)


@given(SIZES, st.integers(1, 999_999_999))
def test_generation_is_in_the_name_of_a_pod_and_not_in_its_host_name(
    nodes: int, generation: int
) -> None:
    job = new_job("a-g7", nodes=nodes)
    name = names.pod_name(job, nodes - 1, generation)
    assert names.generation_of(name) == generation
    assert name.startswith(names.pod_name(job, nodes - 1))
    assert names.generation_of(names.hostname(job, nodes - 1)) == 1


def test_pods_of_an_older_operator_keep_their_padded_names() -> None:
    job = active_job(nodes=11, status={"pods": None})
    assert names.pod_name(job, 9) == "digits-09"
    assert names.pod_address(job, 9) == "digits-09.digits"


def test_pod_address_is_its_host_name_under_the_headless_service() -> None:
    job = new_job(nodes=2)
    assert names.pod_address(job, 1) == "digits-0001.digits"
    assert names.service_name(job) == "digits"


def test_selector_uses_the_uid_of_the_job_instead_of_its_name() -> None:
    job = new_job()
    assert names.pod_selector(job) == {contract.LABEL_JOB_UID: UID}
    assert names.pod_selector(job).items() <= names.labels(job).items()


def test_children_have_their_job_as_owner() -> None:
    assert names.owner_reference(new_job()) == {
        "apiVersion": "ddp-trainer.dev/v1alpha1",
        "kind": "DDPJob",
        "name": "digits",
        "uid": UID,
        "controller": True,
        "blockOwnerDeletion": False,
    }


def test_service_is_headless_and_publishes_pods_before_they_are_ready() -> None:
    job = new_job()
    service = build_service(job)
    assert service["kind"] == "Service"
    assert service["metadata"]["namespace"] == "team-a"
    assert service["metadata"]["ownerReferences"] == [names.owner_reference(job)]
    assert service["metadata"]["labels"] == names.labels(job)
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert service["spec"]["selector"] == names.pod_selector(job)
