# SPDX-License-Identifier: Apache-2.0
"""All ranks start with rank 0's parameters, if no DistributedDataParallel provides that."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch

from p4reduce.torch.channel import Channel
from p4reduce.torch.tensors import bytes_array_of, nothing


def take_rank_0s(channel: Channel, tensors: Iterable[torch.Tensor], what: str) -> None:
    """Overwrite tensors by those of rank 0: a collective of all ranks.

    Args:
        channel: of the ranks.
        tensors: as many, and as large, on all ranks.
        what: for messages and statistics.

    Raises:
        DistBackendError: a rank is lost, or the ranks' tensors differ in size.
    """
    lent = [bytes_array_of(one) for one in tensors]
    whole = np.concatenate([one.array for one in lent])
    channel.start(
        what,
        whole.nbytes,
        lambda timeout: channel.comm.broadcast_async(whole, 0, what, whole, timeout),
        options=None,
        result=None,
        finish=nothing,
    ).wait()
    ends = np.cumsum([one.array.size for one in lent])[:-1]
    for one, part in zip(lent, np.split(whole, ends), strict=True):
        one.array[...] = part
        one.put_back()
