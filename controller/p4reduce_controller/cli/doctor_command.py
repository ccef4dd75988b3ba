# SPDX-License-Identifier: Apache-2.0
"""`p4reduce-controller doctor`: its options, and its output."""

from __future__ import annotations

import json
from pathlib import Path

import click
from rich.text import Text

from p4reduce_controller.cli.common import (
    CliOptions,
    console,
    read_address,
    state_dir_option,
    switch_tls_files,
    tls_options,
    with_json,
)
from p4reduce_controller.storage.state_directory import default_state_directory
from p4reduce_controller.terminal.exit_codes import Exit


class _InterfaceOption(click.Option):
    """Its help lists the forms of ports, which are imported only where help is shown."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        from p4reduce_controller.doctor.interface import forms

        self.help = (self.help or "").format(forms=forms())
        return super().get_help_record(ctx)


@click.command()
@click.option(
    "--interface",
    cls=_InterfaceOption,
    metavar="NAME",
    envvar="P4REDUCE_INTERFACE",
    show_envvar=True,
    help="How a worker on this machine reaches the switch: {forms}. The doctor runs a job of one "
    "rank through it.",
)
@click.option(
    "--switch",
    metavar="ADDR",
    callback=read_address,
    help="Ask a P4Runtime server for its version, besides the controller's own switch.",
)
@tls_options("switch-", "the switch")
@state_dir_option
@click.option(
    "--timeout",
    type=click.FloatRange(min=0.1, max=600.0),
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="The time limit of each check.",
)
@with_json
@click.pass_context
def doctor(
    ctx: click.Context,
    interface: str | None,
    switch: str | None,
    switch_tls_cert: Path | None,
    switch_tls_key: Path | None,
    switch_tls_ca: Path | None,
    state_dir: Path | None,
    timeout: float,
) -> None:
    """Check this machine, the controller, the switch and the path to it.

    For each fault it says what to do. It changes nothing; with an --interface it runs a job of one
    rank. In a worker's environment it uses the worker's settings.

    \b
    Examples:
      p4reduce-controller doctor
      p4reduce-controller doctor --interface eth0
    """
    # These take long to load, and no other command needs them.
    from p4reduce_controller.doctor import DoctorTarget, Finding, FindingStatus, examine, view

    options: CliOptions = ctx.obj
    target = DoctorTarget(
        address=options.address,
        tls=options.tls,
        switch=switch,
        switch_tls=switch_tls_files(switch_tls_cert, switch_tls_key, switch_tls_ca),
        interface=interface,
        state=state_dir or default_state_directory(),
        timeout=timeout,
    )
    findings: list[Finding] = []
    report, terminal = view.FindingsPrinter(), console()
    for finding in examine(target):  # some take seconds: what is known is shown
        findings.append(finding)
        if not options.json:
            report.add(terminal, finding)
    sick = any(finding.status is FindingStatus.FAILURE for finding in findings)
    if options.json:
        plain = [finding.plain() for finding in findings]
        click.echo(json.dumps({"ok": not sick, "findings": plain}, indent=2))
    else:
        terminal.print(Text("\n"), view.verdict(findings), sep="")
    ctx.exit(Exit.SICK if sick else Exit.OK)
