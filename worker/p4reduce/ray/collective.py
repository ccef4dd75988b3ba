# SPDX-License-Identifier: Apache-2.0
"""A backend of `ray.util.collective`: sums, broadcasts and gathers of actors by the switch.

Ray's own Gloo group does the rest, if torch is installed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from ray.util.collective import is_backend_available
from ray.util.collective.collective_group.base_collective_group import BaseGroup
from ray.util.collective.types import (
    AllGatherOptions,
    AllReduceOptions,
    BarrierOptions,
    BroadcastOptions,
    RecvOptions,
    ReduceOp,
    ReduceOptions,
    ReduceScatterOptions,
    SendOptions,
)

from p4reduce.checks import check_seconds, check_timeout
from p4reduce.errors import ConfigurationError
from p4reduce.ray.joining import RayMember, join

NAME = "P4REDUCE"
_SINCE = "2.56"  # of Ray: its first version that takes backends of others
_SUMMED = {"float16", "float32", "float64", "int8", "int16", "int32"}


class P4ReduceGroup(BaseGroup):
    """A group of actors. `ray.util.collective` makes it for the backend "P4REDUCE".

    Tensors are numpy arrays and torch tensors on CPUs. Ray hands each over in a list of one.

    Attributes:
        calls: how many calls went through the switch, and how many to Ray's Gloo, by "allreduce"
            and "allreduce: MAX".
    """

    timeout: ClassVar[float] = 60.0
    lease: ClassVar[float] = 0.0

    def __init__(self, world_size: int, rank: int, group_name: str) -> None:
        super().__init__(world_size, rank, group_name)
        self.calls: Counter[str] = Counter()
        self._member: RayMember | None = None
        if world_size > 1:
            self._member = join(group_name, rank, world_size, self.timeout, self.lease)
        self._rest: Any = None
        if find_spec("torch") is not None:
            from ray.util.collective.collective_group.torch_gloo_collective_group import (
                TorchGLOOGroup,
            )

            # The name is another one each time: Ray's Gloo meets by it, in a store that stays.
            name = group_name if self._member is None else self._member.name
            milliseconds = int(1000 * self.timeout)
            try:
                self._rest = TorchGLOOGroup(world_size, rank, f"{name}, Gloo", milliseconds)
            except BaseException:
                self.destroy_group()
                raise

    @classmethod
    def backend(cls) -> str:
        """Its name."""
        return NAME

    @classmethod
    def check_backend_availability(cls) -> bool:
        """Whether it can be used here, which is true once it is imported."""
        return True

    def destroy_group(self) -> None:
        """Leave the job. Rank 0 ends the network when all have left."""
        member, self._member = self._member, None
        rest, self._rest = self._rest, None
        try:
            if rest is not None:
                rest.destroy_group()
        finally:
            if member is not None:
                member.leave()

    def allreduce(self, tensor: list[Any], allreduce_options: Any = AllReduceOptions) -> None:
        """Sum in place over all ranks. Raises P4ReduceError as `Communicator.allreduce` does."""
        reason = _sum_reason(tensor, allreduce_options)
        if self._member is None or reason:
            self._by_gloo("allreduce", reason).allreduce(tensor, allreduce_options)
            return
        array = _array(tensor[0])
        self._by_switch("allreduce")
        _in_place(array, lambda out: self._comm.allreduce(out, out=out))

    def barrier(self, barrier_options: Any = BarrierOptions) -> None:
        """Wait for all ranks."""
        if self._member is None:
            return
        self._by_switch("barrier")
        self._comm.barrier()

    def reduce(self, tensor: list[Any], reduce_options: Any = ReduceOptions) -> None:
        """Sum over all ranks, in place on the root only."""
        reason = _sum_reason(tensor, reduce_options)
        if self._member is None or reason:
            self._by_gloo("reduce", reason).reduce(tensor, reduce_options)
            return
        array, root = _array(tensor[0]), reduce_options.root_rank
        self._by_switch("reduce")
        got = self._comm.reduce(array, root=root)
        if got is not None:
            np.copyto(array, got)

    def allgather(
        self, tensor_list: list[Any], tensor: list[Any], allgather_options: Any = AllGatherOptions
    ) -> None:
        """Give all ranks the tensors of all, in the given list, bit for bit."""
        if self._member is None or _reason([*tensor_list[0], *tensor]):
            self._by_gloo("allgather", _reason([*tensor_list[0], *tensor])).allgather(
                tensor_list, tensor, allgather_options
            )
            return
        mine = np.ascontiguousarray(_array(tensor[0])).reshape(-1)
        self._by_switch("allgather")
        got = self._comm.allgather(mine, counts=[mine.size] * self._world_size)
        for one, part in zip(tensor_list[0], np.split(got, self._world_size), strict=True):
            array = _array(one)
            np.copyto(array, part.reshape(array.shape))

    def broadcast(self, tensor: list[Any], broadcast_options: Any = BroadcastOptions) -> None:
        """Give all ranks the root's tensor, bit for bit."""
        if self._member is None or _reason(tensor):
            self._by_gloo("broadcast", _reason(tensor)).broadcast(tensor, broadcast_options)
            return
        root = broadcast_options.root_rank
        self._by_switch("broadcast")
        _in_place(_array(tensor[0]), lambda out: self._comm.broadcast(out, root, out=out))

    def reducescatter(
        self,
        tensor: list[Any],
        tensor_list: list[Any],
        reducescatter_options: Any = ReduceScatterOptions,
    ) -> None:
        """Sum a list of tensors over all ranks, and give each rank the one with its number."""
        reason = _sum_reason([*tensor, *tensor_list[0]], reducescatter_options)
        if self._member is None or reason:
            self._by_gloo("reducescatter", reason).reducescatter(
                tensor, tensor_list, reducescatter_options
            )
            return
        mine = _array(tensor[0])
        rows = np.stack([_array(one).reshape(-1) for one in tensor_list[0]])
        self._by_switch("reducescatter")
        np.copyto(mine, self._comm.reduce_scatter(rows).reshape(mine.shape))

    def send(self, tensor: list[Any], send_options: SendOptions) -> None:
        """Send to one rank, by Ray's Gloo."""
        self._by_gloo("send", "").send(tensor, send_options)

    def recv(self, tensor: list[Any], recv_options: RecvOptions) -> None:
        """Receive from one rank, by Ray's Gloo."""
        self._by_gloo("recv", "").recv(tensor, recv_options)

    @property
    def _comm(self) -> Any:
        assert self._member is not None
        return self._member.comm

    def _by_switch(self, call: str) -> None:
        self.calls[call] += 1

    def _by_gloo(self, call: str, reason: str) -> Any:
        what = f"{call}: {reason}" if reason else call
        if self._rest is None:
            raise ConfigurationError(
                f"{what} is not for the switch, and Ray's Gloo needs torch: pip install torch"
            )
        self.calls[f"{what} (Gloo)"] += 1
        return self._rest


