# SPDX-License-Identifier: Apache-2.0
"""Model and data parallel at once: a grid of ranks, by `split`.

p4reduce-lab exec -n 8 -- python examples/grid.py --tensor 4

The ranks of a row have the same samples, and a part of each layer each: the first layer's columns,
the second one's rows. Their parts of the output are summed along the row. The ranks of a column
have the same parts of the layers and samples of their own: their gradients are averaged along the
column. At the end the weights equal those of one process.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import p4reduce

SAMPLES, INPUTS, HIDDEN, OUTPUTS = 64, 20, 32, 3
STEPS, RATE = 50, 0.1
Array = npt.NDArray[np.float32]
Reduce = Callable[[Array], Array]


def data() -> tuple[Array, Array]:
    """Samples and what they are to become, the same on all ranks."""
    rng = np.random.default_rng(6)
    inputs = rng.standard_normal((SAMPLES, INPUTS)).astype(np.float32)
    return inputs, np.sin(inputs[:, :OUTPUTS] + inputs[:, OUTPUTS : 2 * OUTPUTS])


def weights() -> tuple[Array, Array]:
    """Both layers at the start, the same on all ranks."""
    rng = np.random.default_rng(7)
    first = rng.standard_normal((INPUTS, HIDDEN)) / np.sqrt(INPUTS)
    second = rng.standard_normal((HIDDEN, OUTPUTS)) / np.sqrt(HIDDEN)
    return first.astype(np.float32), second.astype(np.float32)


def train(
    inputs: Array, wanted: Array, first: Array, second: Array, along_row: Reduce, down: Reduce
) -> tuple[float, Array, Array]:
    """Gradient descent on parts of the samples and of the layers.

    Args:
        inputs, wanted: this rank's samples.
        first, second: its columns of the first layer, its rows of the second.
        along_row: sums over the ranks that have the other parts of the layers.
        down: averages over those that have other samples.

    Returns:
        The loss of its samples, and its parts of the layers.
    """
    loss = 0.0
    for _ in range(STEPS):
        hidden = np.tanh(inputs @ first)
        error = along_row(hidden @ second) - wanted
        loss = float((error**2).mean())
        slope = error * (2 / error.size)
        to_first = inputs.T @ (slope @ second.T * (1 - hidden**2))
        second = second - RATE * down(hidden.T @ slope)
        first = first - RATE * down(to_first)
    return loss, first, second


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--tensor", type=int, default=4, help="ranks that share a layer")
    width = parser.parse_args().tensor
    with p4reduce.init() as comm:
        if width < 1 or comm.size % width or HIDDEN % width or SAMPLES * width % comm.size:
            raise SystemExit(f"--tensor {width} does not divide {comm.size} ranks evenly")
        row = comm.split(comm.rank // width)
        column = comm.split(comm.rank % width)
        assert row is not None
        assert column is not None
        with row, column:
            inputs, wanted = data()
            first, second = weights()
            mine = slice(row.rank * HIDDEN // width, (row.rank + 1) * HIDDEN // width)
            samples = np.array_split(np.arange(SAMPLES), column.size)[column.rank]
            loss, own_first, own_second = train(
                inputs[samples],
                wanted[samples],
                first[:, mine],
                second[mine],
                row.allreduce,
                lambda gradient: column.allreduce(gradient, p4reduce.MEAN),
            )
            whole = np.hstack(np.split(row.allgather(own_first), width))
            whole_second = row.allgather(own_second)
    _, alone, alone_second = train(inputs, wanted, first, second, _same, _same)
    pairs: list[tuple[Any, Any]] = [(whole, alone), (whole_second, alone_second)]
    apart = max(float(np.abs(one - other).max()) for one, other in pairs)
    print(
        f"rank {comm.rank}: row of {width}, column of {comm.size // width}; loss {loss:.4f}, "
        f"{apart:.1e} from one process"
    )
    if apart > 1e-5:
        raise SystemExit("the weights are not those of one process")


def _same(array: Array) -> Array:
    return array


if __name__ == "__main__":
    main()
