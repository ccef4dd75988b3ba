# SPDX-License-Identifier: Apache-2.0
"""What a solver needs of a rank's own data: f_i, the rank's part of F(θ) = Σ f_i(θ).

Each protocol adds something to `RankData`, or to another one. A solver uses no more than its own.

    protocol        adds                            for
    RankData        size, trouble                   fedbcd_p, fedbcd_s (a `fedbcd.Party`)
    Differentiable  gradient                        gd, cat, lag_wk
    Smooth          smoothness                      lag_ps
    Sampled         samples, stochastic_gradient    local_sgd
    Curved          value, hessian_product          dslsr1
    Proximal        proximal                        admm, gadmm, dgadmm
    Problem         all of these                    any but fedbcd_p and fedbcd_s

`problems` has least squares and logistic regression, which are a `Problem`. `network.NetworkPart`
is `Sampled`, and `curved_network.CurvedNetwork` is `Curved` too.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from p4reduce.methods._communicator import Array

Rows = npt.NDArray[np.int64]
"""Numbers of samples, from 0 on."""


class RankData(Protocol):
    """Data that have a size, and can tell what is wrong with them.

    Attributes:
        size: the number of parameters, d; of a `fedbcd.Party` the number of samples.
    """

    size: int

    def trouble(self) -> str:
        """Return what is wrong with this rank's data; empty if nothing is."""
        ...


class Differentiable(RankData, Protocol):
    """A part with a gradient."""

    def gradient(self, model: Array) -> Array:
        """Return ∇f_i(θ) for a model of shape (d,), shape (d,)."""
        ...


class Smooth(Differentiable, Protocol):
    """A part whose gradient has a known Lipschitz constant."""

    def smoothness(self) -> float:
        """Return L_i, the largest possible eigenvalue of ∇²f_i."""
        ...


class Sampled(Differentiable, Protocol):
    """A part that can be evaluated on some of its samples.

    Attributes:
        samples: how many samples this rank has.
    """

    samples: int

    def stochastic_gradient(self, model: Array, rows: Rows) -> Array:
        """Return an estimate of the gradient from some samples, shape (d,)."""
        ...


class Curved(Differentiable, Protocol):
    """A part with second derivatives."""

    def value(self, model: Array) -> float:
        """Return f_i(θ)."""
        ...

    def hessian_product(self, model: Array, direction: Array) -> Array:
        """Return ∇²f_i(θ)·V for V of shape (d, m); the same shape."""
        ...


class Proximal(RankData, Protocol):
    """A part that can be minimised by itself, beside a linear and a quadratic term."""

    def proximal(self, linear: Array, quadratic: float) -> Array:
        """Argmin over θ of f_i(θ) − ⟨linear, θ⟩ + quadratic/2·‖θ‖², shape (d,).

        Raises:
            ValueError: it has no solution, or none is found.
        """
        ...


class Problem(Smooth, Sampled, Curved, Proximal, Protocol):
    """A part for all solvers but FedBCD."""
