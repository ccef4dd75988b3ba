# SPDX-License-Identifier: Apache-2.0
"""What is trained: logistic regression and a small neural network, their data split over ranks.

All parameters of a task are one flat float32 vector, and so are its gradients.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

Vector = npt.NDArray[np.float32]
Matrix = npt.NDArray[np.float32]


class Task(ABC):
    """An objective, shared out over `ranks`; a full run has `steps` steps of an optimiser."""

    title: str
    dimension: int
    ranks: int
    steps: int

    @abstractmethod
    def start(self) -> Vector:
        """The parameters to begin with."""

    @abstractmethod
    def gradient(self, rank: int, x: Vector, step: int) -> Vector:
        """One rank's gradient; the objective's is the mean over the ranks."""

    @abstractmethod
    def update(self, x: Vector, mean: Vector) -> Vector:
        """The parameters after a step along the mean gradient."""

    @abstractmethod
    def loss(self, x: Vector) -> float:
        """The objective on all training data."""

    @abstractmethod
    def accuracy(self, x: Vector) -> float:
        """Share of samples classified right: of the test set if there is one, else all."""


class LogisticRegression(Task):
    """l2-regularised logistic regression by gradient descent with step 1/L, as in arXiv 2003.06377.

    mean log(1 + exp(-y <a, x>)) + strength / 2 |x|²
    """

    def __init__(
        self, title: str, rows: sparse.csr_matrix, labels: Vector, strength: float, steps: int
    ) -> None:
        self.title, self.steps, self.ranks = title, steps, 4
        self.rows, self.labels, self.strength = rows, labels, np.float32(strength)
        count, self.dimension = rows.shape
        order = np.random.default_rng(0).permutation(count)
        self.shares = []
        for rank in range(self.ranks):
            mine = order[rank :: self.ranks]
            share = rows[mine].tocsr()
            self.shares.append((share, share.T.tocsr(), labels[mine]))
        self.smoothness = _largest_eigenvalue(rows) / (4 * count) + strength

    def start(self) -> Vector:
        return np.zeros(self.dimension, dtype=np.float32)

    def gradient(self, rank: int, x: Vector, step: int) -> Vector:
        """The whole gradient of one share: nothing is sampled."""
        rows, columns, labels = self.shares[rank]
        margins = labels * (rows @ x)
        pull = -labels / (1 + np.exp(np.minimum(margins, 80)))
        return np.asarray(columns @ pull / np.float32(len(labels)) + self.strength * x)

    def update(self, x: Vector, mean: Vector) -> Vector:
        return np.asarray(x - mean / np.float32(self.smoothness))

    def loss(self, x: Vector) -> float:
        margins = self.labels * (self.rows @ x)
        return float(np.logaddexp(0, -margins).mean() + self.strength / 2 * (x @ x))

    def accuracy(self, x: Vector) -> float:
        """Of all samples: these tasks are about the objective, not about new data."""
        return float((self.labels * (self.rows @ x) > 0).mean())


def _largest_eigenvalue(rows: sparse.csr_matrix) -> float:
    """Of rows' Gram matrix, by power iteration; 5 % are added as it comes from below."""
    vector = np.ones(rows.shape[1], dtype=np.float32)
    value = 0.0
    for _ in range(60):
        vector = rows.T @ (rows @ vector)
        value = float(np.linalg.norm(vector))
        vector /= np.float32(value)
    return 1.05 * value


def _with_products(title: str, features: Any, positive: Any) -> LogisticRegression:
    """Features and their products, standardised."""
    from sklearn.preprocessing import PolynomialFeatures, StandardScaler  # takes a second

    features = StandardScaler().fit_transform(PolynomialFeatures(2).fit_transform(features))
    features[:, 0] = 1.0
    features /= np.linalg.norm(features, axis=1).mean()
    labels = np.where(positive, 1.0, -1.0).astype(np.float32)
    rows = sparse.csr_matrix(features.astype(np.float32))
    return LogisticRegression(title, rows, labels, 1 / len(labels), 1500)


def breast_cancer() -> LogisticRegression:
    """569 real samples, 30 measurements and their products: 496 dense features."""
    from sklearn.datasets import load_breast_cancer
    from sklearn.preprocessing import StandardScaler

    data = load_breast_cancer()
    features = StandardScaler().fit_transform(data.data)
    return _with_products("breast cancer", features, data.target)


def digits_parity() -> LogisticRegression:
    """1,797 real images: is the digit odd? 64 pixels and their products, 2,145 dense features."""
    from sklearn.datasets import load_digits

    images, digits = load_digits(return_X_y=True)
    return _with_products("digits parity", images / 16, digits % 2)


