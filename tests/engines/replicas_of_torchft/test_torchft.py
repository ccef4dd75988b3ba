# SPDX-License-Identifier: Apache-2.0
"""torchft over the switch: its process group, its Manager with a lighthouse, killed replicas."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from needed import DEADLINE, marked, needs
from p4reduce import launch

pytestmark = [
    pytest.mark.engines,
    needs(packages=("torch", "torchft")),
]
REPLICAS = 4
PROGRAM = Path(__file__).with_name("replicas.py")
SECONDS = timedelta(seconds=60)


@pytest.fixture(scope="module")
def variables() -> Iterator[dict[str, str]]:
    """A network that outlives each replica."""
    with marked() as environment, launch.start(ranks=8, unix=True) as network:
        yield {**environment, **network.variables}


@pytest.fixture
def network(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, for groups in threads of this process."""
    for name, value in variables.items():
        if name.startswith("P4REDUCE_"):
            monkeypatch.setenv(name, value)


@pytest.fixture
def store() -> Any:
    import torch.distributed as dist

    return dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)


@contextmanager
def lighthouse(replicas: int) -> Iterator[str]:
    """torchft's, which counts a replica as lost after five seconds."""
    from torchft.coordination import LighthouseServer

    server = LighthouseServer(
        bind="127.0.0.1:0", min_replicas=replicas, heartbeat_timeout_ms=5000, join_timeout_ms=5000
    )
    try:
        yield server.address()
    finally:
        server.shutdown()


class Groups:
    """Some replicas' process groups, each with a thread that uses it."""

    def __init__(self, store: Any, count: int) -> None:
        from p4reduce.torch.ft import ProcessGroupP4Reduce

        self.port = store.port
        self.all = [ProcessGroupP4Reduce(SECONDS) for _ in range(count)]
        self._pool = ThreadPoolExecutor(count)
        self._epoch = 0

    def run(self, function: Callable[[Any, int], Any], ranks: list[int]) -> list[Any]:
        """Call a function with the groups of these replicas, and their ranks among them."""
        calls = [
            self._pool.submit(function, self.all[replica], rank)
            for rank, replica in enumerate(ranks)
        ]
        return [call.result(DEADLINE) for call in calls]

    def configure(self, replicas: list[int]) -> None:
        """Give each its new place, as a Manager does."""
        self._epoch += 1
        address = f"localhost:{self.port}/{self._epoch}"
        self.run(functools.partial(_configure, address, len(replicas)), replicas)

    def close(self) -> None:
        # Together: each waits until the others have all results.
        list(self._pool.map(lambda group: group.shutdown(), self.all))
        self._pool.shutdown()


def _configure(address: str, size: int, group: Any, rank: int) -> None:
    from torchft.process_group import reconfigure_with_store

    reconfigure_with_store(group, address, rank, size)


@contextmanager
def groups(store: Any, count: int) -> Iterator[Groups]:
    made = Groups(store, count)
    try:
        yield made
    finally:
        made.close()


# -- The collectives that torchft's interface names ------------------------------------------------


def allreduce(group: Any, rank: int) -> None:
    import torch
    from torch.distributed import ReduceOp

    tensor = torch.full((1000,), float(rank + 1))
    group.allreduce([tensor], ReduceOp.SUM).wait()
    assert tensor.tolist() == [float(_sum(group.size()))] * 1000


def allreduce_coalesced(group: Any, rank: int) -> None:
    import torch
    from torch.distributed.distributed_c10d import AllreduceCoalescedOptions

    one, other = torch.full((3,), float(rank + 1)), torch.full((2, 2), rank + 1.0)
    group.allreduce_coalesced([one, other], AllreduceCoalescedOptions()).wait()
    assert one.tolist() == [float(_sum(group.size()))] * 3
    assert other.tolist() == [[float(_sum(group.size()))] * 2] * 2


