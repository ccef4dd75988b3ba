# SPDX-License-Identifier: Apache-2.0
"""`TorchDistributor`: PySpark's, with a network for the backend "p4reduce" beside its ranks."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.ml.torch import distributor

if TYPE_CHECKING:
    _TorchDistributor = Any
else:
    _TorchDistributor = distributor.TorchDistributor


class TorchDistributor(_TorchDistributor):
    """As `pyspark.ml.torch.distributor.TorchDistributor`, with the same arguments.

    Rank 0's process starts switch and controller, for which its host needs the extra "lab", and
    the others find them through torch's store. `init_process_group("p4reduce")` in the training
    function or file finds them. They end with the training.
    """

    def run(self, train_object: Callable[..., Any] | str, *args: Any, **kwargs: Any) -> Any:
        """Train with a function or a file of Python, as PySpark's `run` does.

        Returns:
            What the function returned on rank 0; None of a file.

        Raises:
            pyspark.errors.PySparkException: a rank failed; its output has the reason.
        """
        if isinstance(train_object, str):
            return super().run(_train_by_file, train_object, *args)
        return super().run(_train, train_object, *args, **kwargs)


def _train(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    from p4reduce.torch.started import network_beside_ranks

    with network_beside_ranks("spark"):
        return function(*args, **kwargs)


def _train_by_file(path: str, *args: Any) -> None:
    sys.argv = [path, *map(str, args)]
    sys.path.insert(0, str(Path(path).parent))  # as of a script that Python is given
    _train(runpy.run_path, path, run_name="__main__")
