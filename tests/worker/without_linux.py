# SPDX-License-Identifier: Apache-2.0
"""Programs in a process that takes itself for macOS: what Linux alone has is gone.

    python without_linux.py import    every module of ours but those for torch
    python without_linux.py torch     those for torch
    python without_linux.py sum       a rank, by what is in the environment

What other packages and the standard library need was imported before, as they have a macOS of their
own.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
import re
import select
import socket
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PACKAGES = ("common/p4reduce_common", "native/p4reduce_native", "worker/p4reduce")
PACKAGES += ("controller/p4reduce_controller", "switch/p4reduce_switch", "lab/p4reduce_lab")
# By typeshed, and by <sys/socket.h>, <sys/event.h> and libSystem of macOS. It has a SOCK_SEQPACKET,
# but no Unix sockets of that kind.
_LINUX_ONLY = {
    socket: "AF_(ALG|CAN|NETLINK|PACKET|QIPCRTR|TIPC|VSOCK)|(ALG|CAN|NETLINK|PACKET|TIPC)_.*"
    "|SOCK_(CLOEXEC|NONBLOCK|SEQPACKET)|MSG_(CMSG_CLOEXEC|CONFIRM|ERRQUEUE|FASTOPEN|MORE|NOSIGNAL)"
    "|SO_(BINDTODEVICE|DOMAIN|INCOMING_CPU|MARK|PASSCRED|PASSSEC|PEERCRED|PEERSEC|PRIORITY"
    "|PROTOCOL)|IP_(BIND_ADDRESS_NO_PORT|TRANSPARENT)|IPX_TYPE|TCP_(CORK|DEFER_ACCEPT|INFO"
    "|LINGER2|QUICKACK|SYNCNT|USER_TIMEOUT|WINDOW_CLAMP)|UDPLITE_.*",
    os: "eventfd.*|EFD_.*|memfd_create|MFD_.*|pidfd_open|P_.*|waitid.*|WEXITED|WNOWAIT|pipe2"
    "|sched_(get|set)affinity|sched_(get|set)(param|scheduler)|splice|SPLICE_.*|copy_file_range"
    "|getrandom|GRND_.*|O_(DIRECT|NOATIME|PATH|TMPFILE)|posix_f(advise|allocate)|fdatasync"
    "|setns|unshare|CLONE_.*|getres[ug]id|setres[ug]id|(get|set|list|remove)xattr|RWF_.*",
    select: "epoll|EPOLL.*|POLLRDHUP|POLLMSG",
}
_FOR_TORCH = {"torch", "torch_demo", "horovod"}  # folders whose modules import torch
_FOR_ENGINES = {  # and those of engines and frameworks
    "ft": "torchft",
    "lightning": "lightning",
    "mpi": "mpi4py",
    "ray": "ray",
    "spark": "pyspark",
    "transformers": "transformers",
}
_NOT_IN_LIBC = "(send|recv)mmsg|prctl|unshare|setns|eventfd.*|epoll_.*|memfd_create|sched_.*"


def become_darwin() -> None:
    """Remove what Linux alone has, for whatever is imported from here on."""
    for module, names in _LINUX_ONLY.items():
        for name in [name for name in vars(module) if re.fullmatch(names, name)]:
            delattr(module, name)
    find: Any = ctypes.CDLL.__getattr__

    def of_darwin(self: ctypes.CDLL, name: str) -> Any:
        if re.fullmatch(_NOT_IN_LIBC, name):
            raise AttributeError(f"dlsym(RTLD_DEFAULT, {name}): symbol not found")
        return find(self, name)

    setattr(ctypes.CDLL, "__getattr__", of_darwin)  # noqa: B010
    sys.platform = "darwin"


def names(*, torch: bool = False) -> list[str]:
    """All modules of ours that are imported: those for torch, or all others."""
    found = []
    for package in PACKAGES:
        root = (ROOT / package).parent
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            is_for_torch = not _FOR_TORCH.isdisjoint(parts)
            # Modules made of another package's classes; the rest of the library does without it.
            if any(
                folder in parts and importlib.util.find_spec(package) is None
                for folder, package in _FOR_ENGINES.items()
            ):
                continue
            if parts[-1] != "__main__" and is_for_torch == torch:
                found.append(".".join(parts).removesuffix(".__init__"))
    return found


def import_all() -> None:
    """Import all of them twice: here, and then as if it were there."""
    ours = names()
    for name in ours:
        importlib.import_module(name)
    tops = {name.partition(".")[0] for name in ours}
    for name in [name for name in sys.modules if name.partition(".")[0] in tops]:
        del sys.modules[name]
    become_darwin()
    _import(ours)


def import_torch() -> None:
    """Import those for torch; torch itself was there before."""
    for name in ("torch.distributed", "torch.nn.parallel", "grpc.aio", "numpy"):
        importlib.import_module(name)
    become_darwin()
    _import(names(torch=True))


def _import(ours: list[str]) -> None:
    for name in ours:
        importlib.import_module(name)
    print(f"{len(ours)} modules")


def sum_up() -> None:
    """Sum as a rank, by UDP; prints why by nothing else."""
    for name in ("grpc", "grpc.aio", "google.protobuf.descriptor_pb2"):
        importlib.import_module(name)
    import numpy as np

    become_darwin()
    import p4reduce
    from p4reduce_native.link import why_not

    print(why_not())
    try:
        p4reduce.init(interface="eth0")
    except p4reduce.ConfigurationError as error:
        print(error)
    with p4reduce.init() as comm:
        # Each call wakes the thread that waits in the transport.
        for size in (1, 256, 5000):
            every = [np.arange(size, dtype=np.int32) * (rank + 1) for rank in range(comm.size)]
            handles = [comm.allreduce_async(every[comm.rank] + k, name=str(k)) for k in range(4)]
            for k, handle in enumerate(handles):
                assert (handle.wait() == sum(every) + k * comm.size).all()
        comm.barrier()
        print(f"rank {comm.rank} of {comm.size}: exact on {sys.platform}")


if __name__ == "__main__":
    {"import": import_all, "torch": import_torch, "sum": sum_up}[sys.argv[1]]()
