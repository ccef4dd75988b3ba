# SPDX-License-Identifier: Apache-2.0
"""The collectives of a process group: their names, arguments and options, and who makes them.

`torch.distributed` and C++ give lists of tensors and an options object. A caller of the group
itself may give one tensor, and the operation or root and a timeout in place of the options.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

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

from p4reduce.torch import copies, exchanges, reductions
from p4reduce.torch.calls import TorchCall
from p4reduce.torch.options import as_given, listed, nested, options_of

_FIELDS = {"op": "reduceOp", "root": "rootRank"}  # their names in the options

_OUTPUT_INPUT = {"output": as_given, "input": as_given}
_LISTS = {"output_tensors": nested, "input_tensors": listed}


@dataclass(frozen=True)
class Method:
    """A method of a process group.

    Attributes:
        call: returns the call for a place, the arguments and the options.
        options: torch's class.
        arguments: that are no options: their names, and what gives them their form.
        fields: that may stand in the place of options, in the order of torch's other signature.
    """

    call: Callable[..., TorchCall]
    options: type
    arguments: Mapping[str, Callable[[Any], Any]]
    fields: Sequence[str] = ("timeout",)

    def bind(self, args: Sequence[Any], named: Mapping[str, Any]) -> tuple[list[Any], Any]:
        """Return the arguments in their form, and the options.

        Raises:
            TypeError: an argument is missing, or there is no such argument; or options are given,
                and a field of theirs as well.
        """
        values, rest, given = args[: len(self.arguments)], args[len(self.arguments) :], dict(named)
        if len(values) < len(self.arguments):
            values = *values, *self._named_values(len(values), given)
        options, fields = given.pop("opts", None), self.fields
        # None stands for the first field: what follows are the others; `timeout` alone stays.
        if rest and (rest[0] is None or isinstance(rest[0], self.options)):
            options, rest = rest[0] or options, rest[1:]
            fields = fields[1:] or fields
        if options is not None and (rest or given):
            said = [*map(str, rest), *given]
            raise TypeError(f"options are given, and {', '.join(said)} beside them: give one")
        if rest or given:
            self._name_fields(fields, rest, given)
        formed = [form(value) for form, value in zip(self.arguments.values(), values, strict=True)]
        return formed, self._options_of(given) if options is None else options

    def _named_values(self, first: int, given: dict[str, Any]) -> list[Any]:
        """Take arguments, from one on, out of those that are given by name."""
        try:
            return [given.pop(name) for name in list(self.arguments)[first:]]
        except KeyError as error:
            raise TypeError(f"missing argument {error}") from None

    def _name_fields(
        self, fields: Sequence[str], rest: Sequence[Any], given: dict[str, Any]
    ) -> None:
        """Add the fields of options that are given by place to those that are given by name."""
        if twice := given.keys() & set(fields[: len(rest)]):
            raise TypeError(f"{', '.join(sorted(twice))} is given by place and by name")
        given.update(zip(fields, rest, strict=False))
        if len(rest) > len(fields) or not given.keys() <= {"timeout", *self.fields}:
            raise TypeError(
                f"arguments {list(rest)} and {sorted(given)}: {self.fields} are possible"
            )

    def _options_of(self, given: dict[str, Any]) -> Any:
        """Return options by their fields."""
        timeout: timedelta | None = given.pop("timeout", None)
        fields = {_FIELDS[name]: value for name, value in given.items()}
        return options_of(self.options, timeout, **fields)


METHODS = {
    "allreduce": Method(
        reductions.all_reduce_call, AllreduceOptions, {"tensors": listed}, ("op", "timeout")
    ),
    "allreduce_coalesced": Method(
        reductions.all_reduce_coalesced_call, AllreduceCoalescedOptions, {"tensors": listed}
    ),
    "reduce": Method(
        reductions.reduce_call, ReduceOptions, {"tensors": listed}, ("root", "op", "timeout")
    ),
    "reduce_scatter": Method(
        reductions.reduce_scatter_lists_call,
        ReduceScatterOptions,
        {"output_tensors": listed, "input_tensors": nested},
        ("op", "timeout"),
    ),
    "_reduce_scatter_base": Method(
        reductions.reduce_scatter_tensor_call, ReduceScatterOptions, _OUTPUT_INPUT
    ),
    "broadcast": Method(
        copies.broadcast_call, BroadcastOptions, {"tensors": listed}, ("root", "timeout")
    ),
    "allgather": Method(copies.all_gather_lists_call, AllgatherOptions, _LISTS),
    "_allgather_base": Method(copies.all_gather_tensor_call, AllgatherOptions, _OUTPUT_INPUT),
    "barrier": Method(copies.barrier_call, BarrierOptions, {}),
    "gather": Method(exchanges.gather_call, GatherOptions, _LISTS, ("root", "timeout")),
    "scatter": Method(
        exchanges.scatter_call,
        ScatterOptions,
        {"output_tensors": listed, "input_tensors": nested},
        ("root", "timeout"),
    ),
    "alltoall": Method(
        exchanges.all_to_all_lists_call,
        AllToAllOptions,
        {"output_tensors": listed, "input_tensors": listed},
    ),
    "alltoall_base": Method(
        exchanges.all_to_all_tensor_call,
        AllToAllOptions,
        {
            **_OUTPUT_INPUT,
            "output_split_sizes": as_given,
            "input_split_sizes": as_given,
        },
    ),
}
"""By the names that C++ and other backends have for them."""
