# SPDX-License-Identifier: Apache-2.0
"""Regression trees grown from integer histograms, which the ranks add up.

Ke et al., "LightGBM: A Highly Efficient Gradient Boosting Decision Tree", NeurIPS 2017, section
2.1: histograms, where a child's is its parent's minus its sibling's. In its data-parallel form the
machines add the histograms of their samples. Gradients are integers here, so sums are exact and
every rank finds the same splits. Trees have the same bits for any number of ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from p4reduce.methods._communicator import Comm

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

LANE = 2**31 - 1  # the greatest sum that int32 lanes hold
_LEAST_CURVATURE = 1e-3  # of a leaf, as scikit-learn's min_hessian_to_split


class Bins:
    """The bins of each feature.

    Attributes:
        thresholds: for each feature, ascending; a number is in the bin of the first threshold that
            it does not exceed, or else in the last bin.
        starts: where each feature's bins begin in a histogram, and at the end how many there are.
    """

    def __init__(self, samples: Floats, most: int) -> None:
        """Make as many bins as there are distinct numbers, or `most` of about equally many samples.

        Args:
            samples: the same on all ranks, (samples, features).
            most: bins of a feature.
        """
        self.thresholds = [_thresholds(column, most) for column in samples.T]
        self.starts = np.concatenate([[0], np.cumsum([len(t) + 1 for t in self.thresholds])])

    def of(self, samples: Floats) -> Integers:
        """Return each number's place in a histogram, (samples, features)."""
        columns = [
            np.searchsorted(thresholds, column)
            for thresholds, column in zip(self.thresholds, samples.T, strict=True)
        ]
        return np.asarray(np.column_stack(columns) + self.starts[:-1])


def _thresholds(column: Floats, most: int) -> Floats:
    distinct = np.unique(column)
    if len(distinct) <= most:
        return (distinct[:-1] + distinct[1:]) / 2
    shares = np.linspace(0, 1, most + 1)[1:-1]
    return np.unique(np.quantile(column, shares, method="midpoint"))


@dataclass
class DecisionTree:
    """A binary tree: node 0 is the root.

    Attributes:
        feature: the feature that splits a node; -1 for a leaf.
        threshold: samples that do not exceed it go left.
        left, right: the children's numbers.
        value: what a leaf predicts.
    """

    feature: list[int] = field(default_factory=lambda: [-1])
    threshold: list[float] = field(default_factory=lambda: [0.0])
    left: list[int] = field(default_factory=lambda: [0])
    right: list[int] = field(default_factory=lambda: [0])
    value: list[float] = field(default_factory=lambda: [0.0])

    def split(self, node: int, feature: int, threshold: float) -> tuple[int, int]:
        """Turn a leaf into a node with two leaves, and return their numbers."""
        first = len(self.feature)
        self.feature[node], self.threshold[node] = feature, threshold
        self.left[node], self.right[node] = first, first + 1
        for _ in range(2):
            self.feature.append(-1)
            self.threshold.append(0.0)
            self.left.append(0)
            self.right.append(0)
            self.value.append(0.0)
        return first, first + 1

    def predict(self, samples: Floats) -> Floats:
        """Return the value of the leaf that each sample reaches, (samples,)."""
        feature, threshold = np.array(self.feature), np.array(self.threshold)
        left, right = np.array(self.left), np.array(self.right)
        nodes = np.zeros(len(samples), np.int64)
        while True:
            in_flight = np.flatnonzero(feature[nodes] >= 0)
            if not len(in_flight):
                return np.array(self.value)[nodes]
            at = nodes[in_flight]
            goes_left = samples[in_flight, feature[at]] <= threshold[at]
            nodes[in_flight] = np.where(goes_left, left[at], right[at])


@dataclass(frozen=True)
class Limits:
    """Limits of a tree's growth.

    Attributes:
        leaves: the largest number of leaves per tree.
        samples: the least number of samples per leaf.
        penalty: on the squares of the leaves' values.
    """

    leaves: int
    samples: int
    penalty: float


@dataclass(frozen=True)
class _Split:
    gain: float
    feature: int
    place: int  # the last bin that goes left, in a histogram
    left_is_smaller: bool


