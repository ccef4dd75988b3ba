# SPDX-License-Identifier: Apache-2.0
"""torchrun as for Gloo, with nothing set: on one host, and on several in namespaces."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from home import REASON, STARTED, Torchruns, directory, hosts
from needed import DEADLINE, mark_of, marked
from p4reduce_lab.networks.home import INTERFACE
from torch_system import clean_environment

pytest.importorskip(
    "torch", reason="needs torch: pip install 'p4reduce[torch]', or make test-torch"
)

on_hosts = pytest.mark.skipif(REASON is not None, reason=str(REASON))


def test_on_one_host(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    with marked() as environment:
        name, _, value = mark_of(environment).partition("=")
        done = subprocess.run(
            [*torchrun, "--nproc-per-node", "2", str(STARTED)],
            env={**clean_environment(), name: value},
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=DEADLINE,
            check=False,
        )
    assert done.returncode == 0, done.stdout[-6000:]
    assert done.stdout.count('"shares": [1.0]') == 2
    assert done.stdout.count('"all_reduce"') == 2
    assert done.stdout.count('"scapy": false') == 2  # it would cost a rank a fifth of a second
    assert done.stdout.count('"collects garbage": true') == 2


@pytest.mark.timeout(600)
@pytest.mark.root
@pytest.mark.parametrize(
    ("number", "each", "by_name", "variables"),
    [
        pytest.param(2, 1, False, {}, id="two"),
        pytest.param(3, 2, True, {}, id="three, by a name that is 127.0.1.1 on the first"),
        pytest.param(2, 1, True, {"P4REDUCE_SWITCHES": "first"}, id="a switch on the first"),
        pytest.param(3, 1, False, {"P4REDUCE_PORTS": "7000-7009"}, id="ports of a range"),
    ],
)
@on_hosts
def test_on_several_hosts(number: int, each: int, by_name: bool, variables: dict[str, str]) -> None:
    with directory() as here, hosts(number) as (network, environment):
        master = network.names[0] if by_name else ""
        runs = Torchruns(
            network, environment, [str(STARTED)], here, each=each, master=master, **variables
        )
        assert runs.wait() == [0] * number, runs.said
        records = runs.records
    size = number * each
    switches = 1 if variables.get("P4REDUCE_SWITCHES") == "first" else number
    assert [one["rank"] for one in records] == list(range(size)), runs.said
    for one in records:
        assert one["size"] == size
        assert one["weights"] == records[0]["weights"]  # the same bits on all ranks
        assert one["pair"] == (2.0 if one["rank"] < 2 else 1.0)
        assert one["by_switch"]["all_reduce"] >= 3, one
        assert one["shares"] == pytest.approx([1 / switches] * switches)


@pytest.mark.timeout(600)
@pytest.mark.root
@pytest.mark.skipif(shutil.which("nft") is None, reason="needs nft: apt-get install nftables")
@pytest.mark.parametrize(
    ("host", "kind"),
    [(1, "udp"), (0, "tcp"), (1, "tcp")],
    ids=["to a switch", "to the controller", "to a switch's P4Runtime"],
)
@on_hosts
def test_a_firewalls_port_is_named_on_all_ranks(host: int, kind: str) -> None:
    """It drops without a word what comes to this host's ports of the range."""
    chain = "add chain ip filter in { type filter hook input priority 0 ; }"
    drop = f"add rule ip filter in iifname {INTERFACE} {kind} dport 7000-7009 drop"
    with directory() as here, hosts(2) as (network, environment):
        network.run(host, "nft", f"add table ip filter ; {chain} ; {drop}")
        runs = Torchruns(network, environment, [str(STARTED)], here, P4REDUCE_PORTS="7000-7009")
        assert runs.wait() == [1, 1], runs.said
        outputs, said = [runs.output(one) for one in range(2)], runs.said
        here_, there = network.addresses[1 - host], network.addresses[host]
    says = rf"from {here_} to .+ at {kind.upper()} port 70\d\d of {there}: no answer within 20 s"
    for output in outputs:
        assert re.search(rf"DistBackendError: p4reduce: (rank \d: )?{says}", output), said


@pytest.mark.timeout(600)
@pytest.mark.root
@on_hosts
def test_ranks_of_a_host_reduce_first() -> None:
    """HSDP over two hosts: half of the bytes of DDP leave a host of two ranks."""
    example = Path(__file__).parents[2] / "examples" / "pytorch_hosts.py"
    with directory() as here, hosts(2) as (network, environment):
        runs = Torchruns(network, environment, [str(example)], here, each=2)
        assert runs.wait() == [0, 0], runs.said
        outputs, said = [runs.output(host) for host in range(2)], runs.said
    for output in outputs:
        found = re.findall(r"(DDP|HSDP): loss ([\d.]+), ([\d.]+) MB", output)
        assert [name for name, _, _ in found] == ["DDP", "HSDP"], said
        (_, loss, alone), (_, sharded_loss, together) = found
        assert float(sharded_loss) == pytest.approx(float(loss), rel=1e-3), said
        assert float(together) < 0.6 * float(alone), said
