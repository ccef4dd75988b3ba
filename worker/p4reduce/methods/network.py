# SPDX-License-Identifier: Apache-2.0
"""A rank's part of a classification task for a network with one hidden layer, as a flat model."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from p4reduce.methods._communicator import Array
from p4reduce.methods.meeting import problem_of_samples, problem_of_targets
from p4reduce.methods.rank_data import Rows
from p4reduce.methods.subnetworks import cross_entropy, softmax


class NetworkPart:
    """The mean cross entropy of this rank's samples, for rectified hidden units and logits.

    A model is flat: weights (features, hidden), biases (hidden,), weights (hidden, classes), biases
    (classes,).

    Args:
        features: shape (samples, features).
        labels: classes from 0 on, shape (samples,).
        hidden: the number of hidden units.
        classes: the number of classes on all ranks together.

    Attributes:
        size: the number of parameters.
        samples: how many this rank has.
    """

    def __init__(self, features: Any, labels: Any, hidden: int, classes: int) -> None:
        self.features, trouble = problem_of_samples(features)
        self.samples, width = self.features.shape
        wanted, other = problem_of_targets(labels, self.samples)
        self.labels = np.asarray(wanted, np.int64)
        self._trouble = trouble or other or ""
        if not self._trouble and not ((self.labels >= 0) & (self.labels < classes)).all():
            self._trouble = f"y has classes outside of 0 to {classes - 1}"
        self._shapes = ((width, hidden), (hidden,), (hidden, classes), (classes,))
        self._ends = np.cumsum([int(np.prod(shape)) for shape in self._shapes]).tolist()
        self.size: int = self._ends[-1]

    def start(self, seed: int) -> Array:
        """Return a first model, drawn as in He et al., ICCV 2015, equation 10."""
        random = np.random.default_rng(seed)
        parts = [
            random.normal(0, np.sqrt(2 / shape[0]), shape) if len(shape) == 2 else np.zeros(shape)
            for shape in self._shapes
        ]
        return np.concatenate([part.ravel() for part in parts])

    def value(self, model: Array) -> float:
        """Return the mean cross entropy."""
        return cross_entropy(self.logits(model, self.features), self.labels)

    def gradient(self, model: Array) -> Array:
        """Return its gradient, shape (size,)."""
        return self.stochastic_gradient(model, np.arange(self.samples))

    def stochastic_gradient(self, model: Array, rows: Rows) -> Array:
        """Return the gradient of the mean over some samples."""
        above = self._parts(model)[2]
        inputs = self.features[rows]
        units, logits = self._layers(model, inputs)
        back = softmax(logits)
        back[np.arange(len(rows)), self.labels[rows]] -= 1
        back /= len(rows)
        under = (back @ above.T) * (units > 0)
        gradients = (inputs.T @ under, under.sum(axis=0), units.T @ back, back.sum(axis=0))
        return np.concatenate([gradient.ravel() for gradient in gradients])

    def logits(self, model: Array, features: Array) -> Array:
        """Return the logits of other samples, shape (samples, classes)."""
        return self._layers(model, features)[1]

    def score(self, model: Array, features: Array, labels: npt.NDArray[Any]) -> float:
        """Return the share of other samples that a model classifies correctly."""
        return float((self.logits(model, features).argmax(axis=1) == labels).mean())

    def trouble(self) -> str:
        """Return what is wrong with the data; empty if nothing is."""
        return self._trouble

    def _parts(self, model: Array) -> list[Array]:
        pieces = np.split(model, self._ends[:-1])
        return [piece.reshape(shape) for piece, shape in zip(pieces, self._shapes, strict=True)]

    def _layers(self, model: Array, inputs: Array) -> tuple[Array, Array]:
        below, below_bias, above, above_bias = self._parts(model)
        units = np.maximum(inputs @ below + below_bias, 0)
        return units, np.asarray(units @ above + above_bias, np.float64)
