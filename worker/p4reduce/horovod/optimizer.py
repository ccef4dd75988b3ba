# SPDX-License-Identifier: Apache-2.0
"""`DistributedOptimizer`: any optimiser of torch, with the gradients of all ranks.

Gradients are summed during the backward pass, in buckets in the reverse order of the parameters.
Buckets start in this order on all ranks, whatever order their gradients arrive in.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch

from p4reduce.horovod.compression import Compression
from p4reduce.horovod.context import ProcessSet, global_process_set
from p4reduce.horovod.errors import HorovodInternalError, internal, refused
from p4reduce.horovod.functions import broadcast_object
from p4reduce.horovod.handles import CollectiveHandles
from p4reduce.horovod.operations import (
    Average,
    ReduceOp,
    Sum,
    grouped_allreduce_async_,
    operation_of,
    sparse_allreduce_async,
)

_BUCKET_BYTES = 1 << 20  # of gradients that are summed together

Parameters = list[torch.nn.Parameter]
Unpack = Callable[[torch.Tensor], torch.Tensor]


class Gradients:
    """The sums of one optimiser's gradients.

    Args:
        named: each parameter's name, in the order of the model.
        buckets: parameters that are summed together, in the order in which they start.
        compression: as for `hvd.allreduce`.
        passes: backward passes before a sum.
        op: Average, Sum, Min, Max or Product.
        predivide: as for `DistributedOptimizer`.
        sparse_as_dense: whether sparse gradients are sent as dense ones.
        process_set: the ranks that take part.
    """

    def __init__(
        self,
        named: dict[torch.nn.Parameter, str],
        buckets: Sequence[Parameters],
        compression: Any,
        passes: int,
        op: ReduceOp,
        predivide: float,
        sparse_as_dense: bool,
        process_set: ProcessSet,
    ) -> None:
        self._named = named
        self._buckets = buckets
        self._compression = compression
        self.passes = passes
        self._op = op
        self._predivide = predivide
        self._sparse_as_dense = sparse_as_dense
        self._process_set = process_set
        self._in_flight: list[tuple[Parameters, CollectiveHandles, list[Unpack]]] = []
        self.forget()
        for number, bucket in enumerate(buckets):
            for parameter in bucket:
                parameter.register_hook(partial(self._expect, parameter, number))
                parameter.register_post_accumulate_grad_hook(self._count)

    def forget(self) -> None:
        """Start a step. Waits for sums in flight."""
        for _, handle, _ in self._in_flight:
            with suppress(HorovodInternalError):  # the caller of `step` got it already
                handle.wait()
        self._in_flight.clear()
        self._started = 0
        self._counts = dict.fromkeys(self._named, 0)

    @property
    def in_flight(self) -> bool:
        """Whether sums have started that were not waited for."""
        return bool(self._in_flight)

    @property
    def pending(self) -> bool:
        """Whether there was a backward pass since the last sums."""
        return self.in_flight or any(self._counts.values())

    def synchronize(self) -> None:
        """Start the remaining sums, wait for all, and store the results in the gradients."""
        while self._started < len(self._buckets):
            self._start()
        for parameters, handle, unpacks in self._in_flight:
            results = handle.wait()
            for parameter, result, unpack in zip(parameters, results, unpacks, strict=True):
                parameter.grad = unpack(result)
        self._in_flight.clear()
        self.forget()

    def combined(self, loss: Any) -> Any:
        """Return the mean of all ranks' losses, their sum if gradients are summed.

        A line search compares losses, and all ranks must find the same. What is not one number is
        returned as it is.
        """
        whole = isinstance(loss, torch.Tensor) and loss.numel() == 1
        if not whole and not isinstance(loss, (int, float)):
            return loss
        ranks = len(self._process_set.ranks)
        losses = torch.empty(ranks, dtype=torch.float64)
        with internal():
            own = torch.tensor([float(loss)], dtype=torch.float64)
            self._process_set.backend.all_gather_single(losses, own).wait()
        total = sum(losses.tolist())  # in the same order on all machines, as the results must be
        if self._op != Sum:
            total /= ranks
        return torch.full_like(loss, total, requires_grad=False) if whole else total

    def _expect(self, parameter: torch.nn.Parameter, bucket: int, _gradient: torch.Tensor) -> None:
        """A gradient is about to be accumulated, perhaps after the model dropped earlier ones."""
        if parameter.grad is None and bucket >= self._started:
            self._counts[parameter] = 0

    def _count(self, parameter: torch.nn.Parameter) -> None:
        """A parameter's gradient is there, from one more backward pass."""
        self._counts[parameter] += 1
        if self._counts[parameter] > self.passes:
            raise AssertionError(
                f"the gradient of {self._named[parameter]} was computed more than "
                f"backward_passes_per_step={self.passes} times before step(): give a larger one "
                "to add gradients up on this rank"
            )
        while self._started < len(self._buckets) and self._is_ready(self._buckets[self._started]):
            self._start()

    def _is_ready(self, bucket: Parameters) -> bool:
        return all(self._counts[parameter] == self.passes for parameter in bucket)

    def _start(self) -> None:
        """Start the next bucket's sum; gradients that this rank does not have are zeros."""
        number, bucket = self._started, self._buckets[self._started]
        self._started += 1
        dense: Parameters = []
        for parameter in bucket:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            if parameter.grad.is_sparse and not self._sparse_as_dense:
                self._start_sparse(parameter)
            else:
                dense.append(parameter)
        if not dense:
            return
        packed: list[torch.Tensor] = []
        unpacks: list[Unpack] = []
        for parameter in dense:
            assert parameter.grad is not None
            gradient = parameter.grad.detach()
            gradient = gradient.to_dense() if gradient.is_sparse else gradient
            tensor, context = self._compression.compress(gradient)
            packed.append(tensor)
            unpacks.append(partial(self._compression.decompress, ctx=context))
        before, after = 1.0, 1.0
        if self._op == Average:
            before, after = 1.0 / self._predivide, self._predivide
        handle = grouped_allreduce_async_(
            packed,
            None,
            name=f"bucket {number}",
            op=self._op,
            prescale_factor=before,
            postscale_factor=after,
            process_set=self._process_set,
            precision=getattr(self._compression, "precision", None),
        )
        self._in_flight.append((dense, handle, unpacks))

    def _start_sparse(self, parameter: torch.nn.Parameter) -> None:
        assert parameter.grad is not None
        handle = sparse_allreduce_async(
            parameter.grad, self._named[parameter], self._op, self._process_set
        )
        self._in_flight.append(([parameter], CollectiveHandles.of_all([handle]), [_as_it_is]))


