# SPDX-License-Identifier: Apache-2.0
"""The planner's answer about a few hosts: tables, the commands that start a way, and JSON."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from p4reduce.arrangement import FIRST, SWITCHES, Host

from p4reduce_lab.planning.home import P4, PLACES, RING, SPARE, Answer, Way
from p4reduce_lab.units import in_words, rate_as_typed, rate_in_words, size_in_words

PORT = 29400
"""MASTER_PORT of the printed commands: torchrun's own default."""

# Gloo takes the interface that the host's name leads to, which is Debian's 127.0.1.1.
_INTERFACE = r"GLOO_SOCKET_IFNAME=$(ip route show default | sed -n 's/.* dev \([^ ]*\).*/\1/p;q') "

_EACH_LINE = 4  # hosts; of more equal ones not every line is printed
_HOOKS = {
    "int16": "HookState(), hooks.int16_hook",
    "int8": "HookState(), hooks.int8_hook",
    "int8 with feedback": "HookState(error_feedback=True), hooks.int8_hook",
}


def text(answer: Answer) -> str:
    """Return the whole answer for a terminal."""
    parts = [
        title(answer),
        "Seconds of a step, and how many times as fast as with the ring:",
        _table(answer, lambda way: f"{in_words(way.time.overlapped)} ({way.faster:.2f})"),
        "What the busiest link carries in each direction, and CPU time of the job's busiest host, "
        "per step:",
        _table(answer, lambda way: f"{size_in_words(way.octets)}, {in_words(way.cpu)}"),
    ]
    shown: list[str] = []
    for label, way in _named(answer):
        heading = f"{label}: {way.name}, {in_words(way.time.overlapped)} per step, " + (
            f"{way.faster:.2f} times as fast as the ring."
            if way.place != RING
            else "as no switch is faster with float32."
        )
        run = commands(answer, way)
        lines = [*script(way), *(["# Started by the same lines."] if run == shown else run)]
        shown = run
        parts.append("\n".join([heading, "", *(f"  {line}" for line in lines)]))
    return "\n\n".join(parts) + "\n"


def _named(answer: Answer) -> Iterator[tuple[str, Way]]:
    yield "Best lossless", answer.lossless
    yield "Best lossy", answer.lossy
    yield "Best where the models need not be equal in every step", answer.seldom
    if answer.further is not None:
        yield "Faster without loss, with another machine", answer.further


def title(answer: Answer) -> str:
    """Return the question in one line."""
    home, step = answer.home, answer.step
    each = sorted({len(host.ranks) for host in home.hosts})
    spread = " to ".join(map(str, dict.fromkeys((each[0], each[-1]))))
    ranks = "rank" if spread == "1" else "ranks"
    return (
        f"{step.parameters:,} parameters, {len(home.hosts)} hosts with {spread} {ranks} each, "
        f"links of {rate_in_words(home.link.rate)}, {in_words(step.compute)} of computing per step"
    )


def _table(answer: Answer, cell: Any) -> str:
    columns = list(dict.fromkeys((way.lanes, way.every) for way in answer.ways))
    columns.sort(key=lambda column: column[1])
    head = [f"DiLoCo every {every}" if every > 1 else lanes for lanes, every in columns]
    found = {(way.place, way.lanes, way.every): cell(way) for way in answer.ways}
    rows = [
        [name, *(found.get((place, *column), "-") for column in columns)]
        for place, name in PLACES.items()
    ]
    lines = [["sums by", *head], *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])])
        for line in lines
    )


def script(way: Way) -> list[str]:
    """Return what the reader's train.py needs, with comments that say where."""
    backend = "gloo" if way.place == RING else "p4reduce"
    lines = ["# In train.py:", f'torch.distributed.init_process_group("{backend}")']
    if way.every > 1:
        return [
            *lines,
            "# after the optimizer is made; without DistributedDataParallel:",
            "import p4reduce.torch",
            f"optimizer = p4reduce.torch.LocalSGD(optimizer, every={way.every}, outer_rate=0.7, "
            "outer_momentum=0.9)",
        ]
    if hook := _HOOKS.get(way.lanes):
        hook = hook.replace("HookState", "hooks.HookState")
        lines += [
            "# after DistributedDataParallel has the model:",
            "from p4reduce.torch import hooks",
            f"model.register_comm_hook({hook})",
        ]
    return lines


def commands(answer: Answer, way: Way) -> list[str]:
    """Return lines for shells; a comment says on which host the next ones run."""
    home = answer.home
    before = {FIRST: f"{SWITCHES}={FIRST} ", RING: _INTERFACE}.get(way.place, "")
    lines = []
    if way.place == P4:
        rate = rate_as_typed(home.link.rate)
        return [
            "# Its controller's and its ranks' lines:",
            f"p4reduce-lab plan --ranks {home.ranks} --switch hardware --bandwidth {rate} "
            f"--parameters {answer.step.parameters} --compute {answer.step.compute * 1e3:g}ms",
        ]
    if way.place == SPARE:
        lines = [
            "# On the spare host, whose IP address is ADDRESS; stays until Ctrl-C:",
            f"p4reduce-lab deploy -n {home.ranks} --host ADDRESS --switches 1 --variables net.sh",
            "# On each host first, with a copy of net.sh:",
            ". ./net.sh",
        ]
    return [*lines, *_torchruns(home.hosts, before)]


def _torchruns(hosts: tuple[Host, ...], before: str) -> Iterator[str]:
    equal = len({len(host.ranks) for host in hosts}) == 1
    some = hosts if not equal or len(hosts) <= _EACH_LINE else hosts[:2]
    for number, host in enumerate(some):
        same = host.name == hosts[0].address or number
        yield f"# On {host.name}:" if same else f"# On {host.name}, {hosts[0].address}:"
        yield (
            f"{before}torchrun --nnodes {len(hosts)} --node-rank {number} --nproc-per-node "
            f"{len(host.ranks)} --master-addr {shlex.quote(hosts[0].address)} --master-port {PORT} "
            "train.py"
        )
    if len(some) < len(hosts):
        yield f"# The same on the others, with --node-rank {len(some)} to {len(hosts) - 1}"


def as_json(answer: Answer) -> dict[str, Any]:
    """Return all figures; times in seconds. The ways named are numbers of `ways`."""
    home, step = answer.home, answer.step
    named = (("lossless", answer.lossless), ("lossy", answer.lossy), ("seldom", answer.seldom))
    return {
        "question": title(answer),
        "hosts": [asdict(host) for host in home.hosts],
        "bandwidth": home.link.rate,
        "parameters": step.parameters,
        "compute_seconds": step.compute,
        "ways": [
            {
                "name": way.name,
                "switches": way.place,
                "lanes": way.lanes,
                "every": way.every,
                "communication_seconds": way.time.communication,
                "step_seconds": way.time.after,
                "overlapped_step_seconds": way.time.overlapped,
                "faster_than_ring": way.faster,
                "bytes_of_busiest_link": way.octets,
                "cpu_seconds_of_busiest_host": way.cpu,
                "script": script(way),
                "commands": commands(answer, way),
            }
            for way in answer.ways
        ],
        **{f"best_{name}": way.name for name, way in named},
        "best_with_another_machine": answer.further and answer.further.name,
    }
