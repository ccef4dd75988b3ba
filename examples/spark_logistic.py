# SPDX-License-Identifier: Apache-2.0
"""A logistic regression on a DataFrame of Spark: gradients summed by the switch, and MLlib's fit.

python examples/spark_logistic.py [--features 1000] [--master 'local-cluster[2,1,1024]']
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from p4reduce import Communicator
from p4reduce.spark import barrier_run
from pyspark.ml.classification import LogisticRegression
from pyspark.ml.linalg import SparseVector, VectorUDT
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import DoubleType, StructField, StructType

ROWS, NONZERO, REGULARISATION = 8000, 20, 0.01
HISTORY, TOLERANCE, MOST_STEPS = 10, 1e-6, 100
Vector = npt.NDArray[np.float64]


# Columns and values of what is not zero, (rows, nonzero) each, and labels 0 or 1, (rows,). A tuple,
# as tasks cannot pickle objects of classes that this file defines.
Samples = tuple[npt.NDArray[np.int64], Vector, Vector]


def samples_of(rows: Iterator[Row]) -> Iterator[Samples]:
    """Read a partition of a DataFrame whose rows all have equally many numbers."""
    all_rows = list(rows)
    yield (
        np.array([row.features.indices for row in all_rows], np.int64),
        np.array([row.features.values for row in all_rows]),
        np.array([row.label for row in all_rows]),
    )


def gradient_and_loss(samples: Samples, weights: Vector) -> Vector:
    """Sums over the rows: the gradient by each weight and by the intercept, then the loss."""
    columns, values, labels = samples
    margins = (values * weights[columns]).sum(axis=1) + weights[-1]
    slopes = 1 / (1 + np.exp(-margins)) - labels
    shares = (values * slopes[:, None]).ravel()
    gradient = np.bincount(columns.ravel(), shares, minlength=weights.size)
    gradient[-1] = slopes.sum()
    loss = (np.logaddexp(0, margins) - labels * margins).sum()
    return np.append(gradient, loss)


def minimise(sum_over_rows: Callable[[Vector], Vector], features: int, rows: int) -> Vector:
    """Return weights and intercept by L-BFGS (Nocedal and Wright, algorithm 7.5).

    Args:
        sum_over_rows: gradient and loss of all rows for these weights, as `gradient_and_loss`.
        features: without the intercept, which is not regularised.
        rows: of all partitions.
    """

    def objective(weights: Vector) -> tuple[float, Vector]:
        sums = sum_over_rows(weights) / rows
        shrunk = np.append(weights[:-1], 0.0) * REGULARISATION
        return sums[-1] + 0.5 * float(shrunk @ weights), sums[:-1] + shrunk

    weights = np.zeros(features + 1)
    loss, gradient = objective(weights)
    pairs: list[tuple[Vector, Vector, float]] = []
    for _ in range(MOST_STEPS):
        if np.abs(gradient).max() < TOLERANCE:
            break
        direction, shares = -gradient, []
        for moved, bent, curvature in reversed(pairs):
            shares.append(float(moved @ direction) / curvature)
            direction = direction - shares[-1] * bent
        if pairs:
            direction = direction * (pairs[-1][2] / float(pairs[-1][1] @ pairs[-1][1]))
        for moved, bent, curvature in pairs:
            direction = direction + (shares.pop() - float(bent @ direction) / curvature) * moved
        step, slope = 1.0, float(gradient @ direction)
        while True:
            new_loss, new_gradient = objective(weights + step * direction)
            # Sums are rounded: near the minimum losses differ by no more than that.
            if new_loss <= loss + 1e-4 * step * slope + 1e-7 or step < 1e-3:
                break
            step /= 2
        moved, bent = step * direction, new_gradient - gradient
        if (curvature := float(moved @ bent)) > 0:
            pairs = [*pairs[1 - HISTORY :], (moved, bent, curvature)]
        weights, loss, gradient = weights + moved, new_loss, new_gradient
    return weights


def make_data(spark: SparkSession, features: int, partitions: int) -> DataFrame:
    """Rows of random numbers in random columns, with labels by a random model.

    Columns have a variance of about 1 for any number of them, so that fits are well conditioned.
    """

    def rows(number: int, _: Iterator[Any]) -> Iterator[Row]:
        truth = np.random.default_rng(0).normal(size=features, scale=2 / np.sqrt(features))
        rng = np.random.default_rng(1 + number)
        for _row in range(ROWS // partitions):
            columns = np.sort(rng.choice(features, NONZERO, replace=False))
            values = rng.uniform(0.5, 1.5, NONZERO) * rng.choice([-1, 1], NONZERO)
            values *= np.sqrt(features / NONZERO)
            chance = 1 / (1 + np.exp(-values @ truth[columns]))
            yield Row(
                features=SparseVector(features, columns, values),
                label=float(rng.random() < chance),
            )

    schema = StructType([StructField("features", VectorUDT()), StructField("label", DoubleType())])
    made = spark.sparkContext.parallelize(range(partitions), partitions)
    return spark.createDataFrame(made.mapPartitionsWithIndex(rows), schema).cache()


@dataclass
class Fit:
    """Weights with the intercept last, and the median seconds of a sum of gradients."""

    weights: Vector
    sums: int
    seconds: float


def fit_by_switch(samples: Any, features: int, rows: int) -> Fit:
    """Fit in a barrier stage; each task runs the same steps on sums that have the same bits."""

    def task(comm: Communicator, partition: Iterator[Samples]) -> tuple[Vector, list[float]]:
        mine, times = next(partition), list[float]()

        def sum_over_rows(weights: Vector) -> Vector:
            begun = time.perf_counter()
            sums: Vector = comm.allreduce(gradient_and_loss(mine, weights))
            times.append(time.perf_counter() - begun)
            return sums

        return minimise(sum_over_rows, features, rows), times

    weights, times = barrier_run(samples, task)[0]
    return Fit(weights, len(times), float(np.median(times)))


def fit_by_tree(samples: Any, features: int, rows: int) -> Fit:
    """Fit in the driver, which sends weights by broadcast and sums by `treeAggregate`."""
    times = []

    def sum_over_rows(weights: Vector) -> Vector:
        begun = time.perf_counter()
        sent = samples.context.broadcast(weights)
        sums: Vector = samples.treeAggregate(
            np.zeros(features + 2),
            lambda total, mine: total + gradient_and_loss(mine, sent.value),
            lambda one, other: one + other,
        )
        sent.destroy()
        times.append(time.perf_counter() - begun)
        return sums

    weights = minimise(sum_over_rows, features, rows)
    return Fit(weights, len(times), float(np.median(times)))


def fit_by_mllib(data: DataFrame) -> Fit:
    """Fit by MLlib, whose sums are treeAggregates in the JVM; its mean over all of the fit."""
    begun = time.perf_counter()
    model = LogisticRegression(
        regParam=REGULARISATION, standardization=False, tol=1e-9, maxIter=MOST_STEPS
    ).fit(data)
    seconds = time.perf_counter() - begun
    sums = max(model.summary.totalIterations, 1)
    weights = np.append(model.coefficients.toArray(), model.intercept)
    return Fit(weights, sums, seconds / sums)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--features", type=int, default=1000)
    parser.add_argument("--partitions", type=int, default=2, help="and free cores of the cluster")
    parser.add_argument("--master", default="local-cluster[2,1,1024]")
    arguments = parser.parse_args()
    builder = SparkSession.builder.master(arguments.master).config("spark.ui.enabled", "false")
    spark = builder.getOrCreate()
    try:
        data = make_data(spark, arguments.features, arguments.partitions)
        samples = data.rdd.mapPartitions(samples_of).cache()
        rows = data.count()
        samples.count()  # the data is in memory before anything is timed
        fits = {
            "the switch": fit_by_switch(samples, arguments.features, rows),
            "treeAggregate": fit_by_tree(samples, arguments.features, rows),
            "MLlib": fit_by_mllib(data),
        }
        for name, fit in fits.items():
            print(f"{name}: {fit.sums} sums, {fit.seconds * 1e3:.1f} ms each")
        off = np.abs(fits["the switch"].weights - fits["MLlib"].weights).max()
        print(f"{arguments.features} coefficients off MLlib's by at most {off:.1e}")
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
