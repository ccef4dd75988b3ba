# SPDX-License-Identifier: Apache-2.0
"""Second derivatives of a network with one hidden layer, in directions."""

from __future__ import annotations

import numpy as np

from p4reduce.methods._communicator import Array
from p4reduce.methods.network import NetworkPart
from p4reduce.methods.subnetworks import softmax


class CurvedNetwork(NetworkPart):
    """A `NetworkPart` for methods that need products with the Hessian.

    By Pearlmutter's operator R, "Fast Exact Multiplication by the Hessian", Neural Computation 6
    (1994). R{x} is the derivative of x as the model moves in a direction. R of each line that
    computes the gradient is a line here. A rectified unit has no second derivative.
    """

    def hessian_product(self, model: Array, direction: Array) -> Array:
        """∇²f_i(w)·V for V of shape (d,) or (d, m); the same shape."""
        if direction.ndim == 1:
            return self._product(model, direction)
        columns = [self._product(model, column) for column in direction.T]
        return np.stack(columns, axis=1)

    def _product(self, model: Array, direction: Array) -> Array:
        above = self._parts(model)[2]
        below_v, below_bias_v, above_v, above_bias_v = self._parts(direction)
        inputs, count = self.features, self.samples
        units, logits = self._layers(model, inputs)
        active = units > 0
        units_r = (inputs @ below_v + below_bias_v) * active
        logits_r = units_r @ above + units @ above_v + above_bias_v
        shares = softmax(logits)
        back = shares.copy()
        back[np.arange(count), self.labels] -= 1
        back /= count
        back_r = shares * (logits_r - (shares * logits_r).sum(axis=1, keepdims=True)) / count
        under_r = (back_r @ above.T + back @ above_v.T) * active
        products = (
            inputs.T @ under_r,
            under_r.sum(axis=0),
            units_r.T @ back + units.T @ back_r,
            back_r.sum(axis=0),
        )
        return np.concatenate([product.ravel() for product in products])
