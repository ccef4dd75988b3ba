# SPDX-License-Identifier: Apache-2.0
"""What `p4reduce-lab plan --hosts` prints, run as it stands there on hosts in namespaces.

Each host's name leads to 127.0.1.1 on itself, as Debian has it.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from home import REASON, directory, hosts
from p4reduce_lab.networks.home import HomeNetwork
from torch_system import DEADLINE

pytest.importorskip(
    "torch", reason="needs torch: pip install 'p4reduce[torch]', or make test-torch"
)

HOSTS = 2
QUESTION = ["--parameters", "20100", "--compute", "50ms", "--every", "2"]
TRAIN = """
import gc
import json
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

{begin}
torch.manual_seed(dist.get_rank())
model = torch.nn.Linear(200, 100)
if {every} == 1:
    model = DistributedDataParallel(model)
    {hook}
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
if {every} > 1:
    {outer}
for _ in range(4):
    optimizer.zero_grad()
    model(torch.full((4, 200), float(dist.get_rank() + 1))).square().mean().backward()
    optimizer.step()
calls = {{}}
if dist.get_backend() == "p4reduce":
    import p4reduce.torch

    calls = {{name: one.calls for name, one in p4reduce.torch.statistics().switch.items()}}
    switches = len(dist.group.WORLD.channel.comm.switches)
print(json.dumps({{
    "rank": dist.get_rank(),
    "size": dist.get_world_size(),
    "weights": sum(parameter.double().sum().item() for parameter in model.parameters()),
    "calls": calls,
    "switches": switches if calls else 0,
}}), flush=True)
# DDP's reference would keep Gloo's threads until the interpreter has ended. There they may drop the
# last collective, which needs it: torch 2.13 then aborts, beside load in one process of fifteen.
del model, optimizer
gc.collect()
dist.destroy_process_group()
"""


@pytest.mark.timeout(600)
@pytest.mark.root
@pytest.mark.parametrize(
    ("place", "lanes", "every", "called", "switches", "named"),
    [
        pytest.param("ring", "float32", 1, "", 0, True, id="ring"),
        pytest.param("each", "float32", 1, "all_reduce", 2, True, id="a switch on each"),
        pytest.param("first", "int8 with feedback", 1, "int8_hook", 1, False, id="on the first"),
        pytest.param("spare", "int16", 1, "int16_hook", 1, True, id="on a spare host"),
        pytest.param("each", "float32", 2, "LocalSGD", 2, False, id="DiLoCo"),
    ],
)
@pytest.mark.skipif(REASON is not None, reason=str(REASON))
def test_the_printed_commands_start(
    place: str, lanes: str, every: int, called: str, switches: int, named: bool
) -> None:
    spare = place == "spare"
    with directory() as here, hosts(HOSTS + spare) as (network, environment):
        for host in range(HOSTS + spare):  # as a home has one
            network.run(host, "ip", "route", "add", "default", "dev", "eth0")
        environment = {**environment, "PATH": f"{Path(sys.executable).parent}:/usr/bin:/usr/sbin"}
        way = planned(network, here, environment, place, lanes, every, named=named)
        (here / "train.py").write_text(script_of(way))
        deploy, torchruns = lines_by_host(way["commands"])
        with contextlib.ExitStack() as stack:
            before = ""
            if spare:
                stack.enter_context(deployed(network, here, environment, deploy))
                before = ". ./net.sh\n"
            running = [
                stack.enter_context(shell(network, host, here, environment, before + line))
                for host, line in enumerate(torchruns)
            ]
            said = ends_of(running)
    records = [json.loads(line) for text in said for line in text.splitlines() if line[:1] == "{"]
    assert sorted(one["rank"] for one in records) == list(range(HOSTS)), said
    for one in records:
        assert one["size"] == HOSTS
        assert one["weights"] == pytest.approx(records[0]["weights"], rel=1e-6)
        assert one["switches"] == switches
        if called:
            assert one["calls"][called] >= 4 // every
        else:
            assert one["calls"] == {}


def planned(
    network: HomeNetwork,
    here: Path,
    environment: Mapping[str, str],
    place: str,
    lanes: str,
    every: int,
    *,
    named: bool,
) -> dict[str, Any]:
    """The way that the planner on the first host says, with its commands."""
    (here / "hosts").write_text("".join(f"{name} slots=1\n" for name in network.names[:HOSTS]))
    of = ["--host-file", str(here / "hosts")] if named else ["--hosts", str(HOSTS)]
    lab = [*network.prefix(0), sys.executable, "-m", "p4reduce_lab", "plan", *of, *QUESTION]
    done = subprocess.run(
        [*lab, "--json", str(here / "plan.json")],
        env=dict(environment),
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    ways = json.loads((here / "plan.json").read_text())["ways"]
    [way] = [
        way
        for way in ways
        if (way["switches"], way["lanes"], way["every"]) == (place, lanes, every)
    ]
    master = network.names[0] if named else network.addresses[0]
    assert sum(f"--master-addr {master} " in line for line in way["commands"]) == HOSTS
    return dict(way)


def script_of(way: Mapping[str, Any]) -> str:
    """The training script, with the printed lines at the printed places."""
    lines = [line for line in way["script"] if not line.startswith("#")]
    rest = "; ".join(lines[1:]) or "pass"
    every = way["every"]
    hook, outer = (rest, "pass") if every == 1 else ("pass", rest)
    return TRAIN.format(begin=lines[0].replace("torch.distributed", "dist"), every=every,
                        hook=hook, outer=outer)  # fmt: skip


def lines_by_host(commands: list[str]) -> tuple[str, list[str]]:
    """The line for the spare host, if there is one, and that of torchrun for each host."""
    lines = [line for line in commands if not line.startswith("#") and line != ". ./net.sh"]
    deploy = [line for line in lines if line.startswith("p4reduce-lab deploy")]
    return "".join(deploy), [line for line in lines if line not in deploy]


@contextlib.contextmanager
def shell(
    network: HomeNetwork, host: int, here: Path, environment: Mapping[str, str], line: str
) -> Iterator[subprocess.Popen[str]]:
    """A line, typed in a shell on a host."""
    process = subprocess.Popen(
        [*network.prefix(host), "sh", "-c", f"cd {here}\n{line}"],
        env=dict(environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def ends_of(running: list[subprocess.Popen[str]]) -> list[str]:
    """What lines of all hosts say. The first one that fails is shown: torchrun waits five minutes
    for one that has failed elsewhere."""
    end = time.monotonic() + DEADLINE
    while None in (codes := [one.poll() for one in running]) and time.monotonic() < end:
        failed = next((host for host, code in enumerate(codes) if code), None)
        assert failed is None, running[failed].communicate()[0][-6000:]
        time.sleep(0.1)
    assert None not in codes, f"{codes} after {DEADLINE} s"
    said = [one.communicate()[0] for one in running]
    assert not any(codes), "\n".join(said)[-6000:]
    return said


@contextlib.contextmanager
def deployed(
    network: HomeNetwork, here: Path, environment: Mapping[str, str], line: str
) -> Iterator[None]:
    """The network of a spare host, until it is no longer needed."""
    line = line.replace("ADDRESS", network.addresses[HOSTS])
    with shell(network, HOSTS, here, environment, f"exec {line}") as process:
        end = time.monotonic() + DEADLINE
        while not (here / "net.sh").exists():
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < end
            time.sleep(0.1)
        yield
        process.terminate()
        process.communicate(timeout=DEADLINE)
