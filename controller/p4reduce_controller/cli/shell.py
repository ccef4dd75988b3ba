# SPDX-License-Identifier: Apache-2.0
"""`p4reduce-controller shell`: p4runtime-shell on a switch of the controller."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from p4reduce.control import control_pb2 as pb
from p4reduce_common import p4runtime_messages

from p4reduce_controller.cli.common import CliOptions, switch_tls_files, tls_options

_WORD = 64  # bits of each half of an election id


@click.command()
@click.argument("name", default="")
@click.option(
    "--election-id",
    type=click.IntRange(min=0, max=(1 << 128) - 1),
    default=0,
    show_default=True,
    help="Ids below the controller's may only read. A higher one takes the switch from it.",
)
@tls_options("switch-", "the switch")
@click.pass_obj
def shell(
    options: CliOptions,
    name: str,
    election_id: int,
    switch_tls_cert: Path | None,
    switch_tls_key: Path | None,
    switch_tls_ca: Path | None,
) -> None:
    """Open p4runtime-shell on a switch: an interactive prompt for P4Runtime.

    The controller tells the switch's address. With several switches, name one. Needs the extra
    "shell".

    \b
    Examples:
      p4reduce-controller shell
      p4reduce-controller shell leaf1
    """
    p4runtime_messages.install()
    from p4runtime_sh.shell import main  # loads IPython, and needs the messages

    files = switch_tls_files(switch_tls_cert, switch_tls_key, switch_tls_ca)
    with options.connect() as client:
        switch = client.call(client.stub.GetSwitch, pb.GetSwitchRequest(switch=name))
    high, low = divmod(election_id, 1 << _WORD)
    sys.argv = ["p4runtime-shell", "--grpc-addr", switch.address]
    sys.argv += ["--device-id", str(switch.device_id), "--election-id", f"{high},{low}"]
    if files is not None:
        sys.argv += ["--ssl", "--cacert", str(files.ca), "--cert", str(files.cert)]
        sys.argv += ["--private-key", str(files.key)]
    main()
