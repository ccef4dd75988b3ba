# SPDX-License-Identifier: Apache-2.0
"""Where torch lets Python write a backend, the same methods are one."""

from __future__ import annotations

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
