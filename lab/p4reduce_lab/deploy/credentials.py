# SPDX-License-Identifier: Apache-2.0
"""The credentials of a network: a token, a key, and certificates if hosts differ."""

from __future__ import annotations

import ipaddress
import os
import secrets
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

from p4reduce import variables

from p4reduce_lab.errors import LabError, UnavailableError

_VALID = timedelta(days=30)  # a network lives as long as a job does
_EARLIER = timedelta(days=1)  # the clocks of other hosts may be behind this one's
_TIMEOUT = 30.0  # seconds
_CONFIGURATION = """[ca]
default_ca = network
[network]
database = {directory}/ca.index
new_certs_dir = {directory}
certificate = {directory}/ca.pem
private_key = {directory}/ca.key
default_md = sha256
policy = any
rand_serial = yes
[any]
commonName = supplied
"""
_CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


TlsPaths = tuple[Path, Path, Path]
"""Certificate, key and CA."""


@dataclass(frozen=True)
class Certificates:
    """Certificate files of the controller, and a worker's certificate.

    Attributes:
        controller: certificate, key and CA, as `p4reduce-controller serve` takes them.
        variables: the worker's as PEM text, by the variables that hold them.
    """

    controller: TlsPaths
    variables: dict[str, str]


def make_token() -> str:
    """Return a job's token."""
    return secrets.token_urlsafe(24)


def make_key(directory: Path) -> tuple[Path, str]:
    """Make a key for UDP ports; return its file and its text."""
    key, file = secrets.token_urlsafe(32), directory / "udp.key"
    write_private(file, key)
    return file, key


def write_private(file: Path, text: str) -> None:
    """Write a new file that only this user can read."""
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
        opened.write(text)


def make_certificates(
    directory: Path, hosts: Sequence[str], *, alike: bool = False
) -> Certificates:
    """Make a CA, a certificate for the servers at some IP addresses, and one for all workers.

    They are valid from a day before now. The CA's key is removed: nobody gets another one.

    Args:
        directory: a private one.
        hosts: the addresses.
        alike: whether workers get the servers' certificate, because they start servers too.

    Raises:
        UnavailableError: there is no openssl.
        LabError: openssl failed; has what it said.
    """
    names = ",".join(f"IP:{ipaddress.ip_address(host)}" for host in hosts)
    (directory / "ca.cnf").write_text(_CONFIGURATION.format(directory=directory))
    (directory / "ca.index").touch()
    usages = (
        "extendedKeyUsage=serverAuth,clientAuth\nbasicConstraints=CA:FALSE\n"
        "authorityKeyIdentifier=keyid\n"
    )
    authority = (
        "keyUsage=critical,keyCertSign,cRLSign\nbasicConstraints=critical,CA:TRUE\n"
        "subjectKeyIdentifier=hash\n"
    )
    _sign(directory, "ca", authority)
    _sign(directory, "controller", f"subjectAltName={names}\n{usages}")
    worker = "controller" if alike else "worker"
    if not alike:
        _sign(directory, worker, f"subjectAltName=DNS:worker\n{usages}")
    (directory / "ca.key").unlink()
    mine = (directory / f"{worker}.pem", directory / f"{worker}.key", directory / "ca.pem")
    texts = (file.read_text() for file in mine)
    return Certificates(
        (directory / "controller.pem", directory / "controller.key", directory / "ca.pem"),
        dict(zip(variables.TLS, texts, strict=True)),
    )


def _sign(directory: Path, name: str, extensions: str) -> None:
    request, file = directory / f"{name}.csr", directory / f"{name}.ext"
    _openssl(
        "req",
        "-new",
        *_CURVE,
        "-subj",
        f"/CN=p4reduce {name}",
        "-keyout",
        directory / f"{name}.key",
        "-out",
        request,
    )
    file.write_text(extensions)
    now = datetime.now(timezone.utc)
    start, end = (f"{now + one:%y%m%d%H%M%SZ}" for one in (-_EARLIER, _VALID))
    # Of openssl's commands only this one sets the first day, in all versions.
    _openssl(
        "ca",
        "-batch",
        "-notext",
        "-config",
        directory / "ca.cnf",
        "-in",
        request,
        *(("-selfsign",) if name == "ca" else ()),
        "-startdate",
        start,
        "-enddate",
        end,
        "-extfile",
        file,
        "-out",
        directory / f"{name}.pem",
    )


def _openssl(*arguments: str | Path) -> None:
    try:
        done = subprocess.run(
            ["openssl", *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
            check=False,
            umask=0o077,
        )
    except FileNotFoundError:
        raise UnavailableError(
            "certificates for workers on other hosts need openssl: apt-get install openssl"
        ) from None
    except subprocess.TimeoutExpired:
        raise LabError(f"openssl {arguments[0]} did not end within {_TIMEOUT:g} s") from None
    if done.returncode != 0:
        raise LabError(f"openssl {arguments[0]} failed: {done.stderr.strip()}")
