# SPDX-License-Identifier: Apache-2.0
"""The process group that torch sees: each collective goes to the switch, or by name to Gloo.

It is a `ProcessGroup` of Python, the only kind of backend that torch 2.10 to 2.13 accept from
Python: they do not call a subclass of `Backend`. Where torch has `dist.BackendBase`,
python_backend.py makes one of these methods. All methods are here. C++ would run a missing one on
the inner group with Python's lock held.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceCoalescedOptions,
    AllreduceOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    GatherOptions,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
)

from p4reduce.torch import copies, reductions
from p4reduce.torch.channel import Channel
from p4reduce.torch.delegate import GlooDelegate
from p4reduce.torch.devices import OtherDevices
from p4reduce.torch.dynamo import methods_eagerly
from p4reduce.torch.names import NAME
from p4reduce.torch.options import listed, nested, options_of, shape_of, with_fields
from p4reduce.torch.routes import Routes
from p4reduce.torch.tensors import (
    UNSCALED,
    Dense,
    Scaling,
    bytes_of,
    check_targets,
    nothing,
    write,
)
from p4reduce.torch.threads import at_exit, expect_dropped
from p4reduce.torch.versions import warn_if_untested
from p4reduce.torch.work import OutcomeWork, WorkOutcome, unsettled

warn_if_untested(torch.__version__)

Tensors = Sequence[torch.Tensor]

_DESTROY_TIMEOUT = (
    10.0  # seconds for collectives that nobody has waited for, when the group is destroyed
)
_POLL = 0.01  # seconds
_ENDING = 5.0  # seconds at most for a collective to notice that its connections are closed


@methods_eagerly
class TorchCollectives:
    """The methods of a process group, or of a backend, of the name "p4reduce".

    A class that has these first, and one of torch's second, is what torch calls.

    Attributes:
        channel: the script's way through the switch; None where all goes to Gloo.

    Args:
        store: of torch, for this group.
        rank: of this process in the group.
        size: of the group.
        routes: the ways to the other ranks.
        others: backends of other devices.
    """

    if TYPE_CHECKING:  # torch's class has them

        def rank(self) -> int:
            """Return this process's rank in the group."""

        def size(self) -> int:
            """Return the number of ranks."""

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        *,
        routes: Routes,
        others: OtherDevices,
    ) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]  # torch's class
        self._store = store
        self._routes = routes
        self._others = others
        self.channel: Channel | None = routes.first.channel
        self._without = "a group of one rank" if size == 1 else "a group without a job"
        self._in_flight: set[WorkOutcome] = set()  # until somebody has found out how they ended
        expect_dropped()
        _groups.add(self)

    # -- Reductions ------------------------------------------------------------------------------

    def allreduce(
        self, tensors: Any, opts: Any = None, timeout: timedelta | None = None, *, op: Any = None
    ) -> Any:
        """Reduce in place, by a sum or another operation."""
        tensors = listed(tensors)
        opts, op = _split(opts, op, AllreduceOptions)
        opts = options_of(AllreduceOptions, opts, timeout, reduceOp=op)
        if other := self._elsewhere(tensors):
            return other.allreduce(tensors, opts)
        check_targets("all_reduce", tensors)
        scaling = reductions.scaling_of(tensors, opts.reduceOp, self.size())
        reason = reductions.sum_reason(tensors, opts.reduceOp, scaling)
        if len(tensors) != 1:
            reason = reason or f"{len(tensors)} tensors"
        if channel := self._switch(reason):
            work = reductions.all_reduce(channel, tensors[0], opts, scaling=scaling)
            return self._track(work)
        opts = reductions.summing(opts, scaling)
        return self._in_place(
            "all_reduce",
            reason,
            tensors,
            lambda gloo, dense: gloo.allreduce(dense, opts),
            opts,
            scaling,
        )

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        """Reduce many tensors in place."""
        tensors = listed(tensors)
        opts = options_of(AllreduceCoalescedOptions, opts, None)
        if other := self._elsewhere(tensors):
            return other.allreduce_coalesced(tensors, opts)
        check_targets("all_reduce_coalesced", tensors)
        scaling = reductions.scaling_of(tensors, opts.reduceOp, self.size())
        reason = reductions.sum_reason(tensors, opts.reduceOp, scaling) or _sparse(tensors)
        if channel := self._switch(reason):
            work = reductions.all_reduce_coalesced(channel, tensors, opts, scaling=scaling)
            return self._track(work)
        opts = reductions.summing(opts, scaling)
        return self._in_place(
            "all_reduce_coalesced",
            reason,
            tensors,
            lambda gloo, dense: gloo.allreduce_coalesced(dense, opts),
            opts,
            scaling,
        )

    def reduce(
        self,
        tensors: Any,
        opts: Any = None,
        op: Any = None,
        timeout: timedelta | None = None,
        *,
        root: int | None = None,
    ) -> Any:
        """Reduce for one rank."""
        tensors = listed(tensors)
        opts, root = _split(opts, root, ReduceOptions)
        opts = options_of(ReduceOptions, opts, timeout, reduceOp=op, rootRank=root)
        if other := self._elsewhere(tensors):
            return other.reduce(tensors, opts)
        check_targets("reduce", tensors)
        scaling = reductions.scaling_of(tensors, opts.reduceOp, self.size())
        reason = reductions.sum_reason(tensors, opts.reduceOp, scaling) or _sparse(tensors)
        if channel := self._switch(reason):
            return self._track(reductions.reduce(channel, tensors[0], opts, scaling))
        opts = reductions.summing(opts, scaling)
        return self._in_place(
            "reduce",
            reason,
            tensors,
            lambda gloo, dense: gloo.reduce(dense, opts),
            opts,
            scaling,
            writes=self.rank() == opts.rootRank,
        )

    def reduce_scatter(
        self,
        output_tensors: Any,
        input_tensors: Any,
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        op: Any = None,
    ) -> Any:
        """Reduce a list of tensors, and give each rank one of them."""
        outputs, inputs = listed(output_tensors), nested(input_tensors)
        opts, op = _split(opts, op, ReduceScatterOptions)
        opts = options_of(ReduceScatterOptions, opts, timeout, reduceOp=op)
        if other := self._elsewhere(outputs):
            return other.reduce_scatter(outputs, inputs, opts)
        if len(outputs) != 1 or len(inputs) != 1:
            raise ValueError(
                f"reduce_scatter: {len(outputs)} outputs and {len(inputs)} lists of inputs; one "
                "of each is needed"
            )
        return self._reduce_scatter("reduce_scatter", outputs[0], inputs[0], opts)

    def reduce_scatter_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None
    ) -> Any:
        """Reduce a tensor, and give each rank a part of it."""
        opts = options_of(ReduceScatterOptions, opts, None)
        if other := self._elsewhere([input]):
            return other._reduce_scatter_base(output, input, opts)
        return self._reduce_scatter("reduce_scatter_tensor", output, [input], opts)

    def _reduce_scatter(
        self, collective: str, output: torch.Tensor, inputs: Tensors, opts: Any
    ) -> OutcomeWork:
        """Reduce one tensor for each rank, or one that is all of them in a row."""
        check_targets(collective, [output])
        operation, place = opts.reduceOp, (self.rank(), self.size())
        scaling = reductions.scaling_of(inputs, operation, self.size())
        reason = reductions.scatter_reason(collective, output, inputs, operation, scaling, place)
        if channel := self._switch(reason):
            return self._track(
                reductions.reduce_scatter(channel, collective, output, inputs, opts, scaling)
            )
        # As Gloo does it, whose own work never says that it is complete.
        whole = torch.cat([one.reshape(-1) for one in Dense(inputs, scaling).tensors])
        rank, count = self.rank(), output.numel()
        before = sum(one.numel() for one in inputs[:rank]) if len(inputs) > 1 else rank * count
        own = whole.narrow(0, before, count)
        summing = reductions.summing(with_fields(opts, AllreduceOptions), scaling)
        return self._delegate(
            collective,
            reason,
            tensors=inputs,
            run=lambda gloo: gloo.allreduce([whole], summing),
            options=summing,
            result=[output],
            finish=lambda: write(output, scaling.after(own)),
        )

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """`reduce_scatter_single` of many tensors."""
        return self._together(
            [
                self.reduce_scatter_single(output, tensor, opts)
                for output, tensor in zip(outputs, inputs, strict=True)
            ],
            outputs,
        )

    # -- Copies ----------------------------------------------------------------------------------

    def broadcast(
        self,
        tensors: Any,
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        root: int | None = None,
    ) -> Any:
        """Copy one rank's tensor to all."""
        tensors = listed(tensors)
        opts, root = _split(opts, root, BroadcastOptions)
        opts = options_of(BroadcastOptions, opts, timeout, rootRank=root)
        if other := self._elsewhere(tensors):
            return other.broadcast(tensors, opts)
        check_targets("broadcast", tensors)
        reason = copies.copy_reason(tensors)
        if len(tensors) != 1:
            reason = reason or f"{len(tensors)} tensors"
        if channel := self._switch(reason):
            return self._track(copies.broadcast(channel, tensors[0], opts))
        return self._in_place(
            "broadcast", reason, tensors, lambda gloo, dense: gloo.broadcast(dense, opts), opts
        )

    def allgather(
        self,
        output_tensors: Any,
        input_tensors: Any,
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> Any:
        """Copy all ranks' tensors to all, as a list."""
        outputs, inputs = nested(output_tensors), listed(input_tensors)
        opts = options_of(AllgatherOptions, opts, timeout)
        if other := self._elsewhere(inputs):
            return other.allgather(outputs, inputs, opts)
        check_targets("all_gather", itertools.chain(*outputs))
        reason = copies.list_reason(outputs, inputs, self.size())
        if channel := self._switch(reason):
            return self._track(
                copies.all_gather(channel, "all_gather", outputs[0], inputs[0], opts)
            )
        mine, rows = Dense(inputs).tensors, [Dense(row) for row in outputs]
        lists = [row.tensors for row in rows]
        return self._delegate(
            "all_gather",
            reason,
            tensors=inputs,
            run=lambda gloo: gloo.allgather(lists, mine, opts),
            options=opts,
            result=_result_of(outputs),
            finish=lambda: _put_back(rows),
        )

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Any:
        """Copy all ranks' tensors to all, as one."""
        opts = options_of(AllgatherOptions, opts, None)
        if other := self._elsewhere([input]):
            return other._allgather_base(output, input, opts)
        check_targets("all_gather_into_tensor", [output])
        reason = copies.whole_reason(output, input, self.size())
        if channel := self._switch(reason):
            return self._track(
                copies.all_gather(channel, "all_gather_into_tensor", [output], input, opts)
            )
        room, (mine,) = Dense([output]), Dense([input]).tensors
        mine = mine.view(1) if mine.dim() == 0 else mine  # Gloo wants a dimension
        return self._delegate(
            "all_gather_into_tensor",
            reason,
            tensors=[input],
            run=lambda gloo: gloo._allgather_base(room.tensors[0], mine, opts),
            options=opts,
            result=[output],
            finish=room.put_back,
        )

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """`all_gather_single` of many tensors."""
        return self._together(
            [
                self.all_gather_single(output, tensor, opts)
                for output, tensor in zip(outputs, inputs, strict=True)
            ],
            outputs,
        )

    def allgather_coalesced(self, output_lists: Any, input_list: Any, opts: Any = None) -> Any:
        """`allgather` of many tensors: a list of each rank's outputs."""
        works = [
            self.allgather([[outputs[number] for outputs in output_lists]], [tensor], opts)
            for number, tensor in enumerate(input_list)
        ]
        return self._together(works, output_lists)

    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> Any:
        """Return when all ranks have called it."""
        if isinstance(opts, timedelta):
            opts, timeout = None, opts
        opts = options_of(BarrierOptions, opts, timeout)
        if channel := self._switch(None):
            return self._track(copies.barrier(channel, opts))
        return self._delegate("barrier", None, [], lambda gloo: gloo.barrier(opts), opts)

    # -- What only Gloo does ---------------------------------------------------------------------

    def gather(
        self,
        output_tensors: Any,
        input_tensors: Any,
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        root: int | None = None,
    ) -> Any:
        """Copy all ranks' tensors to one."""
        outputs = nested(output_tensors) if output_tensors else []
        inputs = listed(input_tensors)
        opts, root = _split(opts, root, GatherOptions)
        opts = options_of(GatherOptions, opts, timeout, rootRank=root)
        if other := self._elsewhere(inputs):
            return other.gather(outputs, inputs, opts)
        check_targets("gather", itertools.chain(*outputs))
        mine, rows = Dense(inputs).tensors, [Dense(row) for row in outputs]
        lists = [row.tensors for row in rows]
        return self._delegate(
            "gather",
            "no sum",
            tensors=inputs,
            run=lambda gloo: gloo.gather(lists, mine, opts),
            options=opts,
            result=_result_of(outputs),
            finish=lambda: _put_back(rows),
        )

    def scatter(
        self,
        output_tensors: Any,
        input_tensors: Any,
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        root: int | None = None,
    ) -> Any:
        """Send each rank one of one rank's tensors."""
        outputs = listed(output_tensors)
        inputs = nested(input_tensors) if input_tensors else []
        opts, root = _split(opts, root, ScatterOptions)
        opts = options_of(ScatterOptions, opts, timeout, rootRank=root)
        if other := self._elsewhere(outputs):
            return other.scatter(outputs, inputs, opts)
        check_targets("scatter", outputs)
        dense, lists = Dense(outputs), [Dense(row).tensors for row in inputs]
        return self._delegate(
            "scatter",
            "no sum",
            tensors=outputs,
            run=lambda gloo: gloo.scatter(dense.tensors, lists, opts),
            options=opts,
            result=outputs,
            finish=dense.put_back,
        )

    def alltoall(
        self,
        output_tensors: Any,
        input_tensors: Any,
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> Any:
        """Send each rank one of every rank's tensors."""
        outputs, inputs = list(output_tensors), list(input_tensors)
        opts = options_of(AllToAllOptions, opts, timeout)
        if other := self._elsewhere(inputs):
            return other.alltoall(outputs, inputs, opts)
        check_targets("all_to_all", outputs)
        if len({tensor.dtype for tensor in (*outputs, *inputs)}) > 1:
            raise ValueError(
                f"all_to_all: tensors of {shape_of([*outputs, *inputs])}: one dtype is needed"
            )
        for what, tensors in (("outputs", outputs), ("inputs", inputs)):
            if len(tensors) != self.size():
                raise ValueError(f"all_to_all: {len(tensors)} {what} for {self.size()} ranks")
        # In one piece, as the Gloo of torch 2.10 has no lists.
        mine = torch.cat([one.reshape(-1) for one in Dense(inputs).tensors])
        counts = [one.numel() for one in outputs]
        room = mine.new_empty(sum(counts))
        splits = counts, [one.numel() for one in inputs]

        def put_back() -> None:
            for output, part in zip(outputs, room.split(counts), strict=True):
                write(output, part)

        return self._delegate(
            "all_to_all",
            "no sum",
            tensors=[],
            run=lambda gloo: gloo.alltoall_base(room, mine, *splits, opts),
            options=opts,
            result=outputs,
            finish=put_back,
            size=bytes_of([mine]),
        )

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: list[int],
        input_split_sizes: list[int],
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> Any:
        """Send each rank a part of every rank's tensor."""
        opts = options_of(AllToAllOptions, opts, timeout)
        splits = output_split_sizes, input_split_sizes
        if other := self._elsewhere([input]):
            return other.alltoall_base(output, input, *splits, opts)
        check_targets("all_to_all_single", [output])
        room, (mine,) = Dense([output]), Dense([input]).tensors
        return self._delegate(
            "all_to_all_single",
            "no sum",
            tensors=[],
            run=lambda gloo: gloo.alltoall_base(room.tensors[0], mine, *splits, opts),
            options=opts,
            result=[output],
            finish=room.put_back,
            size=bytes_of([mine]),
        )

    def send(self, tensors: Any, dst: int, tag: int = 0) -> Any:
        """Send to one rank."""
        if other := self._elsewhere(tensors):
            return other.send(tensors, dst, tag)
        return self._point_to_point(
            f"send to rank {dst}", tensors, lambda gloo, dense: gloo.send(dense, dst, tag)
        )

    def recv(self, tensors: Any, src: int, tag: int = 0) -> Any:
        """Receive from one rank."""
        if other := self._elsewhere(tensors):
            return other.recv(tensors, src, tag)
        return self._point_to_point(
            f"recv from rank {src}", tensors, lambda gloo, dense: gloo.recv(dense, src, tag)
        )

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        """Receive from any rank."""
        if other := self._elsewhere(tensors):
            return other.recv_anysource(tensors, tag)
        return self._point_to_point(
            "recv from any rank", tensors, lambda gloo, dense: gloo.recv_anysource(dense, tag)
        )

    def _point_to_point(
        self, name: str, tensors: Tensors, run: Callable[[Any, list[torch.Tensor]], Any]
    ) -> OutcomeWork:
        receives = name.startswith("recv")
        if receives:
            check_targets(name, tensors)
        dense = Dense(tensors)
        return self._track(
            self._gloo.point_to_point(
                name,
                tensors,
                run=lambda gloo: run(gloo, dense.tensors),
                finish=dense.put_back if receives else nothing,
            )
        )

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """A barrier after which rank 0 can name the ranks that did not come.

        C++ calls it for a backend, with BarrierOptions in place of the timeout.
        """
        if isinstance(timeout, BarrierOptions):
            timeout = timeout.timeout if timeout.timeout > timedelta(0) else None
        if timeout is None:
            self._gloo.group.monitored_barrier(wait_all_ranks=wait_all_ranks)
        else:
            self._gloo.group.monitored_barrier(timeout, wait_all_ranks)

    def split_group(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse; in C++ this would be a segmentation fault."""
        raise RuntimeError(
            "p4reduce: a group cannot be split; torch.distributed.new_group makes one of some ranks"
        )

    # Other names of the same: torch 2.13 has new ones, and C++ and older ones the old.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    # -- The group itself ------------------------------------------------------------------------

    def getBackendName(self) -> str:  # noqa: N802  # torch's name for it
        """Return "p4reduce"."""
        return NAME

    def name(self) -> str:
        """Return "p4reduce"."""
        return NAME

    def get_group_store(self) -> Any:
        """Return torch's store for this group."""
        return self._store

    def set_timeout(self, timeout: timedelta) -> None:
        """Change the timeout of collectives that have none of their own."""
        self._routes.set_timeout(timeout)

    def _set_sequence_number_for_group(self) -> None:
        """Nothing: the switch's collectives are numbered anyway."""

    def _get_sequence_number_for_group(self) -> int:
        return 0

    def _start_coalescing(self, device: torch.device) -> None:
        """Nothing: what is coalesced comes in a list, to the method for that."""

    def _end_coalescing(self, device: torch.device) -> Any:
        return self._together([], [])

    def shutdown(self) -> None:
        """Leave when the others have all results, or at once if collectives do not end.

        The results of collectives that nobody has waited for are written first.
        """
        end = time.monotonic() + _DESTROY_TIMEOUT
        while (busy := self._busy()) and time.monotonic() < end:
            time.sleep(_POLL)
        self._end(orderly=not (busy or self._routes.is_broken()))

    def abort(self) -> None:
        """Leave at once. Collectives in flight end with an error."""
        self._end(orderly=False)

    def _busy(self) -> bool:
        return bool(unsettled(list(self._in_flight)))

    def _end(self, *, orderly: bool) -> None:
        self._routes.end(orderly=orderly)
        _groups.discard(self)
        for outcome in list(self._in_flight):  # they end now, with an error
            with suppress(RuntimeError):
                outcome.settle(_ENDING)
        self._in_flight.clear()

    @property
    def _gloo(self) -> GlooDelegate:
        """That of the script, for what is no collective of all ranks."""
        return self._routes.first.gloo

    # -- Where to --------------------------------------------------------------------------------

    def _switch(self, reason: str | None) -> Channel | None:
        """Return the way through the switch, if nothing is against it."""
        return None if reason is not None else self._routes.here().channel

    def _elsewhere(self, tensors: Tensors) -> Any:
        """Return the backend of tensors on another device, if that has one of its own."""
        if not tensors or tensors[0].device.type == "cpu":
            return None
        return self._others.backend(self, tensors[0].device.type)

    def _in_place(
        self,
        collective: str,
        reason: str | None,
        tensors: Tensors,
        run: Callable[[Any, list[torch.Tensor]], Any],
        options: Any,
        scaling: Scaling = UNSCALED,
        *,
        writes: bool = True,
    ) -> OutcomeWork:
        """Delegate what writes to its input, if it does so on this rank."""
        dense = Dense(tensors, scaling)
        return self._delegate(
            collective,
            reason,
            tensors=tensors,
            run=lambda gloo: run(gloo, dense.tensors),
            options=options,
            result=tensors,
            finish=dense.put_back if writes else nothing,
        )

    def _delegate(
        self,
        collective: str,
        reason: str | None,
        tensors: Tensors,
        run: Callable[[Any], Any],
        options: Any,
        result: Any = None,
        finish: Callable[[], None] = nothing,
        size: int | None = None,
    ) -> OutcomeWork:
        why = reason or self._without
        result = list(tensors) if result is None else result
        route = self._routes.here()
        work = route.gloo.call(
            route.channel, collective, why, tensors, run, options, result, finish, size
        )
        return self._track(work)

    def _together(self, works: Sequence[OutcomeWork], tensors: Any) -> OutcomeWork:
        return self._track(OutcomeWork.of_all(works, tensors))

    def _track(self, work: OutcomeWork) -> OutcomeWork:
        work.outcome.keeper = self._in_flight
        self._in_flight.add(work.outcome)
        return work


class P4ReduceGroup(TorchCollectives, dist.ProcessGroup):
    """A process group of the backend "p4reduce", for a torch without `dist.BackendBase`."""

    def __init__(self, *place: Any, **ways: Any) -> None:
        super().__init__(*place, **ways)
        # For callers that ask a group for its backends: torch's timeouts and the flight recorder of
        # torch 2.15, which needs the default one's name of the group.
        self._register_backend(torch.device("cpu"), self.BackendType.CUSTOM, self._gloo.group)
        self._set_default_backend(self.BackendType.CUSTOM)


def ours(group: Any) -> TorchCollectives | None:
    """Return this backend of a process group; None if it has another."""
    if isinstance(group, TorchCollectives):
        return group
    try:
        backend = group._get_backend(torch.device("cpu"))
    except (RuntimeError, AttributeError):
        return None  # it has none for CPUs, or is not one of this process's
    return backend if isinstance(backend, TorchCollectives) else None


_groups: set[TorchCollectives] = set()


def raise_if_lost(ranks: Sequence[int], within: float) -> None:
    """Wait that many seconds for news that one of these global ranks is lost.

    Raises the error. Without groups there is no news.
    """
    end = time.monotonic() + within
    while groups := list(_groups):
        for group in groups:
            if group.channel is not None and not group.channel.lost.isdisjoint(ranks):
                group.channel.raise_if_broken(0.0)
        if time.monotonic() >= end:
            return
        time.sleep(_POLL)


def _leave_all() -> None:
    """At exit, without destroy_process_group: nothing may be waited for any more."""
    for group in list(_groups):
        group.abort()


at_exit(_leave_all)
os.register_at_fork(after_in_child=_groups.clear)  # a child's exit must not end its parent's groups


def _put_back(rows: Sequence[Dense]) -> None:
    for row in rows:
        row.put_back()


def _result_of(outputs: Sequence[Sequence[torch.Tensor]]) -> list[Any]:
    """Return the only list of tensors, as Gloo's works do; several as they are."""
    return list(outputs[0]) if len(outputs) == 1 else list(outputs)


def _sparse(tensors: Tensors) -> str | None:
    return "sparse" if any(tensor.layout != torch.strided for tensor in tensors) else None


def _split(first: Any, second: Any, kind: type) -> tuple[Any, Any]:
    """Tell options from the field that stands in their place in the other way to call."""
    return (first, second) if first is None or isinstance(first, kind) else (None, first)
