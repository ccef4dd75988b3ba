# SPDX-License-Identifier: Apache-2.0
"""Options for TLS files take what the variables hold: paths, or the PEM text itself."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from p4reduce.variables import TLS
from p4reduce_controller.cli.common import tls_options

TEXTS = [f"-----BEGIN {name}-----\nabc\n-----END {name}-----\n" for name in ("A", "B", "C")]


@click.command()
@tls_options("", "the controller")
def show(tls_cert: Path, tls_key: Path, tls_ca: Path) -> None:
    for path in (tls_cert, tls_key, tls_ca):
        assert path.stat().st_mode & 0o777 == 0o600
        click.echo(path.read_text(), nl=False)


def test_variables_may_hold_the_text() -> None:
    done = CliRunner().invoke(show, env=dict(zip(TLS, TEXTS, strict=True)))
    assert done.output == "".join(TEXTS)


@pytest.mark.parametrize("by_option", [True, False])
def test_a_path_stays_a_path(tmp_path: Path, by_option: bool) -> None:
    file = tmp_path / "own.pem"
    file.write_text(TEXTS[0])
    file.chmod(0o600)
    names = ("--tls-cert", "--tls-key", "--tls-ca")
    given = [word for name in names for word in (name, str(file))] if by_option else []
    env = {} if by_option else dict.fromkeys(TLS, str(file))
    assert CliRunner().invoke(show, given, env=env).output == TEXTS[0] * 3
