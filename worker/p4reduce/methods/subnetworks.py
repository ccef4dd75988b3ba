# SPDX-License-Identifier: Apache-2.0
"""Small classification networks in numpy, the members of an ensemble."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

_RATE, _BETA_1, _BETA_2, _EPSILON = 1e-3, 0.9, 0.999, 1e-8  # of Adam (Kingma and Ba, ICLR 2015)


class SubNetwork:
    """Layers of rectified units, and logits of the classes on top.

    Attributes:
        widths: of all layers: features, hidden ones, classes.
    """

    def __init__(self, widths: tuple[int, ...], rng: np.random.Generator) -> None:
        """Draw the first weights as He et al., ICCV 2015, equation 10."""
        self.widths = widths
        self._weights = [
            rng.normal(0, np.sqrt(2 / above), (above, below)) for above, below in pairwise(widths)
        ]
        self._biases = [np.zeros(width) for width in widths[1:]]

    @property
    def variables(self) -> list[Floats]:
        """The trained arrays: each layer's weights, then each layer's biases."""
        return self._weights + self._biases

    @property
    def parameters(self) -> int:
        """The number of trained numbers."""
        return sum(weights.size + weights.shape[1] for weights in self._weights)

    def logits(self, samples: Floats) -> Floats:
        """Return the logits, shape (samples, classes)."""
        return self._layers(samples)[-1]

    def train(
        self, samples: Floats, classes: Integers, epochs: int, batch: int, rng: np.random.Generator
    ) -> None:
        """Lower the cross entropy by Adam.

        Args:
            samples: shape (samples, features).
            classes: from 0 on, shape (samples,).
            epochs: how often each sample is seen.
            batch: samples of a step.
            rng: of the samples' order.
        """
        variables = self.variables
        moments = [np.zeros_like(variable) for variable in variables]
        squares = [np.zeros_like(variable) for variable in variables]
        step = 0
        for _ in range(epochs):
            order = rng.permutation(len(samples))
            for at in range(0, len(order), batch):
                rows = order[at : at + batch]
                step += 1
                for variable, gradient, moment, square in zip(
                    variables,
                    self.gradients(samples[rows], classes[rows]),
                    moments,
                    squares,
                    strict=True,
                ):
                    moment += (1 - _BETA_1) * (gradient - moment)
                    square += (1 - _BETA_2) * (gradient**2 - square)
                    mean = moment / (1 - _BETA_1**step)
                    spread = np.sqrt(square / (1 - _BETA_2**step)) + _EPSILON
                    variable -= _RATE * mean / spread

    def _layers(self, samples: Floats) -> list[Floats]:
        outputs = [samples]
        for weights, biases in zip(self._weights[:-1], self._biases[:-1], strict=True):
            outputs.append(np.maximum(outputs[-1] @ weights + biases, 0))
        outputs.append(outputs[-1] @ self._weights[-1] + self._biases[-1])
        return outputs

    def gradients(self, samples: Floats, classes: Integers) -> list[Floats]:
        """Return the mean loss's gradients by all weights, then by all biases."""
        outputs = self._layers(samples)
        back = softmax(outputs[-1])
        back[np.arange(len(classes)), classes] -= 1
        back /= len(classes)
        by_weights, by_biases = [], []
        for layer in range(len(self._weights) - 1, -1, -1):
            by_weights.append(outputs[layer].T @ back)
            by_biases.append(back.sum(axis=0))
            back = (back @ self._weights[layer].T) * (outputs[layer] > 0)
        return by_weights[::-1] + by_biases[::-1]


def softmax(logits: Floats) -> Floats:
    """Return each class's probability from logits, (samples, classes)."""
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def cross_entropy(logits: Floats, classes: Integers) -> float:
    """Return the mean loss of logits, (samples, classes)."""
    top = logits.max(axis=1)
    whole = np.log(np.exp(logits - top[:, None]).sum(axis=1)) + top
    return float((whole - logits[np.arange(len(classes)), classes]).mean())
