# SPDX-License-Identifier: Apache-2.0
"""The interface of all compressors, and their shared part: error feedback.

A compressor makes two or three calls per tensor and step, the same on every rank:

    wanted = compressor.propose(name, gradient)           # None, or a small array to sum first
    sent = compressor.compress(name, gradient, agreed)    # agreed: that sum
    total = allreduce(sent.values)                        # zero blocks cost (next to) nothing
    result = compressor.decompress(name, total)

`CompressedAllreduce` does all of that over a communicator. What is all-reduced has the gradient's
own shape and zeros where nothing is sent, because that is what the switch sums: whole blocks of
1,024 bytes, blocks of zeros left out. An element costs its whole block, so blocks are the unit of
choice unless `unit=1` is asked for (which is what the papers' cost models count).

Error feedback (Seide et al., Interspeech 2014; Stich et al., NeurIPS 2018; Karimireddy et al., ICML
2019) keeps what was not sent, per tensor. It is added to the next gradient of that name.

**NaN and infinity** have the same effect as in a plain all-reduce. A block of the sum that has them
on any rank is NaN on all ranks in that step, and the next step can be as usual. So a gradient that
is not finite is sent whole: nothing can be chosen of it. No part of it belongs into a residual,
which would never lose it again. The rank has no say in what the ranks agree on. What the others
sent of the blocks that come out as NaN has reached nobody; with feedback they keep it as if it had
not been sent.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from p4reduce.compression import kernels
from p4reduce.compression.costs import BoolArray, FloatArray, IntArray, SwitchLink
from p4reduce.tensors.copy_pool import CopyPool
from p4reduce.wire.format import PAYLOAD_BYTES

Array = npt.NDArray[Any]

LANE_BITS = (32, 16, 8, 4)


def lanes_of(lane_bits: int) -> int:
    """Return the number of elements in a block of 1,024 bytes.

    Raises:
        ValueError: not 32, 16, 8 or 4.
    """
    if lane_bits not in LANE_BITS:
        raise ValueError(f"lane_bits is {lane_bits}; the switch has lanes of 32, 16, 8 and 4 bits")
    return PAYLOAD_BYTES * 8 // lane_bits


@dataclass(frozen=True, slots=True)
class Selected:
    """What a compressor chose.

    Attributes:
        units: indices of the chosen units, each once, in any order; None: all.
        alpha: the share of the possible progress that the choice makes (arXiv 2003.06377), 0 to 1;
            None where the method has no such estimate.
        step: gamma(T) L of the values as sent; 1 where the values hold that factor already.
        level: units to report; None: as many as there are in `units`.
        factors: float64, one per entry of `units`, by which its elements are multiplied; None: 1.
        magnitude: of each number, if only signs are sent; 0: the numbers are.
    """

    units: IntArray | None
    alpha: float | None = None
    step: float = 1.0
    level: int | None = None
    factors: FloatArray | None = None
    magnitude: float = 0.0


@dataclass(frozen=True, slots=True)
class Compressed:
    """One rank's contribution to an all-reduce of one tensor.

    Attributes:
        values: same shape and dtype as the gradient, zero where nothing is sent. Of a
            `LinearOperator`, its message: flat, of another size.
        lane_bits: 32, 16, 8 or 4: the lanes that can carry the values.
        level: units chosen.
        units: units of the tensor.
        blocks: blocks of lanes with anything but zeros in them: what costs lanes on the wire.
        total_blocks: blocks of the tensor.
        alpha: see `Selected`.
        step: see `Selected`.
        dense: whether everything is sent: because that takes no more frames, or because the
            gradient is not finite (alpha is None then).
    """

    values: Array
    lane_bits: int
    level: int
    units: int
    blocks: int
    total_blocks: int
    alpha: float | None
    step: float
    dense: bool


def nonzero_blocks(values: Array, lanes: int) -> BoolArray:
    """Return which blocks of `lanes` elements are not all zeros."""
    return kernels.look(kernels.usable(values), lanes)[1]


@dataclass(slots=True)
class TensorState:
    """What a compressor remembers of one named tensor on one rank.

    Attributes:
        residual: what has not been sent yet; None before the first step or without feedback.
        step: number of compressions.
        own_blocks: blocks with lanes in the latest contribution.
        own_units: which units of the latest contribution were not all zeros; None at first.
        overlap: how far the ranks' latest choices agreed, 0 (as if independent) to 1 (equal).
        sent: what was sent last, until its result is known; None without feedback.
        given: the gradient that has been begun, until it is compressed.
        wanted: gradient and residual of the step under way, flat; None: they are not finite.
        energies: the squared 2-norms of its units, float64.
    """

    residual: Array | None = None
    sent: Array | None = None
    step: int = 0
    own_blocks: int = 0
    own_units: BoolArray | None = None
    overlap: float = 0.0
    given: Array | None = None
    wanted: Array | None = None
    energies: FloatArray = field(default_factory=lambda: np.empty(0))


@dataclass(slots=True)
class DenseSwitchOver:
    """Sends everything if leaving blocks out would not save frames, per tensor and step.

    SparCML (Renggli et al., SC 2019, section 5.1) makes a stream dense when its indices would
    outweigh what they leave out. Here nothing has indices. But a result takes two frames if its
    last contribution came without lanes, and the union of the ranks' blocks grows as 1 - (1 - D)^n.
    So leaving blocks out pays only while the expected frames, up and down, are fewer.

    Attributes:
        link: the world size and slots of the communicator.
    """

    link: SwitchLink

    def prefers_dense(self, own: int, total: int, overlap: float) -> bool:
        """Whether all blocks need no more frames than `own` blocks per rank would."""
        if not 0 < own < total:
            return own == total
        link = replace(self.link, overlap=overlap)
        union = float(link.union(own, total))
        sparse = link.traffic(own, union, total)
        dense = link.traffic(total, total, total)
        return sparse.frames_up + sparse.frames_down >= dense.frames_up + dense.frames_down


@dataclass
class Compressor(ABC):
    """Base of all compressors. One object serves one rank, and any number of named tensors.

    Attributes:
        world_size: ranks whose contributions are summed.
        unit: elements chosen together; 0 means a block of the lanes in use.
        lane_bits: 32; or 16, 8, 4: the all-reduce rounds to such lanes at random.
        error_feedback: keep what is not sent; None: yes if the method is biased.
        switch_over: when to send everything. None: never, the default except for compressors of
            `compressor_by_name`.
        seed: of the random choices. Ranks may share it, unless the method says otherwise.
    """

    world_size: int = 1
    unit: int = 0
    lane_bits: int = 32
    error_feedback: bool | None = None
    switch_over: DenseSwitchOver | None = None
    seed: int = 0
    states: dict[str, TensorState] = field(default_factory=dict, init=False, repr=False)
    spare: CopyPool = field(default_factory=CopyPool, init=False, repr=False, compare=False)

    biased: ClassVar[bool] = True
    """Whether the mean of what is sent differs from the gradient, without feedback."""
    narrow_proposals: ClassVar[bool] = False
    """Whether what is summed first travels in the same narrow lanes."""
    prices: ClassVar[bool] = False
    """Whether the choice depends on the link's costs, so that the caller measures the link."""

    def __post_init__(self) -> None:
        self.lanes = lanes_of(self.lane_bits)
        if self.unit < 0 or self.world_size < 1:
            raise ValueError(
                f"unit {self.unit} must not be negative, world size {self.world_size} positive"
            )
        self.unit = self.unit or self.lanes
        self.feedback = self.biased if self.error_feedback is None else self.error_feedback
        self.random = np.random.default_rng(self.seed)

    def weigh(self, link: SwitchLink) -> None:
        """Use the costs of this link from now on."""
        if self.switch_over is not None:
            self.switch_over = DenseSwitchOver(replace(link, lane_bits=self.lane_bits))

    def describe(self, name: str, shapes: Sequence[tuple[int, ...]]) -> None:
        """Treat a flat tensor as several consecutive arrays from now on.

        Args:
            name: of the tensor.
            shapes: of the arrays.
        """
        del name, shapes

    def count_time(self, clock: Callable[[], float]) -> None:
        """Measure a step's cost beside its traffic, with a clock of seconds, if needed."""
        del clock

    def propose(self, name: str, gradient: Array) -> Array | None:
        """Return what ranks must sum before they compress; None if they need not agree.

        Its shape depends on the gradient's size alone, so the ranks stay in step.
        """
        del name, gradient
        return None

    def compress(self, name: str, gradient: Array, agreed: Array | None = None) -> Compressed:
        """Choose what to send of this tensor, and keep the rest if feedback is on.

        Args:
            name: of the tensor: its residual is kept under it.
            gradient: floats of any shape; is not changed. Without elements it is sent as it is.
            agreed: the sum of what the ranks proposed, if they did.

        Raises:
            TypeError: the gradient is not a numpy array of floats.
            ValueError: the gradient's shape is not that of the residual of this name.
        """
        state, wanted = self._taken(name, gradient)
        if not gradient.size:
            return Compressed(gradient.copy(), self.lane_bits, 0, 0, 0, 0, None, 1.0, False)
        if wanted is None:
            return self._send_whole(state, gradient)
        chosen = self.select(state, kernels.usable(gradient), wanted, agreed)
        total, units = -(-gradient.size // self.lanes), -(-gradient.size // self.unit)
        _check_units(chosen.units, units)
        if self.feedback:
            state.residual = wanted.reshape(gradient.shape)  # less what is sent, see below
        values = kernels.lend(self.spare, wanted.size, wanted.dtype)
        state.own_units = self._keep(chosen, wanted, values)
        own_blocks = (
            state.own_units if self.unit == self.lanes else nonzero_blocks(values, self.lanes)
        )
        own = int(np.count_nonzero(own_blocks))
        dense = self.switch_over is not None and self.switch_over.prefers_dense(
            own, total, state.overlap
        )
        if dense:
            chosen, own = Selected(None, 1.0), total
            state.own_units = self._keep(chosen, wanted, values)
        if self.feedback:
            kernels.subtract(wanted, values, chosen.units, self.unit)
            state.sent = values.reshape(gradient.shape)
        state.step += 1
        state.own_blocks = own
        level = units if chosen.units is None else len(chosen.units)
        return Compressed(
            values.reshape(gradient.shape),
            self.lane_bits,
            level if chosen.level is None else chosen.level,
            units,
            own,
            total,
            chosen.alpha,
            chosen.step,
            dense,
        )

    def _keep(self, chosen: Selected, wanted: Array, values: Array) -> BoolArray:
        """Fill `values` with what was chosen, and return which units are not all zeros."""
        if chosen.units is None:
            values[:] = wanted
            return kernels.look(values, self.unit)[1]
        values.fill(0)
        units = np.ascontiguousarray(chosen.units, np.int64)
        some = np.zeros(-(-wanted.size // self.unit), np.bool_)
        some[units] = kernels.keep(
            wanted, units, self.unit, values, factors=chosen.factors, magnitude=chosen.magnitude
        )
        return some

    def _send_whole(self, state: TensorState, gradient: Array) -> Compressed:
        """Send a gradient that is not finite; the residual waits for one that is."""
        units, total = -(-gradient.size // self.unit), -(-gradient.size // self.lanes)
        state.step += 1
        state.own_blocks, state.sent = total, None
        return Compressed(
            gradient.copy(), self.lane_bits, units, units, total, total, None, 1.0, True
        )

    def decompress(self, name: str, total: Array) -> Array:
        """Turn the ranks' sum or mean into the result, and learn from it.

        The compressor learns how far the ranks agree, and what has not arrived: if the total is not
        finite, the contribution returns to the residual.
        """
        state = self.states[name]
        sent, state.sent = state.sent, None
        finite, some = kernels.look(kernels.usable(total), self.lanes)
        if not finite:
            if state.residual is not None and sent is not None:
                state.residual = np.where(np.isfinite(total), state.residual, state.residual + sent)
            return total
        own, blocks = state.own_blocks, len(some)
        if 0 < own < blocks:
            union = np.count_nonzero(some)
            independent = blocks * (1.0 - (1.0 - own / blocks) ** self.world_size)
            if independent > own:
                agreement = (independent - float(union)) / (independent - own)
                state.overlap = min(1.0, max(0.0, agreement))
        return total

    def reset(self, name: str | None = None) -> None:
        """Forget the residual and history of one tensor, or of all."""
        if name is None:
            self.states.clear()
        else:
            self.states.pop(name, None)

    @abstractmethod
    def select(
        self, state: TensorState, gradient: Array, wanted: Array, agreed: Array | None
    ) -> Selected:
        """Choose what to send.

        Args:
            state: of the tensor. Its `energies` are the squared 2-norms of the units of `wanted`.
            gradient: flat, must not be changed.
            wanted: gradient and residual, flat, must not be changed.
            agreed: the sum of what the ranks proposed.
        """

    def _new_state(self) -> TensorState:
        return TensorState()

    def _state(self, name: str, gradient: Array) -> TensorState:
        if not isinstance(gradient, np.ndarray):
            raise TypeError(
                f"tensor {name!r} is a {type(gradient).__name__}; numpy arrays are compressed"
            )
        if not np.issubdtype(gradient.dtype, np.floating):
            raise TypeError(f"tensor {name!r} is of {gradient.dtype}; only floats are compressed")
        state = self.states.get(name)
        if state is None:
            state = self.states[name] = self._new_state()
        if state.residual is not None and state.residual.shape != gradient.shape:
            raise ValueError(
                f"tensor {name!r} has shape {gradient.shape}, but its residual has "
                f"{state.residual.shape}; use another name or reset() it"
            )
        return state

    def _taken(self, name: str, gradient: Array) -> tuple[Any, Array | None]:
        """Return a tensor's state and what is wanted; None: that is not finite.

        If `propose` has begun with this array, its pass counts. `propose` always begins anew:
        callers may give one array in each step, with other numbers.
        """
        state = self.states.get(name)
        if state is None or state.given is not gradient:
            state = self.begun(name, gradient)
        wanted, state.given, state.wanted = state.wanted, None, None
        return state, wanted

    def begun(self, name: str, gradient: Array) -> Any:
        """Return a tensor's state with what is wanted in this step, from one pass over it."""
        state = self._state(name, gradient)
        flat = kernels.usable(gradient)
        residual = None if state.residual is None else state.residual.reshape(-1)
        if residual is not None:
            residual = np.ascontiguousarray(residual, flat.dtype)
        wanted = flat
        if residual is not None or self.feedback:
            wanted = kernels.lend(self.spare, flat.size, flat.dtype)
        finite = self._look_at(state, flat, residual, wanted)
        state.given, state.wanted = gradient, wanted if finite else None
        return state

    def _look_at(
        self, state: TensorState, gradient: Array, residual: Array | None, wanted: Array
    ) -> bool:
        """Add the residual to a gradient, and measure units. Returns whether all is finite."""
        state.energies = np.empty(-(-gradient.size // self.unit))
        return kernels.want(
            gradient,
            residual,
            self.unit,
            wanted=None if wanted is gradient else wanted,
            energies=state.energies,
        )


def _check_units(chosen: IntArray | None, units: int) -> None:
    """See that a compressor has chosen units that exist, each once."""
    if chosen is None or not len(chosen):
        return
    if not 0 <= int(chosen.min()) <= int(chosen.max()) < units:
        raise ValueError(
            f"units {int(chosen.min())} to {int(chosen.max())} were chosen; there are 0 to "
            f"{units - 1}"
        )
    there = np.zeros(units, np.bool_)
    there[chosen] = True
    if np.count_nonzero(there) < len(chosen):
        raise ValueError("a unit was chosen twice")
