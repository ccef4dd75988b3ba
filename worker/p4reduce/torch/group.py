# SPDX-License-Identifier: Apache-2.0
"""The process group that torch sees: each collective goes to the switch, or else to Gloo.

It is a `ProcessGroup` of Python, the only kind of backend that torch 2.10 to 2.13 accept from
Python: they do not call a subclass of `Backend`. Where torch has `dist.BackendBase`,
python_backend.py builds a backend of these methods. All methods are here, those of table.py
included: torch's C++ would run a missing one on the inner group, with Python's lock held.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from p4reduce_common.polling import attempts, holds_within
from torch._C._distributed_c10d import BarrierOptions

from p4reduce.torch import accelerators
from p4reduce.torch.accelerators import Accelerator, copies_down, copies_up
from p4reduce.torch.call_order import CallOrder, QueuedHandle
from p4reduce.torch.calls import Place, Tensors, TorchCall
from p4reduce.torch.channel import Channel
from p4reduce.torch.delegate import GlooDelegate
from p4reduce.torch.devices import OtherDevices
from p4reduce.torch.dynamo import methods_eagerly
from p4reduce.torch.names import NAME
from p4reduce.torch.routes import Route, Routes
from p4reduce.torch.staging import (
    StagedPart,
    StagedWork,
    Waiter,
    host_copies,
    start_in_parts,
    start_staged,
)
from p4reduce.torch.table import METHODS, Method
from p4reduce.torch.tensors import Dense, check_targets, nothing
from p4reduce.torch.threads import at_exit, expect_dropped
from p4reduce.torch.versions import warn_if_untested
from p4reduce.torch.work import OutcomeWork, StartedWork, WorkOutcome, unsettled

warn_if_untested(torch.__version__)

_DESTROY_TIMEOUT = 10.0  # seconds, in shutdown, for collectives that nobody has waited for
_POLL = 0.01  # seconds
_ENDING = 5.0  # seconds at most for a collective to notice that its connections are closed


def _method(name: str) -> Callable[..., Any]:
    method = METHODS[name]

    def run(self: TorchCollectives, *args: Any, **named: Any) -> Any:
        return self._call(name, method, args, named)

    return run


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
        accelerated: whether torch has an accelerator on some rank. All ranks then sum long tensors
            in parts: one part is on the wire while an accelerator copies others.
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
        accelerated: bool,
    ) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]  # torch's class
        self._store = store
        self._routes = routes
        self._others = others
        self.channel: Channel | None = routes.first.channel
        if self.channel is not None:
            self.channel.accelerated = accelerated
        self._why_gloo = "a group of one rank" if size == 1 else "a group without a job"
        self._place = Place(rank, size)
        self._in_parts = accelerated
        self._exchange_order = CallOrder()
        self._in_flight: set[WorkOutcome] = set()  # until somebody has found out how they ended
        expect_dropped()
        _groups.add(self)

    # -- Collectives: those of table.py, and of many tensors -----------------------------------

    allreduce = _method("allreduce")
    allreduce_coalesced = _method("allreduce_coalesced")
    reduce = _method("reduce")
    reduce_scatter = _method("reduce_scatter")
    broadcast = _method("broadcast")
    allgather = _method("allgather")
    barrier = _method("barrier")
    gather = _method("gather")
    scatter = _method("scatter")
    alltoall = _method("alltoall")
    # The second name is torch 2.13's.
    _reduce_scatter_base = reduce_scatter_single = _method("_reduce_scatter_base")
    _allgather_base = all_gather_single = _method("_allgather_base")
    alltoall_base = all_to_all_single = _method("alltoall_base")

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """`reduce_scatter_single` of many tensors."""
        return self._each("_reduce_scatter_base", zip(outputs, inputs, strict=True), opts, outputs)

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """`all_gather_single` of many tensors."""
        return self._each("_allgather_base", zip(outputs, inputs, strict=True), opts, outputs)

    def allgather_coalesced(self, output_lists: Any, input_list: Any, opts: Any = None) -> Any:
        """`allgather` of many tensors: a list of each rank's outputs."""
        rows = (
            ([[outputs[number] for outputs in output_lists]], [tensor])
            for number, tensor in enumerate(input_list)
        )
        return self._each("allgather", rows, opts, output_lists)

    def _each(self, name: str, arguments: Iterable[Any], opts: Any, tensors: Any) -> Any:
        works = [self._call(name, METHODS[name], (*each, opts), {}) for each in arguments]
        return self._together(works, tensors)

    # -- Point to point --------------------------------------------------------------------------

    def send(self, tensors: Any, dst: int, tag: int = 0) -> Any:
        """Send to one rank."""
        return self._point_to_point("send", f"send to rank {dst}", tensors, dst, tag)

    def recv(self, tensors: Any, src: int, tag: int = 0) -> Any:
        """Receive from one rank."""
        return self._point_to_point("recv", f"recv from rank {src}", tensors, src, tag)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        """Receive from any rank."""
        return self._point_to_point("recv_anysource", "recv from any rank", tensors, tag)

    def _point_to_point(self, method: str, name: str, tensors: Tensors, *where: int) -> Any:
        if other := self._elsewhere(_first_tensor(tensors)):
            return getattr(other, method)(tensors, *where)
        receives = method != "send"
        if receives:
            check_targets(name, tensors)

        def start(some: Tensors) -> OutcomeWork:
            dense = Dense(some)
            return self._gloo.point_to_point(
                name,
                some,
                run=lambda gloo: getattr(gloo, method)(dense.tensors, *where),
                finish=dense.put_back if receives else nothing,
            )

        accelerator = accelerators.accelerator_of(tensors[0])
        if accelerator is None:
            # In turn with those of accelerators: Gloo tells messages of a tag by their order.
            started = self._exchange_order.take(lambda: StartedWork(start(tensors)))
            return self._track(_work_of(started, _wait_for, tensors))
        host = host_copies(accelerator, list(tensors))
        pairs = list(zip(host, tensors, strict=True))
        part = StagedPart(
            lambda: start(host),
            copies_down([] if receives else pairs),
            copies_up(pairs if receives else []),
        )
        return self._track(
            start_staged(accelerator, self._exchange_order, _wait_for, part=part, result=tensors)
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

    # Older names of the same, which C++ uses too.
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

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

    @property
    def interface(self) -> str | None:
        """This process's way to the switch; None: that of the network it has started."""
        lease = self._routes.first.lease
        return None if lease is None else lease.interface

    @property
    def timeout(self) -> timedelta:
        """Of collectives that have none of their own."""
        return self._routes.timeout

    def broken(self) -> RuntimeError | None:
        """Return the error by which later collectives end at once; None: they do not."""
        return self._routes.broken()

    def shutdown(self) -> None:
        """Leave when the others have all results, or at once if collectives do not end.

        The results of collectives that nobody has waited for are written first.
        """
        idle = holds_within(_DESTROY_TIMEOUT, lambda: not self._busy(), _POLL)
        self._end(orderly=idle and not self._routes.broken())

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

    # -- How they run ----------------------------------------------------------------------------

    def _call(
        self, name: str, method: Method, args: Sequence[Any], named: Mapping[str, Any]
    ) -> Any:
        """Run a collective of table.py: by the switch, by Gloo, or by another device's backend."""
        arguments, options = method.bind(args, named)
        first = _first_tensor(arguments)
        if other := self._elsewhere(first):
            return getattr(other, name)(*arguments, options)
        call = method.call(self._place, *arguments, options)
        check_targets(call.name, call.writes if call.targets is None else call.targets)
        route = self._routes.here()
        accelerator = None if first is None else accelerators.accelerator_of(first)
        if accelerator is None:
            return self._run(route, call)
        host = method.call(self._place, *host_copies(accelerator, arguments), options)
        return self._track(self._staged(route, call, host, accelerator))

    def _elsewhere(self, tensor: torch.Tensor | None) -> Any:
        """Return the backend of a tensor's device, if that has one of its own."""
        if tensor is None or tensor.is_cpu:
            return None
        return self._others.backend(self, tensor.device.type)

    def _run(self, route: Route, call: TorchCall) -> OutcomeWork:
        """Run a collective of the host's tensors, in turn."""
        if self._in_parts and call.parts is not None:
            parts, finish = call.parts()
            works = [self._run(route, part) for part in parts]
            return self._track(OutcomeWork.of_all(works, call.result, finish))
        started = route.order.take(lambda: StartedWork(self._start(route, call)))
        return self._track(_work_of(started, _waiter(route, call.name), call.result))

    def _staged(
        self, route: Route, call: TorchCall, host: TorchCall, accelerator: Accelerator
    ) -> OutcomeWork:
        """Run a collective of an accelerator's tensors.

        Args:
            route: the caller's.
            call: of the tensors.
            host: the same, of their copies.
            accelerator: that has the tensors.
        """
        if self._in_parts and call.parts is not None and host.parts is not None:
            parts, finish = call.parts()
            return start_in_parts(
                accelerator,
                route.order,
                _waiter(route, call.name),
                parts=[
                    self._part(route, *pair) for pair in zip(parts, host.parts()[0], strict=True)
                ],
                finish=finish,
                writes=call.writes,
                result=call.result,
            )
        return start_staged(
            accelerator,
            route.order,
            _waiter(route, call.name),
            part=self._part(route, call, host),
            result=call.result,
        )

    def _part(self, route: Route, call: TorchCall, host: TorchCall) -> StagedPart:
        return StagedPart(
            lambda: self._start(route, host),
            copies_down(list(zip(host.reads, call.reads, strict=True))),
            copies_up(list(zip(host.writes, call.writes, strict=True))),
        )

    def _start(self, route: Route, call: TorchCall) -> OutcomeWork:
        """Start a collective of the host's tensors now: by the switch if nothing is against it."""
        if call.reason is None and call.switch is not None and route.channel is not None:
            return call.switch(route.channel)
        return route.gloo.call(route.channel, call, call.reason or self._why_gloo)

    def _together(self, works: Sequence[OutcomeWork], tensors: Any) -> OutcomeWork:
        return self._track(StagedWork.of_several(works, tensors))

    def _track(self, work: OutcomeWork) -> OutcomeWork:
        outcome = work.outcome
        outcome.keeper = self._in_flight
        self._in_flight.add(outcome)
        return work


class UnregisteredGroup(TorchCollectives, dist.ProcessGroup):
    """A process group that has no backends, and that torch's registries do not know."""


class P4ReduceGroup(UnregisteredGroup):
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
    """Wait up to `within` seconds for news that one of these global ranks is lost.

    Raises the error of its group. Returns after that time, or at once if there is no group.
    """
    for _ in attempts(within, _POLL):
        if not (groups := list(_groups)):
            return
        for group in groups:
            if group.channel is not None and not group.channel.lost.isdisjoint(ranks):
                group.channel.raise_if_broken(0.0)


def _leave_all() -> None:
    """At exit, without destroy_process_group: nothing may be waited for any more."""
    for group in list(_groups):
        group.abort()


at_exit(_leave_all)
os.register_at_fork(after_in_child=_groups.clear)  # a child's exit must not end its parent's groups


def _work_of(started: StartedWork | QueuedHandle, waiter: Waiter, result: Any) -> OutcomeWork:
    """Return the work of a call that is started, or has its turn later."""
    if isinstance(started, StartedWork):
        return started.work
    return OutcomeWork(WorkOutcome(waiter(started), nothing, lambda: not started.done()), result)


def _waiter(route: Route, name: str) -> Waiter:
    """Return what waits for a call of a route, and raises torch's errors."""
    channel = route.channel
    return _wait_for if channel is None else lambda handle: channel.waiter(handle, name)


def _wait_for(handle: QueuedHandle) -> Callable[[float | None], None]:
    return handle.wait


def _first_tensor(values: Iterable[Any]) -> torch.Tensor | None:
    """Return the first tensor among arguments, or in their lists."""
    for value in values:
        if isinstance(value, torch.Tensor):
            return value
        if isinstance(value, list) and (found := _first_tensor(value)) is not None:
            return found
    return None
