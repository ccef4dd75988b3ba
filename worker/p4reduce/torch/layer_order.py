# SPDX-License-Identifier: Apache-2.0
"""Gradients in the order in which the next forward pass needs them, the first layer's first.

Jayarajan et al., "Priority-based Parameter Propagation for Distributed DNN Training" (P3), MLSys
2019; Peng et al., "A Generic Communication Scheduler for Distributed DNN Training Acceleration"
(ByteScheduler), SOSP 2019.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from p4reduce.torch.hooks.state import channel_of
from p4reduce.torch.same_start import take_rank_0s
from p4reduce.torch.tensors import array_of
from p4reduce.torch.work import OutcomeWork
from p4reduce.wire.calls import Operation

_WHAT = "LayerOrder"


class LayerOrder:
    """Training in which each layer waits for its own gradient only.

    A backward pass starts each layer's mean over all ranks as soon as its gradients are there. The
    next forward pass takes the optimiser's step of a layer right before it runs that layer. So sums
    of later layers travel while the first layers compute. A layer's mean has a priority, the higher
    the earlier the layer runs: the layers of a forward pass share the communicator's classes evenly
    (`p4reduce.init(urgent_slots=[…])`). With one class the means travel in the order of the calls,
    the last layer's first.

    The results are those of a step of the whole model after each backward pass, bit for bit. A
    layer is a module with parameters of its own, which its forward or that of a module around it
    uses. Not for models in DistributedDataParallel, for several backward passes in a row, or for
    clipping by the norm of the whole gradient. The model starts with rank 0's parameters.

    For example:

        comm = p4reduce.init(slots=256, urgent_slots=[32] * 7)
        order = LayerOrder(model, lambda some: torch.optim.SGD(some, lr=0.1), group=comm)
        for inputs, targets in batches:
            loss(model(inputs), targets).backward()
        order.finish()  # before the parameters are saved

    Args:
        model: on this rank. All ranks have the same one.
        optimizer: makes one of torch's optimisers of a layer's parameters.
        precision: of the switch's lanes: "int16" or "int8" for a half or a quarter of the bytes.
            None: 32 bits.
        group: a process group of the backend "p4reduce", or a communicator that `p4reduce.init`
            made. None: the default group.

    Attributes:
        optimizers: one per layer, for schedulers, in the order of `model.modules()`.

    Raises:
        ValueError: the model has no parameters to train, or a layer's have several dtypes.
        DistBackendError: a rank is lost, or the ranks' parameters differ in size.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: Callable[[Sequence[torch.nn.Parameter]], torch.optim.Optimizer],
        *,
        precision: str | None = None,
        group: Any = None,
    ) -> None:
        self._channel = channel_of(group)
        self._precision = precision
        self._layers: list[_GradientLayer] = []
        self._needs: dict[
            str, list[_GradientLayer]
        ] = {}  # what each module waits for before it runs
        self._called: list[str] = []  # modules, in the order of the first forward pass
        self._learned = False
        owners: dict[int, _GradientLayer] = {}
        for name, module in model.named_modules():
            own = [one for one in module.parameters(recurse=False) if one.requires_grad]
            if new := [one for one in own if id(one) not in owners]:
                layer = _GradientLayer(name, new, optimizer(new))
                self._layers.append(layer)
                owners |= dict.fromkeys(map(id, new), layer)
            self._needs[name] = list(dict.fromkeys(owners[id(one)] for one in own))
            module.register_forward_pre_hook(functools.partial(self._before, name))
        if not self._layers:
            raise ValueError("the model has no parameters that take part in training")
        for layer in self._layers:
            start = functools.partial(self._arrived, layer)
            for parameter in layer.parameters:
                parameter.register_post_accumulate_grad_hook(start)
        self.optimizers = [layer.optimizer for layer in self._layers]
        with torch.no_grad():
            take_rank_0s(self._channel, [*model.parameters(), *model.buffers()], _WHAT)

    def finish(self) -> None:
        """Wait for all means in flight, and take their steps; call it before you save the model."""
        for layer in self._layers:
            layer.step()

    def _before(self, name: str, *_: Any) -> None:
        """A module is about to run."""
        if not self._learned and name not in self._called:
            self._called.append(name)
        for layer in self._needs[name]:
            layer.step()

    def _arrived(self, layer: _GradientLayer, _: torch.Tensor) -> None:
        """A parameter's gradient is there."""
        if not self._learned:
            self._learn()
        if layer.complete():
            layer.work = self._start(layer)

    def _learn(self) -> None:
        """The first forward pass is over: the order is known, and what each module uses."""
        self._learned = True
        for name, needed in list(self._needs.items()):
            around = name
            while around and around not in self._called:
                around = around.rpartition(".")[0]
            if around != name:  # the module around it uses its parameters, as attention does
                self._needs[around] = list(dict.fromkeys([*self._needs[around], *needed]))
        order = dict.fromkeys(layer for name in self._called for layer in self._needs[name])
        classes = len(self._channel.comm.class_slots)
        for place, layer in enumerate(order):
            layer.priority = classes - 1 - place * classes // len(order)

    def _start(self, layer: _GradientLayer) -> OutcomeWork:
        comm, lent = self._channel.comm, array_of(layer.gather())
        return self._channel.start(
            _WHAT,
            lent.array.nbytes,
            lambda timeout: comm.allreduce_async(
                lent.array,
                Operation.MEAN,
                f"{_WHAT} {layer.name}",
                lent.array,
                timeout,
                precision=self._precision,
                priority=layer.priority,
            ),
            options=None,
            result=None,
            finish=lent.put_back,
        )


class _GradientLayer:
    """Parameters whose gradients travel together.

    Attributes:
        priority: of the mean.
        work: the mean under way, or None.
    """

    def __init__(
        self, name: str, parameters: list[torch.nn.Parameter], optimizer: torch.optim.Optimizer
    ) -> None:
        dtypes = {one.dtype for one in parameters}
        if len(dtypes) > 1:
            raise ValueError(f"the parameters of layer {name!r} have several dtypes: {dtypes}")
        self.name = name
        self.parameters = parameters
        self.optimizer = optimizer
        self.priority = 0
        self.work: OutcomeWork | None = None
        self._arrived = 0
        sizes = [one.numel() for one in parameters]
        self._flat = torch.empty(sum(sizes), dtype=parameters[0].dtype, device=parameters[0].device)
        self._pieces = [
            piece.view_as(one)
            for piece, one in zip(self._flat.split(sizes), parameters, strict=True)
        ]

    def complete(self) -> bool:
        """One more gradient is there; return whether all are."""
        if self.work is not None:
            raise RuntimeError(
                f"layer {self.name!r} has a mean in flight: LayerOrder needs a forward pass "
                "before each backward pass"
            )
        self._arrived += 1
        return self._arrived == len(self.parameters)

    def gather(self) -> torch.Tensor:
        """Return all gradients in a row."""
        self._arrived = 0
        for piece, one in zip(self._pieces, self.parameters, strict=True):
            assert one.grad is not None
            piece.copy_(one.grad)
        return self._flat

    def step(self) -> None:
        """Take the optimiser's step if there is a mean for it; wait for that."""
        if self._arrived:
            raise RuntimeError(
                f"layer {self.name!r} has gradients of {self._arrived} of its "
                f"{len(self.parameters)} parameters: LayerOrder needs all of them"
            )
        work, self.work = self.work, None
        if work is None:
            return
        work.wait()
        for piece, one in zip(self._pieces, self.parameters, strict=True):
            one.grad = piece
        self.optimizer.step()
        self.optimizer.zero_grad()