def _as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


class _Distributed:
    """What a distributed optimiser has before its torch class."""

    _gradients: Gradients | None
    _synchronized: bool
    _should_synchronize: bool

    def synchronize(self) -> None:
        """Wait until all ranks' gradients are in this rank's."""
        if self._gradients is not None:
            self._gradients.synchronize()
        self._synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Let `step` not synchronise, where `synchronize` was called to look at the gradients."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def step(self, closure: Any = None) -> Any:
        """Synchronise, and do a step of the torch class.

        Args:
            closure: computes the gradients, and returns the loss. The ranks synchronise after each
                evaluation, and all get the mean of their losses (with op=Sum the sum), so that a
                line search decides alike on all of them.

        Returns:
            What the torch class returns.
        """
        if closure is not None and self._gradients is not None:
            if self._gradients.pending:
                self.synchronize()  # the closure may drop these gradients, or return their loss
            closure = partial(self._evaluated, closure, self._gradients)
        elif self._should_synchronize:
            if self._synchronized:
                warnings.warn(
                    "step() after synchronize() sums the gradients again: call it within "
                    "`with optimizer.skip_synchronize():`",
                    stacklevel=2,
                )
            self.synchronize()
        try:
            return super().step(closure)  # type: ignore[misc]
        finally:
            self._synchronized = False

    def _evaluated(self, closure: Callable[[], Any], gradients: Gradients) -> Any:
        """Evaluate a closure, and synchronise unless `synchronize` did it for these gradients."""
        loss = closure()
        if gradients.pending or (self._should_synchronize and not self._synchronized):
            self.synchronize()
        self._synchronized = False
        return gradients.combined(loss)

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """As torch's, and forget what backward passes have accumulated for the next sum.

        Raises:
            AssertionError: the gradients are being summed: between the last backward pass and
                `step` or `synchronize`.
        """
        if self._gradients is not None and self._gradients.in_flight:
            raise AssertionError(
                "zero_grad() after backward() and before step() or synchronize(): the gradients "
                "are being summed"
            )
        super().zero_grad(*args, **kwargs)  # type: ignore[misc]
        if self._gradients is not None:
            self._gradients.forget()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's, of a rank alone. With several, NotImplementedError: nobody sums the group."""
        if self._gradients is not None:
            raise refused(
                "add_param_group of a DistributedOptimizer",
                "add groups to torch's optimizer, and make the DistributedOptimizer then",
            )
        super().add_param_group(param_group)  # type: ignore[misc]

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """As torch's; a step that had begun is forgotten."""
        if self._gradients is not None:
            self._gradients.forget()
        self._synchronized, self._should_synchronize = False, True
        super().load_state_dict(*args, **kwargs)  # type: ignore[misc]

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change how many backward passes are added up before a sum."""
        if self._gradients is not None:
            self._gradients.forget()
            self._gradients.passes = passes


def DistributedOptimizer(  # noqa: N802  # Horovod's name for it
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: ReduceOp | int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | list[list[torch.Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return an optimiser of the same class that combines all ranks' gradients before each step.

    It takes over parameters, options and state of the given one, which must not be used any more.

    Args:
        optimizer: one of torch's.
        named_parameters: `model.named_parameters()`; the ranks agree on the names. None: numbers.
        compression: `Compression.none` or `Compression.fp16`.
        backward_passes_per_step: the gradients of this many backward passes are added on the rank
            before they are sent.
        op: Average, Sum, Min, Max or Product.
        gradient_predivide_factor: of an average: gradients are divided by it before the sum, and
            by the number of ranks over it afterwards.
        num_groups: the older name of `groups`.
        groups: the number of groups of gradients that are summed together, or the parameters of
            each group. None: buckets of 1 MiB.
        sparse_as_dense: whether sparse gradients are made dense. Otherwise their rows are sent.
        process_set: the ranks that take part; others do their steps alone.

    Raises:
        NotImplementedError: Adasum.
        ValueError: an argument does not fit; the message names it.
    """
    known = operation_of(op, None)
    if gradient_predivide_factor != 1.0 and known != Average:
        raise ValueError("gradient_predivide_factor is for op=hvd.Average")
    if backward_passes_per_step < 1:
        raise ValueError(f"backward_passes_per_step={backward_passes_per_step}: 1 or more")
    if num_groups:
        warnings.warn("num_groups: give groups", DeprecationWarning, stacklevel=2)
        groups = num_groups if groups is None else groups
    named = _names(optimizer, named_parameters)
    kind: Any = type(type(optimizer).__name__, (_Distributed, type(optimizer)), {})
    made: Any = kind.__new__(kind)
    # A scheduler may have put a `step` of its own on the optimiser, which is bound to that one.
    made.__dict__.update({key: one for key, one in vars(optimizer).items() if key != "step"})
    made._synchronized, made._should_synchronize, made._gradients = False, True, None
    if process_set.included() and len(process_set.ranks) > 1:
        order = [one for one in reversed(named) if one.requires_grad]
        made._gradients = Gradients(
            named,
            _buckets(order, named, groups, process_set),
            compression,
            backward_passes_per_step,
            known,
            gradient_predivide_factor,
            sparse_as_dense,
            process_set,
        )
    return made


