"""The modules under DDP and FSDP: two processes take the steps that one takes with both halves."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import needs
import pytest

from pytorch.problem import ct, torch

pytestmark = pytest.mark.skipif(torch is None, reason=needs.REASONS["torch"])

WRAPS = ("DDP", "FSDP1", "FSDP2")
KINDS = ("LSTM", "PeepholeLSTM", "CudnnRNN")
STEPS, BATCH = 3, 4


class Model(torch.nn.Module if torch else object):  # type: ignore[misc]
    """A recurrent net and an output layer."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net, self.out = getattr(ct, kind)(3, 4, num_layers=2), torch.nn.Linear(4, 2)

    def forward(self, x: Any) -> Any:
        return self.out(self.net(x)[0])


def train(model: Any, rows: slice) -> None:
    """Take some steps with a part of the batch."""
    torch.manual_seed(1)
    x, y = torch.randn(5, BATCH, 3)[:, rows], torch.randn(5, BATCH, 2)[:, rows]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(STEPS):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()


def wrapped(model: Any, wrap: str) -> Any:
    if wrap == "DDP":
        return torch.nn.parallel.DistributedDataParallel(model)
    if wrap == "FSDP1":
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

        model.net = FSDP(model.net, device_id=torch.device("cpu"))
        return FSDP(model, device_id=torch.device("cpu"))
    from torch.distributed.fsdp import fully_shard

    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2,))
    fully_shard(model.net, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def whole(model: Any) -> list[Any]:
    """Return all parameters of one process."""
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

    if isinstance(model, FSDP):
        with FSDP.summon_full_params(model):
            return [p.detach().clone() for p in model.parameters()]
    found = [p.detach() for p in model.parameters()]
    return [p.full_tensor() if hasattr(p, "full_tensor") else p for p in found]


def main(rank: int, folder: str) -> None:
    """Run as one of the two processes."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2
    )
    half = BATCH // 2
    found = {}
    for wrap in WRAPS:
        for kind in KINDS:
            model = wrapped(Model(kind), wrap)
            train(model, slice(rank * half, (rank + 1) * half))
            found[f"{wrap} {kind}"] = whole(model)
    torch.save(found, f"{folder}/{rank}.pt")
    torch.distributed.barrier()
    # PyTorch keeps threads of gloo even after destroy_process_group. One that asks for the GIL
    # while Python ends aborts the process, so the process ends without Python's shutdown.
    os._exit(0)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Return the parameters after training in each of two processes."""
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("needs PyTorch with gloo")
    folder = tmp_path_factory.mktemp("meeting")
    paths = [str(Path(__file__).parents[1]), str(Path(ct.__file__).parents[2])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    processes = [
        subprocess.Popen([sys.executable, __file__, str(rank), str(folder)], env=env,
                         stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]  # fmt: skip
    try:
        ends = [process.communicate(timeout=300)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert all(process.returncode == 0 for process in processes), "\n".join(ends)
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("wrap", WRAPS)
@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_train_as_one(results: Any, kind: str, wrap: str) -> None:
    model = Model(kind)
    before = [p.detach().clone() for p in model.parameters()]
    train(model, slice(None))
    expected = [p.detach() for p in model.parameters()]
    assert all((a - b).abs().max() > 1e-4 for a, b in zip(before, expected, strict=True))
    for found in results:
        flat = torch.cat([p.flatten() for p in found[f"{wrap} {kind}"]])
        torch.testing.assert_close(flat, torch.cat([p.flatten() for p in expected]))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