def synthetic_text(documents: int = 6000, words: int = 47236) -> LogisticRegression:
    """Made-up text in the shape of RCV1: 47,236 features, about 90 of them in a document.

    RCV1 itself would have to be downloaded. Word frequencies follow Zipf's law; 30 % of the words
    are more frequent in one class than in the other; weights are tf-idf, rows of length 1.
    Features are in the order of frequency, as a vocabulary that is built by counting has them.
    """
    random = np.random.default_rng(1)
    frequency = 1 / (np.arange(words) + 10.0)
    tilt = np.where(random.random(words) < 0.3, 1.5 * random.standard_normal(words), 0.0)
    labels = np.where(random.random(documents) < 0.47, 1.0, -1.0)
    lengths = np.maximum(10, random.lognormal(np.log(86), 0.5, documents)).astype(int)
    document = np.repeat(np.arange(documents), lengths)
    word = np.empty(len(document), dtype=np.int64)
    for label in (1.0, -1.0):
        cumulated = np.cumsum(frequency * np.exp(label * tilt / 2))
        mine = labels[document] == label
        word[mine] = np.searchsorted(cumulated, cumulated[-1] * random.random(int(mine.sum())))
    rows = sparse.csr_matrix(
        (np.ones(len(word)), (document, word)), shape=(documents, words)
    )  # equal places are added up
    rows.data = 1 + np.log(rows.data)
    present = np.maximum(1, np.asarray((rows > 0).sum(axis=0)).ravel())
    rows = rows @ sparse.diags(np.log(documents / present))
    lengths2 = np.sqrt(np.asarray(rows.multiply(rows).sum(axis=1)).ravel())
    rows = (sparse.diags(1 / lengths2) @ rows).astype(np.float32).tocsr()
    return LogisticRegression("synthetic text", rows, labels.astype(np.float32), 1e-4, 1500)


class Network(Task):
    """Digits of 8x8 pixels through one hidden layer of 256 (19,210 parameters), by plain SGD.

    Half of the 1,797 real samples are for training, half for testing, so that half a point of
    accuracy is 4.5 samples; the seed draws split, first weights and batches.
    """

    BATCH = 32

    def __init__(
        self,
        seed: int = 0,
        steps: int = 400,
        *,
        title: str = "digits network",
        hidden: int = 256,
        rate: float = 0.1,
    ) -> None:
        self.title, self.steps, self.ranks, self.seed = title, steps, 4, seed
        self.rate = np.float32(rate)
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        images = (images / 16).astype(np.float32)
        order = np.random.default_rng(seed).permutation(len(labels))
        half = len(labels) // 2
        self.train = images[order[:half]], labels[order[:half]]
        self.test = images[order[half:]], labels[order[half:]]
        inputs = images.shape[1]
        self.shapes = [(inputs, hidden), (hidden,), (hidden, 10), (10,)]
        self.ends = np.cumsum([np.prod(shape) for shape in self.shapes])
        self.dimension = int(self.ends[-1])

    def _parts(self, x: Vector) -> list[Matrix]:
        parts = np.split(x, self.ends[:-1])
        return [part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def start(self) -> Vector:
        """He's initialisation."""
        random = np.random.default_rng(self.seed)
        pieces = [
            random.standard_normal(shape) * np.sqrt(2 / shape[0])
            if len(shape) == 2
            else np.zeros(shape)
            for shape in self.shapes
        ]
        return np.concatenate([piece.ravel() for piece in pieces]).astype(np.float32)

    def _forward(self, x: Vector, images: Matrix) -> tuple[Matrix, Matrix]:
        first, bias1, second, bias2 = self._parts(x)
        hidden = np.maximum(images @ first + bias1, 0)
        scores = hidden @ second + bias2
        scores = scores - scores.max(axis=1, keepdims=True)
        return hidden, scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))

    def gradient(self, rank: int, x: Vector, step: int) -> Vector:
        """Of one batch of one rank's share."""
        images, labels = self.train[0][rank :: self.ranks], self.train[1][rank :: self.ranks]
        draw = np.random.default_rng([self.seed, step, rank])
        batch = draw.choice(len(labels), self.BATCH, replace=False)
        images, labels = images[batch], labels[batch]
        hidden, logs = self._forward(x, images)
        error = np.exp(logs)
        error[np.arange(len(labels)), labels] -= 1
        error /= np.float32(len(labels))
        second = self._parts(x)[2]
        below = (error @ second.T) * (hidden > 0)
        pieces: list[npt.NDArray[Any]] = [
            images.T @ below,
            below.sum(axis=0),
            hidden.T @ error,
            error.sum(axis=0),
        ]
        return np.concatenate([piece.ravel() for piece in pieces])

    def update(self, x: Vector, mean: Vector) -> Vector:
        return np.asarray(x - self.rate * mean)

    def loss(self, x: Vector) -> float:
        images, labels = self.train
        return float(-self._forward(x, images)[1][np.arange(len(labels)), labels].mean())

    def accuracy(self, x: Vector) -> float:
        images, labels = self.test
        return float((self._forward(x, images)[1].argmax(axis=1) == labels).mean())


TASKS: dict[str, Callable[[], Task]] = {
    "cancer": breast_cancer,
    "text": synthetic_text,
    "digits": Network,
    "parity": digits_parity,
    "wide": lambda: Network(7, title="wide network", hidden=1024, rate=0.2),
}