def allgather(group: Any, rank: int) -> None:
    import torch
    from torch.distributed.distributed_c10d import AllgatherOptions

    outputs = [torch.zeros(2) for _ in range(group.size())]
    group.allgather([outputs], [torch.tensor([rank, -1.5])], AllgatherOptions()).wait()
    assert [one.tolist() for one in outputs] == [[r, -1.5] for r in range(group.size())]


def allgather_into_tensor_coalesced(group: Any, rank: int) -> None:
    import torch
    from torch.distributed.distributed_c10d import AllgatherOptions

    size = group.size()
    outputs = [torch.zeros(size, dtype=torch.int64), torch.zeros(2 * size)]
    inputs = [torch.tensor([rank]), torch.tensor([rank + 0.5, 7.0])]
    group.allgather_into_tensor_coalesced(outputs, inputs, AllgatherOptions()).wait()
    assert outputs[0].tolist() == list(range(size))
    assert outputs[1].tolist() == [number for r in range(size) for number in (r + 0.5, 7.0)]


def alltoall_base(group: Any, rank: int) -> None:
    import torch
    from torch.distributed.distributed_c10d import AllToAllOptions

    size = group.size()
    output, ones = torch.zeros(size), [1] * size
    tensor = torch.arange(size) + 10.0 * rank
    group.alltoall_base(output, tensor, ones, ones, AllToAllOptions()).wait()
    assert output.tolist() == [10.0 * other + rank for other in range(size)]


def barrier(group: Any, rank: int) -> None:
    from torch.distributed.distributed_c10d import BarrierOptions

    group.barrier(BarrierOptions()).wait()


def broadcast(group: Any, rank: int) -> None:
    import torch
    from torch.distributed.distributed_c10d import BroadcastOptions

    options = BroadcastOptions()
    options.rootRank = group.size() - 1
    tensor = torch.full((5,), rank)
    group.broadcast([tensor], options).wait()
    assert tensor.tolist() == [group.size() - 1] * 5


def broadcast_one(group: Any, rank: int) -> None:
    import torch

    tensor = torch.full((5,), rank + 3)
    group.broadcast_one(tensor, 0).wait()
    assert tensor.tolist() == [3] * 5


def reduce_scatter(group: Any, rank: int) -> None:
    import torch
    from torch.distributed.distributed_c10d import ReduceScatterOptions

    size = group.size()
    output, inputs = torch.zeros(2), [torch.full((2,), float(r)) for r in range(size)]
    group.reduce_scatter([output], [inputs], ReduceScatterOptions()).wait()
    assert output.tolist() == [rank * size] * 2


def reduce_scatter_tensor_coalesced(group: Any, rank: int) -> None:
    import torch
    from torch.distributed.distributed_c10d import ReduceScatterOptions

    size = group.size()
    outputs = [torch.zeros(1), torch.zeros(1)]
    inputs = [torch.arange(size) + 0.0, torch.arange(size) + 5.0]
    group.reduce_scatter_tensor_coalesced(outputs, inputs, ReduceScatterOptions()).wait()
    assert [one.item() for one in outputs] == [rank * size, (rank + 5) * size]


def send_and_recv(group: Any, rank: int) -> None:
    import torch

    tensor = torch.tensor([float(rank)])
    if rank:
        group.recv([tensor], rank - 1, 4).wait()
        assert tensor.item() == rank - 1
    if rank + 1 < group.size():
        group.send([torch.tensor([float(rank)])], rank + 1, 4).wait()


def _sum(size: int) -> int:
    return size * (size + 1) // 2


COLLECTIVES = (
    allreduce,
    allreduce_coalesced,
    allgather,
    allgather_into_tensor_coalesced,
    alltoall_base,
    barrier,
    broadcast,
    broadcast_one,
    reduce_scatter,
    reduce_scatter_tensor_coalesced,
    send_and_recv,
)


@pytest.mark.usefixtures("network")
def test_every_collective_of_one_three_and_two_replicas(store: Any) -> None:
    with groups(store, 3) as made:
        for replicas in ([1], [0, 1, 2], [2, 0]):
            made.configure(replicas)
            for collective in COLLECTIVES:
                made.run(collective, replicas)
            assert [made.all[replica].errored() for replica in replicas] == [None] * len(replicas)


