# SPDX-License-Identifier: Apache-2.0
"""CAT for error feedback: what a level delays is not lost, which changes the value of a bit.

The rule of arXiv 2003.06377 maximises alpha(T) / C(T): as if what is left out were lost. That holds
without feedback, and at the first step. `MemoryCat` minimises instead the price of a whole run,

    (steps that a run at level T takes) * C(T).

**Steps.** With feedback x is the uncompressed iterate less a residual that has yet to be sent (the
"virtual iterate" of Stich and Karimireddy, arXiv 1909.05350). So a run is not slower in proportion:
it lags. Let each message take the share alpha of what waits, and let the gradient g stay the same.
Then the residual settles at e = (1/alpha - 1) g, and the lag is 1/alpha - 1 steps. A late part is
worth less, because the gradient has changed. Of the 1 - alpha that waits, let the share q(T) still
be of use when it is sent. What uncompressed takes t steps and one more then takes

    t / (alpha + q (1 - alpha)) + 1 + k (1/alpha - 1).

How long the run will be nobody says; what is known is how long it has been: t is the number of
steps so far. At t = 0 the sum is 1/alpha, and the rule is the paper's. Later the lag, which is paid
once, counts for less and less against the price, which is paid each step, as long as q is high.
Where q is 0 it is the paper's rule again.

**Measured, not assumed,** are k and q, per tensor, by sums over about the last ten steps:

* The age a of what waits. A unit's age is the number of steps since it was sent. The mean is
  weighted with the gradient's energy. k is a, divided by the mean 1/alpha - 1 of the levels used.
  It is above 1 if messages take less than the share alpha of a residual that is flatter than the
  gradient.
* The persistence of the gradient, <e, g> / (a <g, g'>), with the previous step's gradient g'. It is
  1 if g has been the same while e came together, 0 if it now points elsewhere. The noise of
  minibatches cancels in both products, as it is drawn again in each step, and so it does not count
  as progress that waits. If worth fades with age as exp(-age / tau), this gives tau, and the q of
  any level: exp(-k (1/alpha - 1) / tau).

**What a step costs besides.** Each of the steps that a low level adds also computes, waits for the
other buckets and agrees. With a `clock` this is measured as well, from a tensor's result to its
next contribution, and put into C(T) as the constant c0 of the paper's affine price. Without it a
training over a fast link would send a hundredth of its gradients, which is the least traffic, and
need many times the steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields

import numpy as np
import numpy.typing as npt

from p4reduce.compression import kernels
from p4reduce.compression.base import Array, Compressed, Selected, TensorState
from p4reduce.compression.cat import Agreement, Cat, CatState
from p4reduce.compression.costs import FloatArray, SwitchLink
from p4reduce.compression.levels import Scheme

DECAY = 0.9  # of the sums, a step: about the last ten count


@dataclass(frozen=True, slots=True)
class Evidence:
    """Sums over the latest steps, with g, g', e and a as in the module's text.

    All have the dimension of an energy, and only their ratios count.

    Attributes:
        waiting: <e, g>.
        persistent: a <g, g'>: what `waiting` would be if g had been the same all along.
        aged: a |g|².
        lag: (1/alpha - 1) |g|² of the level used.
        energy: |g|².
        spent: seconds that the step has cost besides its traffic, times |g|².
    """

    waiting: float = 0.0
    persistent: float = 0.0
    aged: float = 0.0
    lag: float = 0.0
    energy: float = 0.0
    spent: float = 0.0

    @property
    def numbers(self) -> tuple[float, ...]:
        """All numbers in order; `dataclasses.astuple` takes much longer."""
        return (self.waiting, self.persistent, self.aged, self.lag, self.energy, self.spent)

    def followed_by(self, latest: Evidence) -> Evidence:
        """Return the sums after another step, in which earlier steps have faded."""
        pairs = zip(self.numbers, latest.numbers, strict=True)
        return Evidence(*(DECAY * past + new for past, new in pairs))

    def as_norms(self) -> FloatArray:
        """The numbers divided by |g|, shape (NUMBERS,), float64.

        So they can be all-reduced in one block with norms: the switch's integers share an exponent.
        In the sum a rank weighs as much as its gradient's norm.
        """
        numbers = np.array(self.numbers, dtype=np.float64)
        return numbers / math.sqrt(self.energy) if self.energy > 0 else np.zeros(len(numbers))

    @property
    def stretch(self) -> float:
        """k: how much longer a unit waits than alpha says; 1 if unknown."""
        return self.aged / self.lag if self.aged > 0 and self.lag > 0 else 1.0

    @property
    def fading(self) -> float:
        """1/tau per step: how fast a waiting part loses its value."""
        if not self.aged > 0:
            return 0.0
        if not (self.waiting > 0 and self.persistent > 0):
            return math.inf
        return max(0.0, math.log(self.persistent / self.waiting)) * self.energy / self.aged

    @property
    def seconds(self) -> float:
        """What a step costs beside its traffic; 0 if unknown."""
        return self.spent / self.energy if self.energy > 0 else 0.0

    def steps_of_a_run(self, alpha: FloatArray, uncompressed: int) -> FloatArray:
        """Return how many steps do the work of `uncompressed` steps and one more, per alpha."""
        waits = self.stretch * (1.0 / alpha - 1.0)
        useful = np.exp(-self.fading * waits) if math.isfinite(self.fading) else 0.0
        result: FloatArray = uncompressed / (alpha + useful * (1.0 - alpha)) + 1.0 + waits
        return result


NUMBERS = len(fields(Evidence))


@dataclass(slots=True)
class MemoryState(CatState):
    """What `MemoryCat` remembers of a tensor besides.

    Attributes:
        own: evidence of this rank.
        weighed: the evidence that the choice rests on: `own`, or the sum of all ranks' `as_norms`.
        gradient: of the previous step, flat; None at first, and after one that is not finite.
        products: <g, g'> and <e, g> of the step under way; None if there are none.
        ages: of the units, steps since each was sent; None at first.
        lag: 1/alpha - 1 of the latest level.
        ended: when the latest result came, by the clock; None before the first.
        besides: seconds from there to the contribution after it.
    """

    own: Evidence = field(default_factory=Evidence)
    weighed: Evidence = field(default_factory=Evidence)
    gradient: Array | None = None
    products: FloatArray | None = None
    ages: npt.NDArray[np.int32] | None = None
    lag: float = 0.0
    ended: float | None = None
    besides: float = 0.0


@dataclass
class MemoryCat(Cat):
    """CAT that takes error feedback into account; the module's docstring has the rule.

    For sparsification with feedback only. With `Agreement.BLOCKS` the ranks' evidence is summed
    along with their norms, so that they still choose the same blocks. Beside the residual it
    keeps the previous gradient: twice the memory of `Cat`.

    Attributes:
        clock: gives seconds, to measure the cost of a step besides its traffic. None: only traffic
            has a cost, so the same gradients always give the same levels. `cost` must be in
            seconds, as that of a `SwitchLink` is.
    """

    clock: Callable[[], float] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clock is not None and not isinstance(self.cost, SwitchLink):
            raise ValueError(
                f"a clock counts seconds, but cost is a {type(self.cost).__name__}; give a "
                "SwitchLink, or no clock"
            )
        if not self.feedback or self.scheme is not Scheme.SPARSE:
            raise ValueError(
                f"this rule is for scheme {Scheme.SPARSE} with error feedback, not for "
                f"{self.scheme} with error_feedback={self.error_feedback}"
            )

    def count_time(self, clock: Callable[[], float]) -> None:
        self.clock = clock

    def propose(self, name: str, gradient: Array) -> Array | None:
        """As `Cat.propose`; the evidence, `NUMBERS` numbers, follows the norms."""
        proposed = super().propose(name, gradient)
        if proposed is None or self.agreement is Agreement.LEVEL:
            return proposed
        state = _memory(self.states[name])
        return np.concatenate([proposed, self._within_range(state.own.as_norms())])

    def compress(self, name: str, gradient: Array, agreed: Array | None = None) -> Compressed:
        waiting = _memory(self._state(name, gradient))
        if self.clock is not None and waiting.ended is not None:
            waiting.besides = max(0.0, self.clock() - waiting.ended)
        result = super().compress(name, gradient, agreed)
        state = _memory(self.states[name])
        if result.alpha is None:  # empty or not finite: nothing of what waits has been sent
            state.ages = None if state.ages is None else state.ages + np.int32(1)
            return result
        if result.dense:
            state.lag = 0.0
        sent = state.own_units
        assert sent is not None, "something was chosen"
        ages = np.zeros(sent.shape, dtype=np.int32) if state.ages is None else state.ages
        state.ages = np.where(sent, np.int32(0), ages + np.int32(1))
        return result

    def decompress(self, name: str, total: Array) -> Array:
        result = super().decompress(name, total)
        if self.clock is not None:
            _memory(self.states[name]).ended = self.clock()
        return result

    def _new_state(self) -> TensorState:
        return MemoryState()

    def _look_at(
        self, state: TensorState, gradient: Array, residual: Array | None, wanted: Array
    ) -> bool:
        memory = _memory(state)
        units = -(-gradient.size // self.unit)
        memory.energies, memory.own_energies = np.empty(units), np.empty(units)
        before, memory.gradient, memory.products = memory.gradient, None, None
        if before is None or (before.size, before.dtype) != (gradient.size, gradient.dtype):
            before = np.empty_like(gradient)
        elif residual is not None:
            memory.products = np.empty(2)
        finite = kernels.want(
            gradient,
            residual,
            self.unit,
            wanted=wanted,
            own=memory.own_energies,
            energies=memory.energies,
            before=before,
            products=memory.products,
        )
        if finite:
            memory.gradient = before
        return finite

    def _observe(self, state: CatState) -> None:
        """Add to the evidence what this step's gradient says about what waits."""
        state = _memory(state)
        if state.products is not None and state.ages is not None:
            persistent, waiting = state.products.tolist()
            energy = float(state.own_energies.sum())
            aged = float(state.ages @ state.own_energies)
            latest = Evidence(
                waiting=waiting,
                persistent=aged / energy * persistent if energy > 0 else 0.0,
                aged=aged,
                lag=state.lag * energy,
                energy=energy,
                spent=state.besides * energy,
            )
            state.own = state.own.followed_by(latest)
        state.weighed = state.own

    def _choose(self, state: TensorState, alpha: FloatArray, dimension: int) -> int:
        if not len(alpha):
            return 0
        memory = _memory(state)
        encoding = self.scheme.encoding(dimension, self.unit)
        costs = self._price(state).cost(np.arange(1, len(alpha) + 1), encoding)
        steps = memory.weighed.steps_of_a_run(alpha, state.step)
        return int(np.argmin(steps * (costs + memory.weighed.seconds))) + 1

    def _chosen(self, state: TensorState, alpha: FloatArray, level: int) -> None:
        if len(alpha):
            # What the gradient has zeros in adds nothing to its share.
            _memory(state).lag = 1.0 / float(alpha[:level][-1]) - 1.0

    def select(
        self, state: TensorState, gradient: Array, wanted: Array, agreed: Array | None
    ) -> Selected:
        if self.agreement is Agreement.BLOCKS and agreed is not None:
            _memory(state).weighed = Evidence(*(float(number) for number in agreed[-NUMBERS:]))
            agreed = agreed[:-NUMBERS]
        return super().select(state, gradient, wanted, agreed)


def _memory(state: TensorState) -> MemoryState:
    assert isinstance(state, MemoryState), "made by _new_state"
    return state