def register(timeout: float = 60.0, lease: float = 0.0) -> None:
    """Register the backend with `ray.util.collective` in this process. Repeating it has no effect.

    The driver and each actor call it before groups are made.

    Args:
        timeout: seconds for groups and for each of their calls.
        lease: seconds that a rank may be silent before it is lost. 0: those of `P4REDUCE_LEASE`, or
            10. Rank 0's value counts. A network that runs has its own.

    Raises:
        TypeError, ValueError: a number is wrong.
        ConfigurationError: this version of Ray does not accept other backends.
    """
    check_timeout(timeout)
    check_seconds("lease", lease)
    try:
        from ray.util.collective.backend_registry import register_collective_backend
    except ImportError:
        import ray

        raise ConfigurationError(
            f"Ray {ray.__version__} has no backends of other packages: {_SINCE} or newer is needed"
        ) from None
    P4ReduceGroup.timeout, P4ReduceGroup.lease = timeout, lease
    if not is_backend_available(NAME):
        register_collective_backend(NAME, P4ReduceGroup)


def _array(tensor: Any) -> npt.NDArray[Any]:
    """A tensor's memory as an array."""
    return tensor if isinstance(tensor, np.ndarray) else tensor.detach().numpy()


def _in_place(array: npt.NDArray[Any], call: Any) -> None:
    """Call with a C-contiguous array, and see to it that the result is in `array`."""
    out = np.ascontiguousarray(array)
    call(out)
    if out is not array:
        np.copyto(array, out.reshape(array.shape))


def _reason(tensors: Sequence[Any]) -> str:
    """Why tensors are nothing for the switch; "": nothing is against it."""
    for tensor in tensors:
        if isinstance(tensor, np.ndarray):
            if tensor.dtype.hasobject:
                return "Python objects"
        elif getattr(getattr(tensor, "device", None), "type", "") != "cpu":
            return "on a device"
        elif str(tensor.dtype) == "torch.bfloat16" or str(tensor.layout) != "torch.strided":
            return str(tensor.dtype).removeprefix("torch.")
    return ""


def _sum_reason(tensors: Sequence[Any], options: Any) -> str:
    """Why a sum is nothing for the switch; "": nothing is against it."""
    if options.reduceOp != ReduceOp.SUM:
        return str(options.reduceOp.name)
    if reason := _reason(tensors):
        return reason
    names = (_array(tensor).dtype.name for tensor in tensors)
    return next((name for name in names if name not in _SUMMED), "")
