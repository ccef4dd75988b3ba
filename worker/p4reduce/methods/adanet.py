# SPDX-License-Identifier: Apache-2.0
"""AdaNet: an ensemble whose subnetworks live on different ranks.

Cortes, Gonzalvo, Kuznetsov, Mohri and Yang, "AdaNet: Adaptive Structural Learning of Artificial
Neural Networks", ICML 2017. The objective (here with the cross entropy of several
classes as the surrogate loss Phi) is

    F(w) = mean over samples of Phi(sum_j w_j h_j(x), y) + sum_j (lambda r_j + beta) |w_j|

for subnetworks h_j of complexity r_j. An iteration adds the candidate that lowers F the most, and
ends the training where none does. Candidates are trained by their own loss, as Weill et al.,
"AdaNet: A Scalable and Flexible Framework for Automatically Learning Ensembles", arXiv 1905.00080,
do by default.

In every iteration each rank trains a candidate of its own, and the winner stays on its rank. The
ensemble's output is a sum over the ranks of weighted logits, which the switch adds up: samples
times classes numbers, however large the subnetworks are. At the end each rank gets the parameters
of all subnetworks, once, so that it predicts alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from p4reduce.methods._communicator import Comm
from p4reduce.methods.estimator import Classifier
from p4reduce.methods.exact import sum_floats
from p4reduce.methods.gathering import gather
from p4reduce.methods.meeting import checksum
from p4reduce.methods.subnetworks import SubNetwork, cross_entropy, softmax

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

_STEPS = 30  # of the weights' descent, at most
_STILL = 1e-4  # relative: less progress in a step ends the descent


class AdaNetClassifier(Classifier):
    """An ensemble of networks that different ranks have trained.

    Unlike the other estimators' `fit`, this one is given the same samples on all ranks.

    Attributes:
        n_iter_: iterations, of which the last may have added no subnetwork.
        objectives_: F before the first subnetwork and after each; it never rises.
        owners_: the rank that has each subnetwork.
        widths_: of each subnetwork's hidden layers.
        weights_: w of each.
        parameters_: of all subnetworks together.
        networks_: the subnetworks, the same on all ranks.
    """

    _same = ("samples", "features", "checksum of X", "checksum of y")
    n_iter_: int
    objectives_: list[float]
    owners_: list[int]
    widths_: list[tuple[int, ...]]
    weights_: Floats
    parameters_: int
    networks_: list[SubNetwork]

    def __init__(
        self,
        comm: Comm | None = None,
        max_iter: int = 8,
        width: int = 32,
        epochs: int = 30,
        complexity: float = 1e-4,
        penalty: float = 1e-4,
        random_state: int = 0,
    ) -> None:
        """Keep the settings, which are the same on all ranks.

        Args:
            comm: the ranks.
            max_iter: subnetworks at most.
            width: units of a hidden layer.
            epochs: of a candidate's training.
            complexity: lambda; r is the square root of the number of hidden layers.
            penalty: beta.
            random_state: of weights and orders; ranks and iterations draw different ones.
        """
        self.comm = comm
        self.max_iter = max_iter
        self.width = width
        self.epochs = epochs
        self.complexity = complexity
        self.penalty = penalty
        self.random_state = random_state

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike) -> AdaNetClassifier:
        """Search, train and weigh the subnetworks.

        Args:
            X: the same on all ranks, shape (samples, features).
            y: labels, the same on all ranks, shape (samples,).

        Raises:
            ValueError: on all ranks, if the input of one cannot be used or is another than rank
                0's, or all samples are of one class.
        """
        part, classes = self._classes(self._begin(X, y), least=2)
        array, comm = part.samples, part.comm
        self._scale = array.mean(axis=0), array.std(axis=0) + 1e-12
        own: dict[int, SubNetwork] = {}  # by their numbers
        self.owners_, self.widths_, self.weights_ = [], [], np.zeros(0)
        self.parameters_ = 0
        self.objectives_ = [float(np.log(len(self.classes_)))]
        scaled = self._scaled(array)
        logits = np.zeros((0, len(array), len(self.classes_)))  # of own subnetworks
        for iteration in range(self.max_iter):
            self.n_iter_ = iteration + 1
            candidate = self._candidate(comm, iteration, scaled, classes)
            found = self._try(comm, candidate, own, logits, scaled, classes)
            if found is None:
                break
            logits = found
        self.networks_ = self._gathered(comm, own, array.shape[1])
        return self

    def decision_function(self, X: npt.ArrayLike) -> Floats:
        """Return the ensemble's logits, (samples, classes); of two classes the difference."""
        logits = self._scores(X)
        return logits[:, 1] - logits[:, 0] if len(self.classes_) == 2 else logits

    def _scores(self, X: npt.ArrayLike) -> Floats:
        scaled = self._scaled(self._samples(X))
        total = np.zeros((len(scaled), len(self.classes_)))
        for weight, network in zip(self.weights_, self.networks_, strict=True):
            total += weight * network.logits(scaled)
        return total

    def subnetwork_scores(self, X: npt.ArrayLike, y: npt.ArrayLike) -> Floats:
        """Return the share that each subnetwork alone predicts correctly. Raises ValueError."""
        scaled = self._scaled(self._samples(X))
        right = [
            self.classes_[network.logits(scaled).argmax(axis=1)] == np.asarray(y)
            for network in self.networks_
        ]
        return np.array([one.mean() for one in right])

    def _facts(self, samples: Floats, targets: npt.NDArray[Any]) -> dict[str, int]:
        return {
            "checksum of X": checksum(samples.tobytes()),
            "checksum of y": checksum(repr(targets.tolist())),
        }

    def _wrong(self, samples: Floats) -> str | None:
        for setting in ("max_iter", "width", "epochs"):
            if getattr(self, setting) < 1:
                return f"{setting}={getattr(self, setting)!r}: at least 1 is needed"
        if not (0 <= self.complexity < np.inf and 0 <= self.penalty < np.inf):
            return f"complexity={self.complexity}, penalty={self.penalty}: from 0 on is needed"
        return super()._wrong(samples)

    def _scaled(self, array: Floats) -> Floats:
        mean, spread = self._scale
        return np.asarray((array - mean) / spread)

    def _gathered(self, comm: Comm, own: dict[int, SubNetwork], features: int) -> list[SubNetwork]:
        """Return all subnetworks, each from the rank that has it."""
        networks = []
        for number, (owner, hidden) in enumerate(zip(self.owners_, self.widths_, strict=True)):
            rng = np.random.default_rng(0)
            network = SubNetwork((features, *hidden, len(self.classes_)), rng)
            flat = np.zeros(0)
            if number in own:
                flat = np.concatenate([one.reshape(-1) for one in own[number].variables])
            counts = [0] * comm.size
            counts[owner] = network.parameters
            flat = gather(comm, flat, "AdaNetClassifier: parameters", counts)
            ends = np.cumsum([one.size for one in network.variables])
            for variable, part in zip(network.variables, np.split(flat, ends[:-1]), strict=True):
                variable[...] = part.reshape(variable.shape)
            networks.append(network)
        return networks

    def _candidate(
        self, comm: Comm, iteration: int, scaled: Floats, classes: Integers
    ) -> SubNetwork:
        """Train one: as deep as the deepest so far on even ranks, a layer deeper on odd ones."""
        rng = np.random.default_rng([self.random_state, iteration, comm.rank])
        depth = max([len(widths) for widths in self.widths_], default=1) + comm.rank % 2
        hidden = (self.width,) * depth
        network = SubNetwork((scaled.shape[1], *hidden, len(self.classes_)), rng)
        network.train(scaled, classes, self.epochs, 32, rng)
        return network

    def _try(
        self,
        comm: Comm,
        candidate: SubNetwork,
        own: dict[int, SubNetwork],
        logits: Floats,
        scaled: Floats,
        classes: Integers,
    ) -> Floats | None:
        """Add the best candidate of all ranks; None where F would not fall.

        Args:
            comm: the ranks.
            candidate: this rank's.
            own: this rank's subnetworks by their numbers, to which the candidate is added if it is
                the best.
            logits: theirs, (subnetworks, samples, classes).
            scaled: all samples.
            classes: theirs.

        Returns:
            The logits of this rank's subnetworks, (subnetworks, samples, classes).
        """
        outputs = candidate.logits(scaled)
        weights = self.weights_[list(own)]
        ensemble = np.tensordot(weights, logits, 1)
        ensemble = sum_floats(comm, ensemble, "AdaNetClassifier: logits")
        paid = float((self._prices() * np.abs(self.weights_)).sum())
        price = self._price(candidate)
        # Which candidate is the best is judged with its own weight alone, on its own rank.
        weight, mine = _line_search(ensemble, outputs, classes, price)
        facts = np.array([[mine + paid, weight, len(candidate.widths) - 2, candidate.parameters]])
        of_all = gather(comm, facts, "AdaNetClassifier: objectives")
        owner = int(of_all[:, 0].argmin())
        if not of_all[owner, 0] < self.objectives_[-1]:
            return None
        depth, parameters = of_all[owner, 2:].astype(int).tolist()
        number = len(self.owners_)
        if owner == comm.rank:
            own[number] = candidate
            logits = np.concatenate([logits, outputs[None]])
        self.owners_.append(owner)
        self.widths_.append((self.width,) * depth)
        self.parameters_ += parameters
        self.weights_ = np.append(self.weights_, of_all[owner, 1])
        self.objectives_.append(self._descend(comm, list(own), logits, classes))
        return logits

    def _price(self, network: SubNetwork) -> float:
        return float(self.complexity * np.sqrt(len(network.widths) - 2) + self.penalty)

    def _prices(self) -> Floats:
        depths = np.array([len(widths) for widths in self.widths_])
        return np.asarray(self.complexity * np.sqrt(depths) + self.penalty)

    def _descend(self, comm: Comm, own: list[int], logits: Floats, classes: Integers) -> float:
        """Lower F by the weights of all subnetworks, and return its new value.

        Proximal gradient steps (Beck and Teboulle, SIAM J. Imaging Sciences 2(1), 2009, section
        3): of each, the ranks sum the logits, and compute the slopes of their own weights from
        them. The step grows while F falls and halves where it would rise.
        """
        prices = self._prices()
        step = 1.0

        def ensemble(weights: Floats) -> tuple[Floats, float]:
            mine = np.tensordot(weights[own], logits, 1)
            total = sum_floats(comm, mine, "AdaNetClassifier: logits")
            reached = cross_entropy(total, classes) + float((prices * np.abs(weights)).sum())
            return total, reached

        total, objective = ensemble(self.weights_)
        for _ in range(_STEPS):
            apart = softmax(total)
            apart[np.arange(len(classes)), classes] -= 1
            slopes = np.zeros(len(self.weights_))
            slopes[own] = np.tensordot(logits, apart, 2) / len(classes)
            slopes = sum_floats(comm, slopes, "AdaNetClassifier: slopes")
            moved = self.weights_ - step * slopes
            moved = np.sign(moved) * np.maximum(np.abs(moved) - step * prices, 0)
            after, reached = ensemble(moved)
            if not reached < objective:
                step /= 2
                if step < _STILL:
                    break
                continue
            gain, objective = objective - reached, reached
            self.weights_, total = moved, after
            step *= 1.5
            if gain < _STILL * objective:
                break
        return objective


def _line_search(
    ensemble: Floats, outputs: Floats, classes: Integers, price: float
) -> tuple[float, float]:
    """Return the weight from 0 on that lowers F the most, and that F without the others' prices.

    F is convex in the weight: golden sections (Kiefer, Proc. AMS 4, 1953) find its minimum.
    """
    ratio = (np.sqrt(5) - 1) / 2

    def objective(weight: float) -> float:
        return cross_entropy(ensemble + weight * outputs, classes) + price * weight

    low, high = 0.0, 2.0
    inner, outer = high - ratio * (high - low), low + ratio * (high - low)
    at_inner, at_outer = objective(inner), objective(outer)
    for _ in range(30):
        if at_inner < at_outer:
            high, outer, at_outer = outer, inner, at_inner
            inner = high - ratio * (high - low)
            at_inner = objective(inner)
        else:
            low, inner, at_inner = inner, outer, at_outer
            outer = low + ratio * (high - low)
            at_outer = objective(outer)
    return min((0.0, objective(0.0)), (inner, at_inner), key=lambda found: found[1])
