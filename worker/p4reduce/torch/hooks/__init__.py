# SPDX-License-Identifier: Apache-2.0
"""Communication hooks for DistributedDataParallel: sums by the switch, in fewer bytes.

    from p4reduce.torch import hooks

    model.register_comm_hook(hooks.HookState(), hooks.int16_hook)

| hook | what a rank sends | bytes of float32 | the mean is |
| --- | --- | --- | --- |
| `allreduce_hook` | all, in lanes of 32 bits | 1 | within `error_bound` |
| `int16_hook` | all, rounded at random | 1/2 | unbiased |
| `int8_hook` | all, rounded at random | 1/4 | unbiased |
| `int4_hook` | all, rounded at random | 1/8 | unbiased |
| `topk_hook` | the blocks of most energy | `HookState.density` | biased, with error feedback |
| `elements_hook` | the largest elements | by ranks' union | biased, with error feedback |
| `hierarchical_hook` | the largest of a leaf's sum | by leaves' union | as above |
| `majority_hook` | signs | 1/8 (from 8 ranks: 1/4, 128: 1/2) | the majority's sign |
| `onebit_hook` | signs | as above | biased, with error feedback |
| `cat_hook` | as many blocks as earn their bits | found per step | biased, with error feedback |
| `compressed_hook` | as its compressor chooses | by the compressor | by the compressor |
| `deadline_hook` | all, in lanes of 32 bits | 1 | of the ranks in time |

Each takes a `HookState`. Sparse gradients (`nn.Embedding(sparse=True)`) travel as rows by all of
them but `deadline_hook`, which refuses them. The hooks return at once, so the backward pass
continues while buckets are summed; DDP waits for them at its end. DDP without a hook calls
`allreduce` of `torch.group` instead. Imports `compression`, `tensors` and `wire`.
"""

from __future__ import annotations

from p4reduce.torch.hooks.compressed import cat_hook, compressed_hook, topk_hook
from p4reduce.torch.hooks.dense import allreduce_hook, int4_hook, int8_hook, int16_hook
from p4reduce.torch.hooks.elements import elements_hook
from p4reduce.torch.hooks.hierarchical import hierarchical_hook
from p4reduce.torch.hooks.late import deadline_hook
from p4reduce.torch.hooks.state import HookState
from p4reduce.torch.hooks.votes import majority_hook, onebit_hook

__all__ = [
    "HookState",
    "allreduce_hook",
    "cat_hook",
    "compressed_hook",
    "deadline_hook",
    "elements_hook",
    "hierarchical_hook",
    "int4_hook",
    "int8_hook",
    "int16_hook",
    "majority_hook",
    "onebit_hook",
    "topk_hook",
]
