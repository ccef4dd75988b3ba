# SPDX-License-Identifier: Apache-2.0
"""LightGBM on all ranks, whose histograms the switch sums. Run it with

p4reduce-lab exec -n 4 -- python examples/lightgbm_trees.py
"""

from __future__ import annotations

import argparse
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import p4reduce
from p4reduce.lightgbm import network
from sklearn import datasets, model_selection

SETTINGS = {
    "objective": "binary",
    "use_quantized_grad": True,
    "num_threads": 1,
    "verbosity": -1,
}


def main() -> None:
    """Learns to tell tumours apart: each rank has a part of the samples, and all get the model."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--trees", type=int, default=100)
    parser.add_argument("--floats", action="store_true", help="histograms of floats")
    parser.add_argument("--sockets", action="store_true", help="also by LightGBM's own sockets")
    options = parser.parse_args()
    settings = SETTINGS | {"use_quantized_grad": not options.floats}
    data = datasets.load_breast_cancer()
    split = model_selection.train_test_split(data.data, data.target, random_state=0)
    train, test, classes, wanted = split
    with p4reduce.init() as comm:
        part = np.array_split(np.arange(len(train)), comm.size)[comm.rank]
        mine = train[part], classes[part]
        before = comm.stats
        with network(comm) as parameters:
            booster = lightgbm.train(
                {**settings, **parameters}, lightgbm.Dataset(*mine), options.trees
            )
        after = comm.stats
        right = ((booster.predict(test) > 0.5) == wanted).mean()
        said = [
            f"{right:.1%} of the test samples right; kB per tree and rank: "
            f"{(after.bytes_sent - before.bytes_sent) / options.trees / 1e3:.1f} sent, "
            f"{(after.bytes_received - before.bytes_received) / options.trees / 1e3:.1f} received"
        ]
        if options.sockets and comm.size > 1:
            model, sent, received = by_sockets(comm, settings, mine, options.trees)
            same = "the same" if model == trees(booster) else "other"
            said.append(
                f"LightGBM's sockets: {same} trees; {sent / options.trees / 1e3:.1f} sent, "
                f"{received / options.trees / 1e3:.1f} received"
            )
        if comm.rank == 0:
            print("\n".join(said))


def trees(booster: Any) -> str:
    """The model without its parameters, some of which name the network."""
    return str(booster.model_to_string().partition("\nparameters:")[0])


def by_sockets(
    comm: p4reduce.Communicator, settings: dict[str, Any], mine: Any, rounds: int
) -> tuple[str, int, int]:
    """Train the same by TCP on this host; return the model and this rank's bytes."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ports = comm.allgather(np.array([port], np.int32)).tolist()
    own = {
        "machines": ",".join(f"127.0.0.1:{one}" for one in ports),
        "local_listen_port": port,
        "num_machines": comm.size,
        "tree_learner": "data",
        "pre_partition": True,
    }
    booster = lightgbm.train({**settings, **own}, lightgbm.Dataset(*mine), rounds)
    comm.barrier()  # all has been acknowledged
    counts = [bytes_of(one) for one in connections(set(ports))]
    booster.free_network()
    return trees(booster), sum(sent for sent, _ in counts), sum(got for _, got in counts)


def connections(ports: set[int]) -> Iterator[socket.socket]:
    """This process's TCP connections from or to these ports."""
    for link in Path("/proc/self/fd").iterdir():
        if not (link.is_symlink() and str(link.readlink()).startswith("socket:")):
            continue
        with socket.socket(fileno=os.dup(int(link.name))) as found:
            if found.family != socket.AF_INET or found.type != socket.SOCK_STREAM:
                continue
            try:
                both = {found.getsockname()[1], found.getpeername()[1]}
            except OSError:  # it listens
                continue
            if both & ports:
                yield found


def bytes_of(connection: socket.socket) -> tuple[int, int]:
    """What a connection has sent and received, without headers: see tcp_info in linux/tcp.h."""
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    sent, received = struct.unpack_from("QQ", info, 120)
    return sent, received


if __name__ == "__main__":
    main()
