# SPDX-License-Identifier: Apache-2.0
"""Horovod's calls on three ranks; each rank works out by itself what they have to give."""

import json
from collections.abc import Callable
from typing import Any

import p4reduce.horovod as hvd
import torch
import torch.distributed as dist

hvd.init(process_sets=[few := hvd.ProcessSet([0, 2])])
RANK, SIZE = hvd.rank(), hvd.size()
RANKS = range(SIZE)
wrong: dict[str, str] = {}


def near(got: torch.Tensor, right: torch.Tensor, tolerance: float = 1e-5) -> None:
    assert got.dtype == right.dtype, (got.dtype, right.dtype)
    torch.testing.assert_close(got, right, rtol=tolerance, atol=tolerance)


def refuses(kind: type[Exception], text: str, call: Callable[[], Any]) -> None:
    try:
        call()
    except kind as error:
        if text in str(error):
            return
        raise AssertionError(f"{text!r} is not in {str(error)!r}") from error
    raise AssertionError(f"{text}: not refused")


def mine(rank: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    numbers = torch.randn(shape, generator=torch.Generator().manual_seed(7 + rank))
    return (numbers * 100).to(dtype) if not dtype.is_floating_point else numbers.to(dtype)


def places() -> None:
    assert (hvd.local_rank(), hvd.local_size()) == (RANK, SIZE)
    assert (hvd.cross_rank(), hvd.cross_size(), hvd.is_homogeneous()) == (0, 1, True)
    assert (few.process_set_id, few.size(), few.included()) == (1, 2, RANK != 1)
    assert few.rank() == {0: 0, 1: None, 2: 1}[RANK]


def sums() -> None:
    for dtype in (torch.float32, torch.float64, torch.int32, torch.int64):
        all_of = torch.stack([mine(rank, 5, 3, dtype=dtype) for rank in RANKS])
        own = all_of[RANK].clone()
        near(hvd.allreduce(own, op=hvd.Sum, name=f"sum {dtype}"), all_of.sum(0, dtype=dtype))
        mean = all_of.sum(0, dtype=dtype) / SIZE
        near(hvd.allreduce(own), mean if dtype.is_floating_point else mean.trunc().to(dtype))
        near(hvd.allreduce(own, op=hvd.Min), all_of.amin(0))
        near(hvd.allreduce(own, op=hvd.Max, name="largest"), all_of.amax(0))
        near(own, all_of[RANK])  # is not written to
        near(hvd.allreduce_(own, op=hvd.Sum), all_of.sum(0, dtype=dtype))
        near(own, all_of.sum(0, dtype=dtype))
    parameter = torch.nn.Parameter(torch.full((3,), 1.0 + RANK))
    near(hvd.allreduce_(parameter, prescale_factor=2.0).detach(), torch.full((3,), 4.0))
    scalar = hvd.allreduce(torch.tensor(float(RANK)), name="scalar")
    assert scalar.shape == ()
    near(scalar, torch.tensor(1.0))
    small = mine(RANK, 4) + 2
    product = torch.stack([mine(rank, 4) + 2 for rank in RANKS]).prod(0)
    near(hvd.allreduce(small, op=hvd.Product), product)
    near(
        hvd.allreduce(mine(RANK, 4), op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0),
        1.5 * sum(mine(rank, 4) for rank in RANKS),
    )


def groups() -> None:
    given = [mine(RANK, 700), mine(RANK, 3, 2)]
    right = [sum(mine(rank, *one.shape) for rank in RANKS) / SIZE for one in given]
    for got, wanted in zip(hvd.grouped_allreduce(given, name="two"), right, strict=True):
        near(got, wanted)
    handle = hvd.grouped_allreduce_async_(given, op=hvd.Sum)
    for got, wanted in zip(hvd.synchronize(handle), right, strict=True):
        near(got, wanted * SIZE)
    assert hvd.poll(handle)
    near(given[0], right[0] * SIZE)


def halves() -> None:
    comm = hvd.global_process_set.backend.channel.comm
    own, right = mine(RANK, 200_000), sum(mine(rank, 200_000) for rank in RANKS) / SIZE
    before = comm.stats.bytes_sent
    near(hvd.allreduce(own), right)
    whole, before = comm.stats.bytes_sent - before, comm.stats.bytes_sent
    near(hvd.allreduce(own, compression=hvd.Compression.fp16), right, 5e-3)
    half = comm.stats.bytes_sent - before
    assert half < 0.55 * whole, (half, whole)
    integers = torch.tensor([RANK])
    before = comm.stats.bytes_sent
    sums = hvd.grouped_allreduce([integers, own], compression=hvd.Compression.fp16, name="both")
    near(sums[0], torch.tensor([1]))
    near(sums[1], right, 5e-3)
    half = comm.stats.bytes_sent - before
    assert half < 0.55 * whole, (half, whole)
    near(hvd.allreduce(integers, compression=hvd.Compression.fp16), torch.tensor([1]))


def gathers() -> None:
    parts = [mine(rank, rank + 1, 2) for rank in RANKS]
    near(hvd.allgather(parts[RANK], name="ragged"), torch.cat(parts))
    near(hvd.allgather(torch.arange(RANK)), torch.tensor([0, 0, 1]))
    both = hvd.grouped_allgather([parts[RANK], parts[RANK].double()])
    near(both[1], torch.cat(parts).double())
    refuses(ValueError, "without dimensions", lambda: hvd.allgather(torch.tensor(1.0)))


def copies() -> None:
    own = mine(RANK, 3, 4)
    near(hvd.broadcast(own, 1, name="copy"), mine(1, 3, 4))
    near(own, mine(RANK, 3, 4))
    near(hvd.broadcast_(own, 2), mine(2, 3, 4))
    near(own, mine(2, 3, 4))
    assert hvd.broadcast_object({"rank": RANK}, 1) == {"rank": 1}
    assert hvd.allgather_object("x" * RANK) == ["", "x", "xx"]
    hvd.barrier()


def exchanges() -> None:
    rows = torch.arange(6.0).view(6, 1) + 100 * RANK
    right = torch.cat([torch.arange(2.0) + 2 * RANK + 100 * rank for rank in RANKS])
    near(hvd.alltoall(rows), right.view(6, 1))
    # Rank r sends i rows to rank i.
    got, counts = hvd.alltoall(torch.full((3,), float(RANK)), splits=torch.tensor([0, 1, 2]))
    near(got, torch.cat([torch.full((RANK,), float(rank)) for rank in RANKS]))
    near(counts, torch.full((3,), RANK, dtype=torch.int32))
    refuses(ValueError, "7 rows", lambda: hvd.alltoall(torch.zeros(7)))
    refuses(ValueError, "splits=[1, 1]", lambda: hvd.alltoall(torch.zeros(2), splits=[1, 1]))


def scatters() -> None:
    whole = sum(mine(rank, 7, 2) for rank in RANKS)
    right = torch.tensor_split(whole, SIZE)[RANK]
    near(hvd.reducescatter(mine(RANK, 7, 2), op=hvd.Sum), right)
    near(hvd.reducescatter(mine(RANK, 7, 2), name="mean"), right / SIZE)
    (got,) = hvd.grouped_reducescatter([mine(RANK, 7, 2)], postscale_factor=2.0)
    near(got, 2 * right / SIZE)
    near(hvd.reducescatter(torch.arange(7), op=hvd.Sum), torch.arange(7).tensor_split(3)[RANK] * 3)
    near(hvd.reducescatter(torch.arange(2), op=hvd.Sum), torch.arange(2).tensor_split(3)[RANK] * 3)
    refuses(NotImplementedError, "op=Max", lambda: hvd.reducescatter(torch.zeros(3), op=hvd.Max))


def gradients() -> None:
    weights = [mine(10 + rank, 3) for rank in RANKS]

    def gradient(call: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        own = mine(RANK, 3).requires_grad_()
        result = call(own)
        (result * weights[RANK][: len(result)]).sum().backward()
        assert own.grad is not None
        return own.grad

    total = sum(weights)
    near(gradient(lambda own: hvd.allreduce(own, op=hvd.Sum)), total)
    near(gradient(hvd.allreduce), total / SIZE)
    root = total / SIZE if RANK == 1 else torch.zeros(3)
    near(gradient(lambda own: hvd.broadcast(own, 1)), root)
    part = torch.stack([one[0] for one in weights])
    near(gradient(lambda own: hvd.reducescatter(own, op=hvd.Average)), part)
    near(gradient(hvd.alltoall), torch.stack([one[RANK] for one in weights]))


def some() -> None:
    if RANK != 1:
        both = mine(0, 4) + mine(2, 4)
        near(hvd.allreduce(mine(RANK, 4), op=hvd.Sum, process_set=few), both)
        near(hvd.broadcast(mine(RANK, 4), 2, process_set=few), mine(2, 4))
        near(hvd.allgather(torch.tensor([RANK]), process_set=few), torch.tensor([0, 2]))
        refuses(ValueError, "root_rank=1", lambda: hvd.broadcast(both, 1, process_set=few))
    else:
        own = mine(RANK, 4)
        refuses(ValueError, "rank 1 is not one", lambda: hvd.allreduce(own, process_set=few))
    late = hvd.add_process_set([1, 2])
    assert late.process_set_id == 2
    if RANK:
        near(hvd.allreduce(torch.tensor([RANK]), op=hvd.Sum, process_set=late), torch.tensor([3]))
    assert hvd.remove_process_set(late)
    refuses(ValueError, "already", lambda: hvd.add_process_set([2, 0]))


def refusals() -> None:
    own = mine(RANK, 3)
    refuses(NotImplementedError, "Adasum", lambda: hvd.allreduce(own, op=hvd.Adasum))
    refuses(NotImplementedError, "join", hvd.join)
    refuses(NotImplementedError, "start_timeline", lambda: hvd.start_timeline("x"))
    refuses(NotImplementedError, "SyncBatchNorm", lambda: hvd.SyncBatchNorm(3))
    refuses(NotImplementedError, "init(comm=[0])", lambda: hvd.init(comm=[0]))
    model = torch.nn.Linear(2, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    more = {"params": torch.nn.Linear(2, 1).parameters()}
    refuses(NotImplementedError, "add_param_group", lambda: optimizer.add_param_group(more))
    refuses(ValueError, "op supersedes", lambda: hvd.allreduce(own, average=True, op=hvd.Sum))


def ends() -> None:
    """A handle of several calls is over when all of them are."""
    store = dist.distributed_c10d._get_default_store()
    if RANK:
        store.wait(["rank 0 has looked"])
    handle = hvd.grouped_reducescatter_async([mine(RANK, 6), mine(RANK, 3)], op=hvd.Sum)
    if not RANK:
        assert not hvd.poll(handle)
        store.set("rank 0 has looked", "")
    hvd.synchronize(handle)
    assert hvd.poll(handle)


def names() -> None:
    """Last, as the groups are of no use then."""
    name = "a" if RANK == 0 else "b"
    rows = torch.sparse_coo_tensor([[RANK]], torch.ones(1, 2), (5, 2), check_invariants=True)

    def sparse_sum() -> None:
        hvd.synchronize(hvd.sparse_allreduce_async(rows, name, hvd.Sum, few))

    if RANK != 1:
        refuses(hvd.HorovodInternalError, "do not agree", sparse_sum)
        refuses(hvd.HorovodInternalError, "do not agree", lambda: hvd.barrier(few))
    zeros = torch.zeros(3)
    refuses(hvd.HorovodInternalError, "do not agree", lambda: hvd.allreduce(zeros, name=name))


CASES = (places, sums, groups, halves, gathers, copies, exchanges, scatters, gradients, some, ends)
for case in (*CASES, refusals, names):
    case()
    print(json.dumps({"case": case.__name__}), flush=True)
hvd.shutdown()
assert not hvd.is_initialized()