class Forest:
    """Trees that grow together: one collective per level for all of them."""

    def __init__(self, comm: Comm, bins: Bins, places: Integers, limits: Limits, name: str) -> None:
        """Keep what all trees share.

        Args:
            comm: the ranks.
            bins: the same on all ranks.
            places: of this rank's samples in histograms, (samples, features).
            limits: the same on all ranks.
            name: of the collectives.
        """
        self._comm = comm
        self._bins = bins
        self._places = places
        self._limits = limits
        self._name = name

    def grow(
        self, gradients: Integers, curvatures: Integers | None, unit: float, rate: float
    ) -> tuple[list[DecisionTree], Floats]:
        """Grow a tree for each output.

        Args:
            gradients: of the loss at this rank's samples, in `unit`, (outputs, samples); the sum
                of the magnitudes over all ranks' samples fits into int32.
            curvatures: the second derivatives, of the same shape and unit; None: all of them are 1.
            unit: what an integer 1 stands for.
            rate: what the leaves' values are multiplied by.

        Returns:
            The trees, and their values for this rank's samples, (outputs, samples).
        """
        outputs, samples = gradients.shape
        units = np.array([unit, 1.0 if curvatures is None else unit])
        trees = [DecisionTree() for _ in range(outputs)]
        nodes = np.zeros((outputs, samples), np.int64)
        leaves = dict.fromkeys(range(outputs), 1)
        fresh = [(output, 0) for output in range(outputs)]
        histograms = dict(
            zip(fresh, self._histograms(nodes, fresh, gradients, curvatures), strict=True)
        )
        totals = {}
        while histograms:
            found: dict[tuple[int, int], _Split] = {}
            for key, histogram in histograms.items():
                # Every feature's bins hold all samples of the node: the first one's give its sums.
                totals[key] = histogram[:, : self._bins.starts[1]].sum(axis=1)
                split = self._best(histogram, units)
                if split is not None:
                    found[key] = split
            chosen = sorted(found, key=lambda key: (-found[key].gain, key))
            wanted: list[tuple[int, int]] = []
            siblings: dict[tuple[int, int], tuple[tuple[int, int], tuple[int, int]]] = {}
            for output, node in chosen:
                if leaves[output] == self._limits.leaves:
                    continue
                leaves[output] += 1
                split = found[output, node]
                threshold = self._threshold(split)
                children = trees[output].split(node, split.feature, threshold)
                here = np.flatnonzero(nodes[output] == node)
                goes_left = self._places[here, split.feature] <= split.place
                nodes[output, here] = np.where(goes_left, *children)
                small, large = children if split.left_is_smaller else children[::-1]
                wanted.append((output, small))
                siblings[output, small] = (output, node), (output, large)
            if not wanted:
                break
            sums = self._histograms(nodes, wanted, gradients, curvatures)
            following = {}
            for small_key, histogram in zip(wanted, sums, strict=True):
                parent, large_key = siblings[small_key]
                following[small_key] = histogram
                following[large_key] = histograms[parent] - histogram
            histograms = following
        for (output, node), (gradient, curvature, _) in totals.items():
            # -G / (H + penalty): equation 5 of Chen and Guestrin, "XGBoost", KDD 2016.
            whole = float(curvature * units[1]) + self._limits.penalty
            trees[output].value[node] = -rate * float(gradient * unit) / max(whole, 1e-15)
        values = [np.array(tree.value)[at] for tree, at in zip(trees, nodes, strict=True)]
        return trees, np.stack(values)

    def _histograms(
        self,
        nodes: Integers,
        wanted: list[tuple[int, int]],
        gradients: Integers,
        curvatures: Integers | None,
    ) -> Integers:
        """Return all ranks' sums in nodes of trees: (wanted, 3, bins).

        By bin the gradients, the curvatures and the number of samples. Where all curvatures are 1
        they are the number of samples, which travels once.
        """
        width = int(self._bins.starts[-1])
        kinds = 2 if curvatures is None else 3
        mine = np.zeros((len(wanted), kinds, width), np.int32)
        for number, (output, node) in enumerate(wanted):
            here = np.flatnonzero(nodes[output] == node)
            places = self._places[here].reshape(-1)
            features = self._places.shape[1]
            weights = [gradients] if curvatures is None else [gradients, curvatures]
            for kind, weight in enumerate(weights):
                # Floats hold these integers exactly.
                sums = np.bincount(places, np.repeat(weight[output, here], features), width)
                mine[number, kind] = sums
            mine[number, -1] = np.bincount(places, minlength=width)
        sums = np.asarray(self._comm.allreduce(mine, name=self._name)).astype(np.int64)
        return sums if curvatures is not None else sums[:, [0, 1, 1]]

    def _best(self, histogram: Integers, units: Floats) -> _Split | None:
        """Return the split of the largest gain: equation 7 of Chen and Guestrin, KDD 2016.

        Args:
            histogram: of a node.
            units: of gradients and curvatures.
        """
        sums = histogram.cumsum(axis=1)
        starts = self._bins.starts
        before = np.concatenate([np.zeros((3, 1), np.int64), sums], axis=1)[:, starts[:-1]]
        widths = np.diff(starts)
        left = sums - np.repeat(before, widths, axis=1)
        whole = left[:, starts[1] - 1][:, None]
        right = whole - left
        g_left, h_left = left[:2] * units[:, None]
        g_right, h_right = right[:2] * units[:, None]
        g_all, h_all = whole[:2, 0] * units
        penalty = self._limits.penalty
        allowed = (left[2] >= self._limits.samples) & (right[2] >= self._limits.samples)
        allowed &= np.minimum(h_left, h_right) >= _LEAST_CURVATURE
        if not allowed.any():
            return None
        with np.errstate(divide="ignore", invalid="ignore"):
            gains = g_left**2 / (h_left + penalty) + g_right**2 / (h_right + penalty)
        gains = np.where(allowed, gains - g_all**2 / (h_all + penalty), -np.inf)
        place = int(gains.argmax())
        if not gains[place] > 0:
            return None
        feature = int(np.searchsorted(starts, place, "right")) - 1
        smaller = bool(left[2, place] <= right[2, place])
        return _Split(float(gains[place]), feature, place, smaller)

    def _threshold(self, split: _Split) -> float:
        thresholds = self._bins.thresholds[split.feature]
        return float(thresholds[split.place - self._bins.starts[split.feature]])