def _error_of(collective: Callable[[Any, int], None], group: Any, rank: int) -> str:
    with pytest.raises(RuntimeError) as caught:
        collective(group, rank)
    return str(caught.value)


@pytest.mark.usefixtures("network")
@pytest.mark.parametrize("collective", COLLECTIVES[:-1], ids=lambda one: one.__name__)
def test_an_aborted_replica_is_an_error_on_the_others_and_they_continue(
    collective: Callable[[Any, int], None], store: Any
) -> None:
    with groups(store, 3) as made:
        made.configure([0, 1, 2])
        made.run(collective, [0, 1, 2])
        made.all[2].abort()
        assert "abort" in str(made.all[2].errored())
        for error in made.run(functools.partial(_error_of, collective), [0, 1]):
            assert "rank 2" in error
        assert all("rank 2" in str(made.all[replica].errored()) for replica in (0, 1))
        made.configure([1, 0])
        made.run(collective, [1, 0])
        made.configure([0, 1, 2])
        made.run(collective, [0, 1, 2])
        assert [group.errored() for group in made.all] == [None] * 3


@pytest.mark.usefixtures("network")
def test_a_replica_keeps_its_port_whatever_its_rank(store: Any) -> None:
    with groups(store, 3) as made:
        made.configure([0, 1, 2])
        before = [group.parent.interface for group in made.all]
        assert len(set(before)) == 3
        made.configure([2, 1, 0])
        made.configure([1, 2])
        assert [made.all[replica].parent.interface for replica in (1, 2)] == before[1:]
        made.run(allreduce, [1, 2])


@pytest.mark.usefixtures("network")
def test_what_is_in_flight_ends_when_the_group_is_aborted(store: Any) -> None:
    import torch
    from torch.distributed import ReduceOp

    with groups(store, 2) as made:
        made.configure([0, 1])
        work = made.all[0].allreduce([torch.ones(10)], ReduceOp.SUM)  # the other calls nothing
        made.all[0].abort()
        with pytest.raises(RuntimeError, match="closed"):
            work.wait()
        with pytest.raises(RuntimeError, match="aborted"):
            made.all[0].allreduce([torch.ones(10)], ReduceOp.SUM)


def _configure_alone(uuid: int, group: Any, other: Any) -> None:
    """Give a group a place beside another one, which is given none."""
    from torchft.process_group import ReconfigureOptions

    options = ReconfigureOptions()
    options.uuid = uuid
    options.handles = [one.get_reconfigure_handle() for one in (group, other)]
    group.reconfigure(options)


@pytest.mark.usefixtures("network")
def test_a_reconfiguration_without_the_other_ends_by_its_timeout_or_abort(store: Any) -> None:
    with groups(store, 2) as made:
        made.all[0].set_timeout(timedelta(seconds=1))
        with pytest.raises(RuntimeError, match="rank 1 of 2 did not come"):
            _configure_alone(1, *made.all)
        made.all[0].set_timeout(SECONDS)
        aborting = threading.Timer(0.5, made.all[0].abort)
        aborting.start()
        with pytest.raises(RuntimeError, match="aborted while the replicas formed a group"):
            _configure_alone(2, *made.all)
        aborting.join()
        made.configure([1, 0])
        made.run(allreduce, [1, 0])


