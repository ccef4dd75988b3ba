# SPDX-License-Identifier: Apache-2.0
"""Several ranks or GPUs per host: they reduce within the host, and one copy leaves it (HSDP).

    torchrun --nnodes 2 --node-rank 0 --nproc-per-node 2 --master-addr pc1 pytorch_hosts.py
    torchrun --nnodes 2 --node-rank 1 --nproc-per-node 2 --master-addr pc1 pytorch_hosts.py

Ranks of a host share the model by Gloo, or on GPUs by NCCL. Between hosts, the switches sum each
rank's share. Prints what each host's ranks have sent to others, beside DDP over the switches.
"""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

STEPS = 10


def network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(64, 2048), nn.ReLU(), nn.Linear(2048, 512), nn.Linear(512, 10))


def train(model: nn.Module, device: str) -> float:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(STEPS):
        inputs = torch.randn(32, 64, generator=generator).to(device)
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
    return float(loss)


def sent() -> int:
    """Return the bytes that have left this host, by all interfaces but loopback."""
    lines = Path("/proc/net/dev").read_text().splitlines()[2:]
    counts = {
        name.strip(): fields.split() for name, _, fields in (one.partition(":") for one in lines)
    }
    return sum(int(fields[8]) for name, fields in counts.items() if name != "lo")


def main() -> None:
    dist.init_process_group("p4reduce")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    per_host = int(os.environ["LOCAL_WORLD_SIZE"])
    mesh = init_device_mesh(
        device,
        (dist.get_world_size() // per_host, per_host),
        mesh_dim_names=("hosts", "ranks"),
        backend_override={"ranks": "gloo" if device == "cpu" else "nccl"},
    )
    models = {
        "DDP": DistributedDataParallel(network().to(device)),
        "HSDP": fully_shard(network().to(device), mesh=mesh),
    }
    for name, model in models.items():
        dist.barrier()
        before = sent()
        loss = train(model, device)
        dist.barrier()
        if os.environ["LOCAL_RANK"] == "0":
            megabytes = (sent() - before) / STEPS / 1e6
            print(f"{name}: loss {loss:.6f}, {megabytes:.2f} MB per step left the host", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
