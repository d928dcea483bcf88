"""The command of each rank, taken from the command of a pod."""

import pytest

from ddp_operator.conversion.launchers import read_launch


@pytest.mark.parametrize(
    ("argv", "command", "ranks"),
    [
        (["torchrun", "demo.py"], ["python", "demo.py"], None),
        (
            ["torchrun", "--nproc_per_node=4", "--nnodes", "2", "a.py", "--lr", "1"],
            ["python", "a.py", "--lr", "1"],
            "4",
        ),
        (
            ["python", "-m", "torch.distributed.run", "/w/a.py", "--arch=x", "/data"],
            ["python", "/w/a.py", "--arch=x", "/data"],
            None,
        ),
        (
            ["python3.11", "-m", "torch.distributed.launch", "--nproc-per-node", "gpu", "a.py"],
            ["python", "a.py"],
            "gpu",
        ),
        (["/usr/bin/torchrun", "-m", "pkg.train", "-x"], ["python", "-m", "pkg.train", "-x"], None),
        (["torchrun", "--no-python", "train.sh", "-x"], ["train.sh", "-x"], None),
        (["torchrun", "--standalone", "--tee", "3", "a.py"], ["python", "a.py"], None),
        (
            ["bash", "-c", "torchrun --nproc_per_node 2 a.py --name 'a b'"],
            ["python", "a.py", "--name", "a b"],
            "2",
        ),
    ],
)
def test_torchrun_and_its_arguments_are_taken_away(
    argv: list[str], command: list[str], ranks: str | None
) -> None:
    launch = read_launch(argv)
    assert launch is not None
    assert (launch.command, launch.by_torchrun, launch.ranks) == (command, True, ranks)


@pytest.mark.parametrize(
    "argv",
    [
        ["python", "train.py", "--epochs=1"],
        ["python", "-m", "pkg.train"],
        ["python3", "-c", "print(1)"],
        ["/app/train"],
    ],
)
def test_program_that_is_one_rank_stays_as_it_is(argv: list[str]) -> None:
    launch = read_launch(argv)
    assert launch is not None
    assert (launch.command, launch.by_torchrun) == (argv, False)


@pytest.mark.parametrize(
    "script", ["pip install x && torchrun a.py", "cd /app; python a.py", "python a.py $ARGS"]
)
def test_shell_script_is_not_taken_apart(script: str) -> None:
    assert read_launch(["sh", "-c", script]) is None