def test_without_a_network_the_error_says_how_to_get_one(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("P4REDUCE_INTERFACE", raising=False)
    monkeypatch.delenv("P4REDUCE_CONTROLLER", raising=False)
    with groups(store, 2) as made, pytest.raises(RuntimeError, match="p4reduce-lab up"):
        made.configure([0, 1])


# -- With torchft's Manager ------------------------------------------------------------------------


class DiedError(Exception):
    """A replica's end, as far as the others see it."""


def replica(
    number: int, address: str, wrap: Callable[..., Any], dies_at: int | None, steps: int
) -> list[float]:
    """Train, end at a step as if the process had, and begin again. Return the weights."""
    try:
        return _attempt(number, address, wrap, dies_at, steps)
    except DiedError:
        return _attempt(number, address, wrap, None, steps)


def _attempt(
    number: int, address: str, wrap: Callable[..., Any], dies_at: int | None, steps: int
) -> list[float]:
    import torch
    import torch.distributed as dist
    from managed import manager_of
    from p4reduce.torch.ft import ProcessGroupP4Reduce

    network = torch.nn.Linear(3, 2)
    inner = torch.optim.SGD(network.parameters(), lr=0.1)

    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    with ExitStack() as ending:
        group = ProcessGroupP4Reduce(SECONDS)
        ending.callback(group.shutdown)
        ending.callback(group.abort)  # as after a kill, whatever the others still need
        manager = manager_of(
            group,
            store,
            number,
            network,
            inner,
            SECONDS,
            use_async_quorum=wrap is ddp,
            lighthouse_addr=address,
        )
        ending.callback(manager.shutdown, wait=False)
        with wrap(manager, network, inner) as (model, optimizer):
            while manager.current_step() < steps:
                inputs = torch.rand(4, 3)
                optimizer.zero_grad()
                model(inputs).square().mean().backward()
                optimizer.step()
                if dies_at is not None and manager.current_step() >= dies_at:
                    raise DiedError
        return [number for one in network.parameters() for number in one.flatten().tolist()]


@contextmanager
def ddp(manager: Any, network: Any, inner: Any) -> Iterator[tuple[Any, Any]]:
    from torchft import DistributedDataParallel, Optimizer

    yield DistributedDataParallel(manager, network), Optimizer(manager, inner)


@contextmanager
def local_sgd(manager: Any, network: Any, inner: Any) -> Iterator[tuple[Any, Any]]:
    from torchft.local_sgd import LocalSGD

    with LocalSGD(manager, network, inner, sync_every=2):
        yield network, inner


@contextmanager
def diloco(manager: Any, network: Any, inner: Any) -> Iterator[tuple[Any, Any]]:
    import torch
    from torchft.local_sgd import DiLoCo

    outer = torch.optim.SGD(network.parameters(), lr=0.5, momentum=0.9, nesterov=True)
    with DiLoCo(manager, [network], inner, outer, sync_every=2):
        yield network, inner


@pytest.mark.usefixtures("network")
@pytest.mark.parametrize(
    ("wrap", "dies_at"),
    [(ddp, None), (ddp, 2), (local_sgd, None), (local_sgd, 2), (diloco, None)],
)
def test_managed_replicas_end_with_equal_weights(
    wrap: Callable[..., Any], dies_at: int | None
) -> None:
    with lighthouse(2) as address, ThreadPoolExecutor(2) as pool:
        calls = [
            pool.submit(replica, number, address, wrap, dies_at if number else None, 5)
            for number in range(2)
        ]
        weights = [call.result(DEADLINE) for call in calls]
    assert weights[0] == weights[1]


def trained(variables: dict[str, str], address: str, *arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "--steps", "80", *arguments],
        env={**variables, "TORCHFT_LIGHTHOUSE": address, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


@pytest.mark.timeout(600)  # two trainings, each within DEADLINE
def test_replicas_that_are_killed_every_twenty_steps_and_come_back(
    variables: dict[str, str],
) -> None:
    with lighthouse(2) as address:
        calm = trained(variables, address)
    with lighthouse(2) as address:
        killed = trained(variables, address, "--deaths", "20:1", "40:0", "60:3")
    assert killed["lives"] == [1, 1, 0, 1]
    for run in (calm, killed):
        assert len({each["weights"] for each in run["replicas"]}) == 1
    survivor = killed["replicas"][2]
    took_part = [survivor["took_part"][str(step)] for step in range(80)]
    assert {took_part[step] for step in (20, 40, 60)} == {3}
    assert {took_part[step] for step in (19, 39, 59, 79)} == {4}
    assert survivor["loss"] == pytest.approx(calm["replicas"][2]["loss"], rel=0.2)
