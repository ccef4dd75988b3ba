# SPDX-License-Identifier: Apache-2.0
"""A perceptron with one hidden layer, its gradients and SGD with momentum, in numpy.

Parameters, gradients and velocities are flat float32 vectors with a view for each layer. So a
layer's gradient is one contiguous tensor to all-reduce, as in the buckets of PyTorch's DDP, and
the optimiser is three vector operations.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from p4reduce_lab.demo.training.data import CLASSES

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class LayerSlice:
    """A layer's place in the flat vectors: `weights` (inputs, outputs), then `bias`."""

    name: str
    start: int
    inputs: int
    outputs: int

    @property
    def place(self) -> slice:
        """The layer's place in a flat vector."""
        return slice(self.start, self.start + (self.inputs + 1) * self.outputs)

    def views(self, vector: Floats) -> tuple[Floats, Floats]:
        """The layer's weights and bias as views into a flat vector."""
        part = vector[self.place]
        split = self.inputs * self.outputs
        return part[:split].reshape(self.inputs, self.outputs), part[split:]


def tensor_sizes(inputs: int, hidden: int, classes: int = CLASSES) -> dict[str, int]:
    """Return names and sizes of the tensors of `Perceptron.backward`, in order."""
    return {"loss": 1, "output": (hidden + 1) * classes, "hidden": (inputs + 1) * hidden}


class Perceptron:
    """inputs → hidden (ReLU) → classes (softmax, cross-entropy)."""

    def __init__(self, inputs: int, hidden: int, seed: int, classes: int = CLASSES) -> None:
        self.hidden = LayerSlice("hidden", 0, inputs, hidden)
        self.output = LayerSlice("output", self.hidden.place.stop, hidden, classes)
        self.parameters: Floats = np.zeros(self.output.place.stop, np.float32)
        generator = np.random.default_rng(seed)
        for layer in (self.hidden, self.output):
            # He et al. 2015: variance 2 / inputs keeps the scale through ReLU layers.
            weights, _ = layer.views(self.parameters)
            weights[...] = generator.standard_normal(weights.shape) * np.sqrt(2 / layer.inputs)

    def logits(self, images: Floats) -> Floats:
        """Scores (samples, classes) of images (samples, inputs)."""
        weights, bias = self.output.views(self.parameters)
        scores: Floats = self._activations(images) @ weights + bias
        return scores

    def accuracy(self, images: Floats, labels: npt.NDArray[np.int64]) -> float:
        """The share of images whose highest score is at their label."""
        return float(np.mean(self.logits(images).argmax(axis=1) == labels))

    def backward(
        self, images: Floats, labels: npt.NDArray[np.int64], batch: int, gradient: Floats
    ) -> Iterator[tuple[str, Floats]]:
        """Write this shard's part of the gradient into `gradient`, layer by layer.

        The part is the gradient of Σ loss / `batch` over the shard, with `batch` the size of
        the *global* batch. So the sum over all ranks' parts is the gradient of the mean loss, for
        any number of ranks.

        Yields:
            (name, tensor) as soon as the tensor is final: first "loss" of shape (1,), then the
            layers from the last to the first. What is yielded may be sent while the next one is
            computed.
        """
        rows = np.arange(len(images))
        hidden = self._activations(images)
        output_weights, output_bias = self.output.views(self.parameters)
        scores = hidden @ output_weights + output_bias
        scores -= scores.max(axis=1, keepdims=True)
        exponentials = np.exp(scores)
        totals = exponentials.sum(axis=1, keepdims=True)
        losses = np.log(totals[:, 0]) - scores[rows, labels]
        yield "loss", np.asarray([losses.sum() / batch], np.float32)

        delta: Floats = exponentials / totals
        delta[rows, labels] -= 1
        delta /= np.float32(batch)
        self._layer_gradient(self.output, hidden, delta, gradient)
        yield self.output.name, gradient[self.output.place]

        delta = (delta @ output_weights.T) * (hidden > 0)
        self._layer_gradient(self.hidden, images, delta, gradient)
        yield self.hidden.name, gradient[self.hidden.place]

    def _activations(self, images: Floats) -> Floats:
        weights, bias = self.hidden.views(self.parameters)
        activations: Floats = np.maximum(images @ weights + bias, 0)
        return activations

    @staticmethod
    def _layer_gradient(layer: LayerSlice, inputs: Floats, delta: Floats, gradient: Floats) -> None:
        weights, bias = layer.views(gradient)
        np.matmul(inputs.T, delta, out=weights)
        np.sum(delta, axis=0, out=bias)


class Momentum:
    """Heavy-ball SGD: v <- momentum * v + g, parameters <- parameters - learning_rate * v."""

    def __init__(self, parameters: Floats, learning_rate: float, momentum: float) -> None:
        self._parameters = parameters
        self.velocity = np.zeros_like(parameters)
        self._learning_rate = np.float32(learning_rate)
        self._momentum = np.float32(momentum)

    def step(self, gradient: Floats) -> None:
        """Change the parameters in place."""
        self.velocity *= self._momentum
        self.velocity += gradient
        self._parameters -= self._learning_rate * self.velocity