def _names(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None,
) -> dict[torch.nn.Parameter, str]:
    """Return the names of the optimiser's parameters, in the order in which they are given."""
    held = [one for group in optimizer.param_groups for one in group["params"]]
    if named_parameters is None:
        return {one: f"parameter {number}" for number, one in enumerate(held)}
    pairs = list(named_parameters)
    if any(not isinstance(pair, tuple) for pair in pairs):
        raise ValueError(
            "named_parameters: pairs of name and parameter, as model.named_parameters()"
        )
    names = [name for name, _ in pairs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"named_parameters has names twice: {', '.join(twice)}")
    ids = {id(one) for one in held}
    named = {one: name for name, one in pairs if id(one) in ids}
    if unnamed := len(held) - len(named):
        raise ValueError(f"named_parameters lacks {unnamed} of the optimizer's parameters")
    return named


def _buckets(
    order: Parameters,
    named: dict[torch.nn.Parameter, str],
    groups: int | list[list[torch.Tensor]] | None,
    process_set: ProcessSet,
) -> list[Parameters]:
    """Return which gradients travel together, in the order in which they do."""
    if isinstance(groups, list):
        return _given_groups(order, groups)
    if groups is not None and (not isinstance(groups, int) or groups < 1):
        raise ValueError(f"groups={groups!r}: a positive number, or lists of parameters")
    agreed = broadcast_object(
        [named[one] for one in order], process_set.ranks[0], "parameters", process_set
    )
    if agreed != [named[one] for one in order]:
        raise ValueError(
            f"this rank's parameters are not those of rank {process_set.ranks[0]}, or in another "
            "order: the ranks need the same model"
        )
    if groups is not None:
        cuts = [round(number * len(order) / groups) for number in range(groups + 1)]
        parts = [order[first:end] for first, end in itertools.pairwise(cuts)]
        return [part for part in parts if part]
    buckets: list[Parameters] = []
    room = 0
    for one in order:
        size = one.numel() * one.element_size()
        if size > room or one.dtype != buckets[-1][-1].dtype:
            buckets.append([])
            room = _BUCKET_BYTES
        buckets[-1].append(one)
        room -= size
    return buckets


def _given_groups(order: Parameters, groups: list[list[torch.Tensor]]) -> list[Parameters]:
    """Return the groups given, and one each of the parameters that are in none of them."""
    seen: set[int] = set()
    for one in [one for group in groups for one in group]:
        if not isinstance(one, torch.Tensor):
            raise ValueError(f"groups: {one!r} is not a parameter")
        if id(one) in seen:
            raise ValueError("groups: a parameter is in two of them")
        seen.add(id(one))
    wanted = [[one for one in order if any(one is other for other in group)] for group in groups]
    alone = [[one] for one in order if id(one) not in seen]
    place = {one: number for number, one in enumerate(order)}
    return sorted([part for part in [*wanted, *alone] if part], key=lambda part: place[part[-1]])
