# SPDX-License-Identifier: Apache-2.0
"""The credentials of a network: a token, a key, and certificates if hosts differ."""

from __future__ import annotations

import ipaddress
import os
import secrets
import subprocess
from dataclasses import dataclass
from pathlib import Path

from p4reduce import variables

from p4reduce_lab.errors import LabError, UnavailableError

_DAYS = "30"  # a network lives as long as a job does
_TIMEOUT = 30.0  # seconds
_CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True)
class Certificates:
    """Certificate files of the controller, and a worker's certificate.

    Attributes:
        controller: certificate, key and CA, as `p4reduce-controller serve` takes them.
        variables: the worker's as PEM text, by the variables that hold them.
    """

    controller: tuple[Path, Path, Path]
    variables: dict[str, str]


def make_token() -> str:
    """Return a job's token."""
    return secrets.token_urlsafe(24)


def make_key(directory: Path) -> tuple[Path, str]:
    """Make a key for UDP ports; return its file and its text."""
    key, file = secrets.token_urlsafe(32), directory / "udp.key"
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
        opened.write(key)
    return file, key


def make_certificates(directory: Path, host: str) -> Certificates:
    """Make a CA, a certificate for the controller at an IP address, and one for all workers.

    The CA's key is removed: nobody gets a further certificate.

    Raises:
        UnavailableError: there is no openssl.
        LabError: openssl failed; has what it said.
    """
    ipaddress.ip_address(host)
    ca, ca_key = directory / "ca.pem", directory / "ca.key"
    usage = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")
    _openssl("req", "-x509", *_CURVE, "-subj", "/CN=p4reduce network", "-days", _DAYS,
             *usage, "-keyout", ca_key, "-out", ca)  # fmt: skip
    _sign(directory, "controller", f"IP:{host}")
    _sign(directory, "worker", "DNS:worker")
    ca_key.unlink()
    mine = (directory / "worker.pem", directory / "worker.key", ca)
    texts = (file.read_text() for file in mine)
    return Certificates(
        (directory / "controller.pem", directory / "controller.key", ca),
        dict(zip(variables.TLS, texts, strict=True)),
    )


def _sign(directory: Path, name: str, alternative: str) -> None:
    request, extensions = directory / f"{name}.csr", directory / f"{name}.ext"
    _openssl("req", "-new", *_CURVE, "-subj", f"/CN={name}",
             "-keyout", directory / f"{name}.key", "-out", request)  # fmt: skip
    extensions.write_text(
        f"subjectAltName={alternative}\nextendedKeyUsage=serverAuth,clientAuth\n"
        "basicConstraints=CA:FALSE\n"
    )
    _openssl("x509", "-req", "-in", request, "-CA", directory / "ca.pem",
             "-CAkey", directory / "ca.key", "-set_serial", f"0x{secrets.token_hex(16)}",
             "-days", _DAYS, "-extfile", extensions, "-out", directory / f"{name}.pem")  # fmt: skip


def _openssl(*arguments: str | Path) -> None:
    try:
        done = subprocess.run(
            ["openssl", *map(str, arguments)],
            capture_output=True, text=True, timeout=_TIMEOUT, check=False, umask=0o077,
        )  # fmt: skip
    except FileNotFoundError:
        raise UnavailableError(
            "certificates for workers on other hosts need openssl: apt-get install openssl"
        ) from None
    except subprocess.TimeoutExpired:
        raise LabError(f"openssl {arguments[0]} did not end within {_TIMEOUT:g} s") from None
    if done.returncode != 0:
        raise LabError(f"openssl {arguments[0]} failed: {done.stderr.strip()}")
