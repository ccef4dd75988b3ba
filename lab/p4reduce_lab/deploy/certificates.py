# SPDX-License-Identifier: Apache-2.0
"""The certificates of a network, if hosts differ.

Only these networks need `cryptography`, so they alone import this module, when they start.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from p4reduce import variables

from p4reduce_lab.deploy.credentials import write_private
from p4reduce_lab.switches.embedded import TlsPaths

_VALID = timedelta(days=30)  # a network lives as long as a job does
_EARLIER = timedelta(days=1)  # the clocks of other hosts may be behind this one's
_SERVER_AND_CLIENT = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)
_CA_KEY_USAGE = x509.KeyUsage(
    **dict.fromkeys(("key_cert_sign", "crl_sign"), True),
    **dict.fromkeys(
        (
            "digital_signature",
            "content_commitment",
            "key_encipherment",
            "data_encipherment",
            "key_agreement",
            "encipher_only",
            "decipher_only",
        ),
        False,
    ),
)


@dataclass(frozen=True)
class Certificates:
    """Certificate files of the controller, and a worker's certificate.

    Attributes:
        controller: certificate, key and CA, as `p4reduce-controller serve` takes them.
        variables: the worker's as PEM text, by the variables that hold them.
    """

    controller: TlsPaths
    variables: dict[str, str]


def make_certificates(
    directory: Path, hosts: Sequence[str], *, alike: bool = False
) -> Certificates:
    """Make a CA, a certificate for the servers at some IP addresses, and one for all workers.

    They are valid from a day before now. The CA's key is not kept: nobody gets another one.

    Args:
        directory: a private one.
        hosts: the addresses.
        alike: whether workers get the servers' certificate, because they start servers too.
    """
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority = _certificate("ca", authority_key, None, authority_key)
    (directory / "ca.pem").write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    addresses = [x509.IPAddress(ipaddress.ip_address(host)) for host in hosts]
    wanted: dict[str, Sequence[x509.GeneralName]] = {"controller": addresses}
    if not alike:
        wanted["worker"] = [x509.DNSName("worker")]
    for name, names in wanted.items():
        key = ec.generate_private_key(ec.SECP256R1())
        write_private(directory / f"{name}.key", _text_of(key))
        made = _certificate(name, key, authority, authority_key, names)
        (directory / f"{name}.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    controller, worker = (
        (directory / f"{name}.pem", directory / f"{name}.key", directory / "ca.pem")
        for name in ("controller", "controller" if alike else "worker")
    )
    texts = (file.read_text() for file in worker)
    return Certificates(controller, dict(zip(variables.TLS, texts, strict=True)))


def _text_of(key: ec.EllipticCurvePrivateKey) -> str:
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return key.private_bytes(encoding, form, serialization.NoEncryption()).decode()


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    authority: x509.Certificate | None,
    authority_key: ec.EllipticCurvePrivateKey,
    names: Sequence[x509.GeneralName] = (),
) -> x509.Certificate:
    """A certificate for `names`, or that of the CA itself."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"p4reduce {name}")])
    now = datetime.now(timezone.utc)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if authority is None else authority.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(now + _VALID)
        .add_extension(x509.BasicConstraints(authority is None, None), authority is None)
    )
    if authority is None:
        identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        builder = builder.add_extension(_CA_KEY_USAGE, critical=True).add_extension(
            identifier, False
        )
    else:
        authority_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(
            authority_key.public_key()
        )
        builder = (
            builder.add_extension(authority_id, False)
            .add_extension(x509.SubjectAlternativeName(names), False)
            .add_extension(x509.ExtendedKeyUsage(_SERVER_AND_CLIENT), False)
        )
    return builder.sign(authority_key, hashes.SHA256())
