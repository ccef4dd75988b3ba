# SPDX-License-Identifier: Apache-2.0
"""Where torch lets Python write a backend, the same methods are one."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from torch_system import Ranks, TorchSystem, all_well

torch = pytest.importorskip(
    "torch", reason="needs torch: pip install 'p4reduce[torch]', or make test-torch"
)


def lets_python_write_backends() -> bool:
    try:
        torch._C._distributed_c10d.Backend(0, 1)
    except TypeError:  # no constructor
        return False
    return True


@pytest.mark.skipif(not lets_python_write_backends(), reason="needs torch 2.14: backends in Python")
@pytest.mark.timeout(300)
def test_a_backend_of_backend_base_does_what_the_group_does(
    system: TorchSystem, tmp_path: Path
) -> None:
    ended = Ranks(system, 3, ["backend_base.py"], tmp_path / "ranks").wait()
    all_well(ended)
    for one in ended:
        (record,) = one.records
        assert record.pop("is_backend")
        for what, (got, right) in record.items():
            close = pytest.approx(right, rel=1e-4, abs=1e-3)  # sums of float32, in another order
            assert got == (close if what == "hook" else right), what
    assert len(ended) == 3


def test_without_backend_base_it_is_a_process_group() -> None:
    from p4reduce.torch.group import P4ReduceGroup
    from p4reduce.torch.python_backend import group_class

    if hasattr(torch.distributed, "BackendBase"):
        assert issubclass(group_class(), torch.distributed.BackendBase)
    else:
        assert group_class() is P4ReduceGroup


def test_an_argument_that_is_given_twice_is_refused() -> None:
    """It was left out without a word: torch's own signatures have no such form."""
    from p4reduce.torch.table import METHODS

    tensor, options = torch.zeros(3), torch.distributed.AllreduceOptions()
    low, high, second = torch.distributed.ReduceOp.MIN, torch.distributed.ReduceOp.MAX, timedelta(1)
    bind = METHODS["allreduce"].bind
    for positional, named in (
        ((tensor,), {"opts": options, "op": low}),
        ((tensor, options), {"timeout": second}),
        ((tensor, low), {"op": high}),
    ):
        with pytest.raises(TypeError, match=r"beside them|by place and by name"):
            bind(positional, named)
    assert bind((tensor, low, second), {})[1].timeout == second
    assert bind((tensor, None), {"timeout": second})[1].timeout == second


def test_torchs_own_rendezvous_works_without_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """`torch.distributed.rpc` gives none. Importing torch puts p4reduce's handler in its place."""
    place = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    _, rank, size = next(torch.distributed.rendezvous("env://"))
    assert (rank, size) == (0, 1)
