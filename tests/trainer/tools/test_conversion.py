"""`ddp-trainer convert`: the same bits in each format, and clear refusals."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_model
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict_loader as dcp

from ddp_trainer.checkpoint import snapshot, writer
from ddp_trainer.checkpoint.format import CheckpointName
from ddp_trainer.checkpoint.header import TYPES, read_header
from ddp_trainer.checkpoint.weights import open_weights
from ddp_trainer.commands.main import main
from ddp_trainer.tools.conversion import same_bits
from ddp_trainer.tools.inspection import inspect
from tests.trainer.checkpoint.test_manager import saved, state, whole
from tests.trainer.planted import content
from tests.trainer.runs import opened

TARGETS = {"safetensors": "b.safetensors", "torch": "b.pt", "dcp": "b", "checkpoint": "b"}


def of_all_kinds() -> dict[str, Tensor]:
    """Return tensors of all types that safetensors has, in several layouts."""
    generator = torch.Generator().manual_seed(1)
    found: dict[str, Tensor] = {}
    for kind in TYPES.values():
        dtype = getattr(torch, kind)
        top = 2 if dtype == torch.bool else 256
        size = 24 * dtype.itemsize
        data = torch.randint(0, top, (size,), dtype=torch.uint8, generator=generator).view(dtype)
        found |= {
            f"{kind}.contiguous": data.view(2, 3, 4),
            f"{kind}.transposed": data.view(4, 3, 2).transpose(0, 2),
            f"{kind}.slice": data.view(4, 6)[:, 1:3],
            f"{kind}.scalar": data[5].clone(),
            f"{kind}.empty": data[:0].view(0, 3),
        }
    images = torch.randn(2, 3, 4, 4, generator=generator)
    return found | {"channels_last": images.contiguous(memory_format=torch.channels_last)}


def read(path: Path) -> dict[str, Tensor]:
    weights = open_weights(path)
    tensors = weights.read([name for name, *_ in weights.described])
    return tensors | {name: tensors[first] for name, first in weights.aliases.items()}


def assert_same(found: dict[str, Tensor], given: dict[str, Tensor]) -> None:
    assert found.keys() == given.keys()
    assert [name for name in given if not same_bits(found[name], given[name])] == []


@pytest.mark.parametrize("first", TARGETS)
@pytest.mark.parametrize("second", TARGETS)
def test_each_format_keeps_all_bits_of_all_types_and_layouts(
    tmp_path: Path, first: str, second: str
) -> None:
    tensors = of_all_kinds()
    torch.save(tensors, tmp_path / "source.pt")
    for name, target, source in (("one", first, "source.pt"), ("two", second, "one")):
        arguments = [str(tmp_path / source), str(tmp_path / name), "--to", target]
        assert main(["convert", *arguments]) == 0
    assert_same(read(tmp_path / "two"), tensors)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "source.pt", "two"]


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3, bias=False)
        self.outer = nn.Linear(3, 3, bias=False)
        self.outer.weight = self.inner.weight


def test_tied_weights_are_stored_once_and_restored(tmp_path: Path) -> None:
    model = Tied()
    torch.save(model.state_dict(), tmp_path / "a.pt")
    assert main(["convert", str(tmp_path / "a.pt"), str(tmp_path / "b.safetensors")]) == 0
    header = read_header(tmp_path / "b.safetensors")
    assert [tensor.name for tensor in header.tensors] == ["inner.weight"]
    assert header.metadata == {"format": "pt", "outer.weight": "inner.weight"}
    assert main(["convert", str(tmp_path / "b.safetensors"), str(tmp_path / "c.pt")]) == 0
    restored = torch.load(tmp_path / "c.pt", weights_only=True)
    assert restored["inner.weight"].data_ptr() == restored["outer.weight"].data_ptr()
    Tied().load_state_dict(restored)
    arguments = [str(tmp_path / "a.pt"), str(tmp_path / "d"), "--to", "dcp"]
    assert main(["convert", *arguments]) == 0
    assert_same(read(tmp_path / "d"), dict(model.state_dict()))
    # safetensors' own function keeps the other name.
    save_model(model, str(tmp_path / "e.safetensors"))
    assert main(["convert", str(tmp_path / "e.safetensors"), str(tmp_path / "f.pt")]) == 0
    assert_same(torch.load(tmp_path / "f.pt", weights_only=True), dict(model.state_dict()))


def test_other_programs_read_what_was_written(tmp_path: Path) -> None:
    tensors = {"a.w": torch.randn(3, 4), "b": torch.zeros((), dtype=torch.bfloat16)}
    torch.save({"model": tensors, "epoch": 3}, tmp_path / "a.pt")
    for target, name in TARGETS.items():
        path = tmp_path / target
        path.mkdir()
        assert main(["convert", str(tmp_path / "a.pt"), str(path / name), "--to", target]) == 0
    assert_same(load_file(tmp_path / "safetensors" / "b.safetensors"), tensors)
    assert_same(torch.load(tmp_path / "torch" / "b.pt", weights_only=True), tensors)
    empty = {name: torch.empty_like(tensor) for name, tensor in tensors.items()}
    dcp.load(empty, checkpoint_id=tmp_path / "dcp" / "b", no_dist=True)
    assert_same(empty, tensors)
    found = inspect(tmp_path / "checkpoint" / "b", checksums=True)
    assert (found.sound, found.checkpoints[0].tensors) == (True, 2)


def test_last_weights_or_moving_average_of_a_run_are_converted(tmp_path: Path) -> None:
    taken = snapshot.take(*state(20))
    taken.average = {"weight": torch.full((3, 4), 7.0)}
    (tmp_path / "run").mkdir()
    saved(tmp_path / "run", 10)
    name = CheckpointName(20, 1)
    writer.commit(tmp_path / "run", name, whole(20, taken), lambda: None)
    before = content(tmp_path / "run")
    for weights in ("last", "average"):
        arguments = [str(tmp_path / "run"), str(tmp_path / f"{weights}.safetensors")]
        assert main(["convert", *arguments, "--weights", weights]) == 0
    assert content(tmp_path / "run") == before
    model = load_file(tmp_path / "run" / str(name) / "model.safetensors")
    assert_same(load_file(tmp_path / "last.safetensors"), model)
    averaged = load_file(tmp_path / "average.safetensors")
    assert_same(averaged, model | {"weight": torch.full((3, 4), 7.0)})


@pytest.mark.parametrize("target", TARGETS)
def test_run_starts_with_weights_of_each_format(tmp_path: Path, target: str) -> None:
    settings = {"task": {"tied": True}}
    given = opened(seed=5, **settings).learner.model.state_dict()
    torch.save({"state_dict": given}, tmp_path / "a.pt")
    path = tmp_path / TARGETS[target]
    assert main(["convert", str(tmp_path / "a.pt"), str(path), "--to", target]) == 0
    for source in (path, tmp_path / "a.pt"):
        run = opened(init_from=str(source), **settings)
        assert run.position.step == 0
        assert_same(dict(run.learner.model.state_dict()), dict(given))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["none", "x.pt"], "none is no file of weights, no checkpoint and no DCP folder"),
        (["a.pt", "a.pt"], "a.pt exists; name a new file or folder"),
        (["a.pt", "b/c.pt"], "b does not exist"),
        (["a.pt", "c.onnx"], "set --to, because the suffix of"),
        (["a.pt", "c.pt", "--weights=average"], "a.pt has no moving average"),
        (["a.pt", "c.pt", "--key=ema"], 'a.pt has no entry "ema"; it has w: choose the entry'),
        (["a.pt", "c.pt", "--fast"], "unknown argument --fast"),
        (["c128.pt", "c.safetensors"], 'safetensors has no type torch.complex128 (of "w")'),
    ],
)
def test_wrong_input_is_one_sentence(
    tmp_path: Path,
    arguments: list[str],
    sentence: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.save({"w": torch.zeros(2)}, tmp_path / "a.pt")
    torch.save({"w": torch.zeros(2, dtype=torch.complex128)}, tmp_path / "c128.pt")
    monkeypatch.chdir(tmp_path)
    assert main(["convert", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("convert: ")
    assert sentence in line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.pt", "c128.pt"]
