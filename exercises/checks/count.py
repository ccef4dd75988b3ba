# SPDX-License-Identifier: Apache-2.0
"""Lab 1: a register that counts."""

from __future__ import annotations

from pathlib import Path

from exercises.checks.frames import Frame
from exercises.checks.program import Switch, ports_text
from exercises.checks.report import Check, WrongError

REGISTER = "frames"


def checks(source: Path) -> list[Check]:
    """What has to hold."""

    def comes_back() -> None:
        switch = Switch(source)
        for port in (1, 2, 7):
            out = switch.send(Frame(), port)
            if list(out) != [port]:
                raise WrongError(
                    f"frame {switch.sent} went in at port {port}; what came out: {ports_text(out)}",
                    "set sm.egress_spec to sm.ingress_port",
                    switch.where("egress"),
                )

    def counts() -> None:
        switch = Switch(source)
        for number in (1, 2, 3):
            expect_count(switch, 2, number, "read frames, add 1, write it back, set hdr.lab.count")

    def by_port() -> None:
        switch = Switch(source)
        expect_count(switch, 2, 1, "the first frame of a port is number 1")
        expect_count(switch, 5, 1, "each port has a cell of its own: its number is the index")
        expect_count(switch, 2, 2, "what comes in at port 5 is no frame of port 2")

    def keeps() -> None:
        switch = Switch(source)
        for port in (1, 1, 4):
            switch.send(Frame(), port)
        cells = switch.cells(REGISTER) or []
        seen = {port: count for port, count in enumerate(cells) if count}
        if seen != {1: 2, 4: 1}:
            raise WrongError(
                f"after two frames at port 1 and one at port 4, {REGISTER} holds {seen or 'zeros'} "
                "by index; it should hold {1: 2, 4: 1}",
                "who asks the switch later reads this register: write the count to it",
                switch.where(REGISTER),
            )

    return [
        ("a frame goes back to the port that it came in by", comes_back),
        ("the frames of a port are counted: 1, 2, 3", counts),
        ("each port has a count of its own", by_port),
        ("the register holds the counts", keeps),
    ]


def expect_count(switch: Switch, port: int, number: int, hint: str) -> None:
    """Send a frame, and look at the count in it."""
    out = switch.send(Frame(), port)
    got = out[port][0].count if port in out else None
    if got != number:
        raise WrongError(
            f"frame {switch.sent}, into port {port}: hdr.lab.count is {got}, should be {number}",
            hint,
            switch.where("lab", "count"),
        )
