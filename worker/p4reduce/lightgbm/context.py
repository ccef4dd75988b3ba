# SPDX-License-Identifier: Apache-2.0
"""The context in which LightGBM trains over a communicator."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from p4reduce.checks import check_timeout
from p4reduce.communicator import Communicator
from p4reduce.lightgbm.served import LightGBMNetwork
from p4reduce.lightgbm.signals import WaitingSignals

_of_thread = threading.local()


@contextmanager
def network(comm: Communicator, timeout: float | None = None) -> Iterator[dict[str, Any]]:
    """Give LightGBM in this thread these ranks as its network, for as long as the context lasts.

    Each rank trains with its own samples, and all of them get the same model. Datasets have to be
    made within the context, because the ranks agree on the bins of features then: `Dataset` does it
    when it is first used. All ranks give the same parameters. Where early stopping depends on
    validation data, all ranks give the same data: LightGBM measures metrics on each rank alone.

    Args:
        comm: the ranks; with one of them LightGBM trains without a network.
        timeout: seconds for each collective, in which the other ranks' computing counts. None: that
            of `init`.

    Yields:
        The parameters that LightGBM needs, for Dataset, train and scikit-learn's estimators:
        "num_machines", "tree_learner" and "pre_partition".

    Raises:
        ImportError: lightgbm is not installed.
        TypeError: `comm` is not a communicator.
        P4ReduceError: a collective failed. LightGBM ends its training with an error of its own,
            which this one replaces.

    With `use_quantized_grad=True` histograms are integers, and the switch sums them: see `packed`.
    All other data, which is small but for histograms of floats, is gathered from all ranks, and
    each rank applies LightGBM's own reducer in the order of ranks. All ranks get the same bits.

    Take it where all ranks have fewer than 65,536 / num_grad_quant_bins samples together. Beyond
    that LightGBM up to 4.7.0 grows wrong trees, over its own sockets too: a UserWarning says so.

    LightGBM has a network per thread. Ranks may be threads of one process. A context within another
    one of the same thread takes its place until it ends.
    """
    if not isinstance(comm, Communicator):
        raise TypeError(f"comm={comm!r}: a communicator is needed, such as p4reduce.init()")
    if timeout is not None:
        check_timeout(timeout)
    library, error_of_lightgbm = _loaded()
    outer: list[LightGBMNetwork] = _of_thread.__dict__.setdefault("served", [])
    callbacks = [LightGBMNetwork.reduce_scatter.__code__, LightGBMNetwork.allgather.__code__]
    signals = outer[-1].signals if outer else WaitingSignals(callbacks)
    served = LightGBMNetwork(comm, timeout, library, signals)
    outer.append(served)
    try:
        with signals:
            served.begin()
            try:
                yield served.parameters
            except error_of_lightgbm as error:
                if served.failure is None:
                    raise
                raise served.failure from error
            if served.failure is not None:
                raise served.failure
    finally:
        outer.pop()
        library.LGBM_NetworkFree()
        if outer:
            outer[-1].begin()


def _loaded() -> tuple[Any, type[Exception]]:
    """Return LightGBM's library and its class of errors."""
    try:
        from lightgbm.basic import _LIB, LightGBMError
    except ImportError as error:
        raise ImportError(
            "p4reduce.lightgbm needs the package 'lightgbm', which is not installed here: pip "
            "install lightgbm",
            name=error.name,
        ) from error
    return _LIB, LightGBMError
