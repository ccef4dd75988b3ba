# SPDX-License-Identifier: Apache-2.0
"""CAT by the paper's own rule, "cat:paper": the level with the most progress for its price.

Khirirat, Magnusson, Aytekin and Johansson, arXiv 2003.06377; the formulas are in `levels.py`, the
prices in `costs.py`. What is called "cat" is built on this: `MemoryCat` in `memory.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from p4reduce.compression import kernels
from p4reduce.compression.base import Array, Compressor, Selected, TensorState
from p4reduce.compression.costs import CostModel, FloatArray, Payload, SwitchLink
from p4reduce.compression.levels import (
    Levels,
    Scheme,
    best_level,
    measure_energy,
    measure_signs,
    sparse_alpha,
)
from p4reduce.compression.shares import selected


class Agreement(Enum):
    """What the ranks agree on before they send.

    OWN: nothing; each chooses level and units from its own gradient (the paper's multi-node CAT).
    LEVEL: the mean of the ranks' levels; two numbers are all-reduced: level, and how many ranks
        have one (a rank whose gradient is not finite has none).
    BLOCKS: level and units, from the units' 2-norms summed over the ranks. One number per unit is
        all-reduced, two with feedback (1/128 of the tensor for blocks of 32-bit lanes). All ranks
        then send the same blocks: the union is no larger, and no result comes in halves. What
        arrives is the mean gradient itself on those blocks, so the single-node guarantee holds for
        it. The squared sum serves as the energy of the summed unit. It is exact where ranks point
        the same way or only one has a value, and a bound elsewhere. (Squares of 1e20 or 1e-23
        would leave float32's range.)
    """

    OWN = "own"
    LEVEL = "level"
    BLOCKS = "blocks"


@dataclass(slots=True)
class CatState(TensorState):
    """What `Cat` remembers of a tensor besides.

    Attributes:
        own_energies: of the units of the gradient alone, in the step under way.
    """

    own_energies: FloatArray = field(default_factory=lambda: np.empty(0))


@dataclass
class Cat(Compressor):
    """Communication-aware adaptive tuning.

    What is sent is gamma(T) L Q_T(g), for a step of 1/L (see `levels.py`). So messages of ranks
    with different levels add up, any optimiser can take them, and error feedback loses 1 - alpha of
    the energy. With `fold=False` it is Q_T(g) itself, as in the paper, without error feedback.
    `Compressed.step` is then gamma(T) L, and Q of the stochastic scheme is unbiased.

    **With error feedback** (which the paper does not have) the level is chosen from the gradient
    alone, and the units from gradient and residual. alpha's promise is about the gradient. The
    residual is flat, because its peaks have been sent already, and would ask for levels that are
    many times too high (docs/experiments.md has the figures).

    Attributes:
        cost: what the link charges. For a `SwitchLink` the overlap of the ranks' choices is
            measured and put into the model step by step. The all-reduce by which the ranks
            agree is left out, as it is the same for all levels. With it in C(T) the levels were
            higher and runs up to 1.5 times dearer (docs/experiments.md). When a rank considers
            sending everything, it is spent already.
        scheme: S, S+Q or stochastic.
        agreement: what the ranks agree on.
        fold: multiply by gamma(T) L before sending.
    """

    cost: CostModel = field(default_factory=Payload)
    scheme: Scheme = Scheme.SPARSE
    agreement: Agreement = Agreement.OWN
    fold: bool = True

    prices: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.agreement is Agreement.BLOCKS and self.scheme is not Scheme.SPARSE:
            raise ValueError(
                f"ranks can agree on blocks with scheme {Scheme.SPARSE}, not {self.scheme}"
            )
        if self.error_feedback is None:
            self.feedback = self.fold
        elif self.error_feedback and not self.fold:
            # |Q - g| may exceed |g| then, and a residual that grows each step never comes back.
            raise ValueError("error feedback needs fold=True: Q itself is not a contraction")

    def weigh(self, link: SwitchLink) -> None:
        """As `Compressor.weigh`; the levels are chosen by these costs too."""
        super().weigh(link)
        self.cost = replace(link, lane_bits=self.lane_bits)

    def propose(self, name: str, gradient: Array) -> Array | None:
        """Return what the ranks sum first, to agree.

        Returns:
            float32: None (OWN, or no elements); the level and 1, shape (2,); or the 2-norms of the
            gradient's units and, with feedback, of those with the residual added, shape (units,)
            or (2 units,). Zeros if these are not finite.

        Raises:
            TypeError, ValueError: as `compress`.
        """
        if self.agreement is Agreement.OWN:
            return None
        state = _cat(self.begun(name, gradient))
        if not gradient.size:
            return None
        if state.wanted is None:
            units = len(state.energies) * (2 if self.feedback else 1)
            return np.zeros(2 if self.agreement is Agreement.LEVEL else units, dtype=np.float32)
        self._observe(state)
        if self.agreement is Agreement.LEVEL:
            alpha = self._alpha(kernels.usable(gradient), state.own_energies)
            return np.array([self._choose(state, alpha, gradient.size), 1], dtype=np.float32)
        energies = [state.own_energies, *([state.energies] if self.feedback else [])]
        return self._within_range(np.sqrt(np.concatenate(energies)))

    def _look_at(
        self, state: TensorState, gradient: Array, residual: Array | None, wanted: Array
    ) -> bool:
        cat = _cat(state)
        cat.energies = np.empty(-(-gradient.size // self.unit))
        cat.own_energies = cat.energies if residual is None else np.empty_like(cat.energies)
        return kernels.want(
            gradient,
            residual,
            self.unit,
            wanted=None if wanted is gradient else wanted,
            own=None if residual is None else cat.own_energies,
            energies=cat.energies,
        )

    def _alpha(self, flat: Array, energies: FloatArray) -> FloatArray:
        """Return alpha of all levels. For sparsification this needs no order."""
        if self.scheme is Scheme.SPARSE:
            return sparse_alpha(energies)
        return self._measure(flat, energies).alpha

    def _measure(self, flat: Array, energies: FloatArray) -> Levels:
        if self.scheme is Scheme.SIGNS:
            return measure_signs(flat, energies, self.unit)
        return measure_energy(energies, self.unit, self.scheme)

    def _new_state(self) -> TensorState:
        return CatState()

    def _within_range(self, numbers: FloatArray) -> npt.NDArray[np.float32]:
        """As float32, and no larger than the ranks' sum may be."""
        limit = float(np.finfo(np.float32).max) / self.world_size
        return np.clip(numbers, -limit, limit).astype(np.float32)

    def _choose(self, state: TensorState, alpha: FloatArray, dimension: int) -> int:
        encoding = self.scheme.encoding(dimension, self.unit)
        return best_level(alpha, self._price(state), encoding).level

    def _observe(self, state: CatState) -> None:
        """Told of each finite gradient, before anything is chosen or proposed."""

    def _chosen(self, state: TensorState, alpha: FloatArray, level: int) -> None:
        """Told of the level that is sent, and of alpha of the gradient alone."""

    def _price(self, state: TensorState) -> CostModel:
        if not isinstance(self.cost, SwitchLink):
            return self.cost
        same = self.agreement is Agreement.BLOCKS
        return replace(self.cost, overlap=1.0 if same else state.overlap)

    def select(
        self, state: TensorState, gradient: Array, wanted: Array, agreed: Array | None
    ) -> Selected:
        state = _cat(state)
        if self.agreement is Agreement.OWN:
            self._observe(state)
        if (agreed is None) != (self.agreement is Agreement.OWN):
            raise ValueError(
                f"agreement {self.agreement.value!r}: "
                + ("nothing was proposed" if agreed is not None else "pass the sum of proposals")
            )
        own, whole = state.own_energies, state.energies
        if agreed is not None and self.agreement is Agreement.BLOCKS:
            energies = np.square(agreed, dtype=np.float64)
            own, whole = energies[: len(whole)], energies[-len(whole) :]
        levels = None if self.scheme is Scheme.SPARSE else self._measure(wanted, whole)
        alpha = self._alpha(gradient, own) if levels is None or own is not whole else levels.alpha
        if agreed is not None and self.agreement is Agreement.LEVEL:
            level = round(float(agreed[0]) / max(1.0, float(agreed[1])))
        else:
            level = self._choose(state, alpha, wanted.size)
        # Where the gradient is zero, a residual still wants to be sent.
        level = min(int(np.count_nonzero(whole)), max(1, level))
        self._chosen(state, alpha, level)
        if level == 0:
            return Selected(np.empty(0, np.int64), 0.0)
        if levels is None:
            return selected(whole, kernels.largest(whole, level))
        return self._thin(state, levels, level, wanted.dtype)

    def _thin(self, state: CatState, levels: Levels, level: int, dtype: np.dtype[Any]) -> Selected:
        step = float(levels.step[level - 1])
        alpha = float(levels.alpha[level - 1])
        # gamma L Q has no element larger than g's; Q may have, and more than a float16 holds.
        factor = step if self.fold else 1.0
        step = 1.0 if self.fold else step
        if self.scheme is Scheme.SIGNS:
            magnitude = float(dtype.type(factor * np.sqrt(state.energies.sum())))
            return Selected(np.sort(levels.order[:level]), alpha, step, magnitude=magnitude)
        probabilities = levels.probabilities(level)
        drawn = self.random.random(len(probabilities)) < probabilities
        factors = np.zeros(len(state.energies), dtype)
        factors[levels.order[drawn]] = factor / probabilities[drawn]
        units = np.sort(levels.order[drawn])
        return Selected(units, alpha, step, level, factors=factors[units].astype(np.float64))


def _cat(state: TensorState) -> CatState:
    assert isinstance(state, CatState), "made by _new_state"
    return state
