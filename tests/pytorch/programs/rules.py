# SPDX-License-Identifier: Apache-2.0
"""What torch expects of a backend's works, with a fake accelerator whose streams are held up.

Each rank prints what it has found, as lines of JSON.
"""

import json
import os
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from fake_accelerator import FakeAccelerator, install
from p4reduce.torch import hooks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

LONG = 2_500_000  # elements: summed in parts
COUNT = 50_000


class Rules:
    """One rank, whose tensors of more than ten numbers are the accelerator's."""

    def __init__(self) -> None:
        self.rank = int(os.environ["RANK"])
        self.fake = FakeAccelerator(self.rank, kernels=True, longest=0.001)
        install(lambda tensor: tensor.numel() > 10, self.fake)
        dist.init_process_group("p4reduce")

    def found(self, name: str, value: Any) -> None:
        print(json.dumps({name: value}), flush=True)

    def summed(self, look: Callable[[Any, torch.Tensor, threading.Event], None]) -> None:
        """All-reduce 1 and 2, with the copies up held until an event."""
        tensor, gate = torch.zeros(100), threading.Event()
        self.fake.kernel(lambda: tensor.fill_(1.0 + self.rank))
        self.fake.hold(["up"], gate)
        look(dist.all_reduce(tensor, async_op=True), tensor, gate)
        gate.set()
        self.fake.finish()

    def seen(self, tensor: torch.Tensor) -> list[float]:
        """Look at a tensor in the caller's stream."""
        numbers: list[float] = []
        self.fake.kernel(lambda: numbers.append(tensor.max().item()))
        return numbers

    def calls(self) -> None:
        gate, tensor = threading.Event(), torch.zeros(100)
        self.fake.hold(["caller"], gate)
        self.fake.kernel(lambda: tensor.fill_(1.0 + self.rank))
        work = dist.all_reduce(tensor, async_op=True)
        self.found("the call returns before the caller's stream gets there", not gate.is_set())
        gate.set()
        work.wait()
        self.fake.finish()

    def wait(self, work: Any, tensor: torch.Tensor, gate: threading.Event) -> None:
        work.wait()
        self.found("wait returns before the copy up", not gate.is_set())
        self.found("complete before the copy up", work.is_completed())
        numbers = self.seen(tensor)
        called: list[float] = []
        future = work.get_future().then(lambda done: called.append(done.value()[0].max().item()))
        gate.set()
        self.fake.finish()
        self.found("what comes after wait in the caller's stream sees", numbers[0])
        future.wait()
        self.found("callbacks see", called[0])

    def synchronize(self, work: Any, tensor: torch.Tensor, gate: threading.Event) -> None:
        work.wait()
        thread = threading.Thread(target=work.synchronize)
        thread.start()
        thread.join(0.05)
        self.found("synchronize returns before the copy up", not thread.is_alive())
        gate.set()
        thread.join()
        self.found("synchronize returns with", tensor.max().item())

    def timeout(self) -> None:
        gate, tensor = threading.Event(), torch.ones(100)
        self.fake.hold(["down"], gate)
        work = dist.all_reduce(tensor, async_op=True)
        try:
            work.wait(timedelta(milliseconds=20))
        except RuntimeError as error:
            self.found("a call with a timeout that is too short", type(error).__name__)
        gate.set()
        work.wait()
        work.synchronize()
        self.found("complete after that", work.is_completed())

    def other_default(self) -> None:
        """Memory of the host is that, whatever device the script makes tensors on."""
        mine = torch.full((3,), 1.0 + self.rank, dtype=torch.bfloat16)
        parts, own = [torch.zeros_like(mine) for _ in range(2)], torch.zeros_like(mine)
        both = torch.cat([mine, mine])
        with torch.device("meta"):
            dist.all_gather(parts, mine)
            dist.reduce_scatter_tensor(own, both)
        self.found("with another default device", [*torch.cat(parts).tolist(), *own.tolist()])

    def recorded(self) -> None:
        """Print the streams that a tensor's memory waits for before somebody else gets it."""
        other = 1 - self.rank
        one, long, copied = torch.ones(100), torch.ones(2 * LONG), torch.ones(100)
        mine, gathered = torch.ones(100), torch.ones(200)
        sent, received = torch.ones(100), torch.ones(100)
        works = [
            dist.all_reduce(one, async_op=True),
            dist.all_reduce(long[::2], async_op=True),
            dist.broadcast(copied, 0, async_op=True),
            dist.all_gather_into_tensor(gathered, mine, async_op=True),
            dist.irecv(received, other),
            dist.isend(sent, other),
        ]
        for work in works:
            work.wait()
        tensors = {
            "all_reduce": one,
            "all_reduce of a long tensor with strides": long,
            "broadcast": copied,
            "all_gather, input": mine,
            "all_gather, output": gathered,
            "recv": received,
            "send": sent,
        }
        for name in ("int8_hook", "topk_hook"):
            state = hooks.HookState(error_feedback=True)
            tensors |= self.trained(name, state)
            tensors[f"{name}, kept"] = state.kept["bucket0"]
        self.fake.finish()
        streams = {}
        for name, tensor in tensors.items():
            address = tensor.untyped_storage().data_ptr()
            streams[name] = sorted(
                stream for stream, place in self.fake.recorded if place == address
            )
        self.found("recorded", streams)

    def trained(self, name: str, state: hooks.HookState) -> dict[str, torch.Tensor]:
        buffers = {}

        def keep(state: hooks.HookState, bucket: dist.GradBucket) -> Any:
            buffers[f"{name}, bucket"] = bucket.buffer()
            return getattr(hooks, name)(state, bucket)

        model = DistributedDataParallel(nn.Linear(COUNT, 1, bias=False))
        # A lambda, as DDP looks at the annotations of a function.
        model.register_comm_hook(state, lambda state, bucket: keep(state, bucket))
        model(torch.ones(1, COUNT)).sum().backward()
        return buffers


def main() -> None:
    rules = Rules()
    rules.calls()
    rules.summed(rules.wait)
    rules.summed(rules.synchronize)
    rules.timeout()
    rules.other_default()
    rules.recorded()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
