# SPDX-License-Identifier: Apache-2.0
"""TLS with certificates on both sides, and the reason if it fails.

gRPC reports "Socket closed" for most faults. So files are checked before use, and a failed
connection is tried again without gRPC, to find the reason.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import grpc
from p4reduce_common.fresh_certificates import fresh_credentials
from p4reduce_common.host_port import parse_host_port
from p4reduce_native.files import read_file

from p4reduce import variables
from p4reduce.control.pem import in_a_file

OPTIONS = ("--tls-cert", "--tls-key", "--tls-ca")

_NOT_YET_VALID, _EXPIRED = 9, 10  # X509_V_ERR_CERT_… of OpenSSL
_PROBE_TIMEOUT = 2.0  # seconds


class TlsError(ValueError):
    """The TLS files cannot be used; the message names the one at fault."""


@dataclass(frozen=True)
class TlsFiles:
    """The own certificate (PEM, with its chain), its key, and the CA of the other side."""

    cert: Path
    key: Path
    ca: Path

    @classmethod
    def given(
        cls,
        cert: str | Path | None,
        key: str | Path | None,
        ca: str | Path | None,
        names: tuple[str, str, str] = OPTIONS,
    ) -> TlsFiles | None:
        """Return the files if all three are given, or None. Raises TlsError if some are missing."""
        paths = (cert, key, ca)
        if not any(paths):
            return None
        lacking = [name for name, path in zip(names, paths, strict=True) if not path]
        if cert is None or key is None or ca is None or lacking:
            raise TlsError(
                f"TLS requires all of {', '.join(names)}; not given: {', '.join(lacking)}"
            )
        return cls(Path(cert), Path(key), Path(ca))

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> TlsFiles | None:
        """Return the files in P4REDUCE_TLS_CERT, …_KEY and …_CA: each is a path or PEM text.

        Raises TlsError as `given` does.
        """
        environ = os.environ if environ is None else environ
        cert, key, ca = (in_a_file(environ.get(name)) for name in variables.TLS)
        return cls.given(cert, key, ca, variables.TLS)

    def server_credentials(self) -> grpc.ServerCredentials:
        """Return a server's credentials, which require client certificates.

        Raises TlsError.
        """
        self.check()
        return fresh_credentials((self.cert, self.key, self.ca), self._read)

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Return credentials of a client. Raises TlsError."""
        cert, key, ca = self._read()
        return grpc.ssl_channel_credentials(ca, key, cert)

    def _read(self) -> tuple[bytes, bytes, bytes]:
        self.check()
        return self.cert.read_bytes(), self.key.read_bytes(), self.ca.read_bytes()

    def check(self) -> None:
        """Raise TlsError if the files are broken, do not belong together, or are out of date."""
        _check_readable("certificate", self.cert)
        _check_readable("key", self.key)
        _check_readable("CA", self.ca)
        self._context()
        try:
            _shake_hands(self._own_context(ssl.PROTOCOL_TLS_SERVER), self._trusting_ourselves())
        except ssl.SSLCertVerificationError as error:
            # What else a stranger would say of it depends on the stranger.
            if error.verify_code in (_NOT_YET_VALID, _EXPIRED):
                raise TlsError(f"TLS certificate {self.cert}: {error.verify_message}") from None

    def _context(self) -> ssl.SSLContext:
        """As a client that checks the server's certificate."""
        context = self._own_context(ssl.PROTOCOL_TLS_CLIENT)
        try:
            context.load_verify_locations(cafile=self.ca)
        except (ssl.SSLError, OSError):
            raise TlsError(f"{self.ca} is not a CA certificate in PEM form") from None
        return context

    def _own_context(self, protocol: int) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        try:
            context.load_cert_chain(self.cert, self.key, password=_no_password)
        except (ssl.SSLError, OSError) as error:
            if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
                raise TlsError(
                    f"TLS key {self.key} is not that of the certificate {self.cert}"
                ) from None
            raise TlsError(
                f"{self.cert} is not a certificate, or {self.key} no key without a password, "
                "in PEM form"
            ) from None
        return context

    def _trusting_ourselves(self) -> ssl.SSLContext:
        """Finds fault with nothing but the certificate's dates."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(cafile=self.cert)
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        return context


_CURE = f"give {', '.join(OPTIONS)} or set {', '.join(variables.TLS)}"


def diagnose(address: str, files: TlsFiles | None, cure: str = _CURE) -> str:
    """Say why TLS with the server at `address` fails; empty if TLS is not the reason.

    Args:
        address: HOST:PORT; the answer is empty for others.
        files: of this side; None if it has none.
        cure: the options or variables that set them.
    """
    try:
        host, port = parse_host_port(address)
    except ValueError:
        return ""
    if files is None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    else:
        context = files._context()
    context.set_alpn_protocols(["h2"])
    try:
        with socket.create_connection((host, port), _PROBE_TIMEOUT) as plain:
            return _try(plain, host, context, files, cure)
    except OSError:
        return ""  # not even TCP: gRPC's own words say that


def _try(
    plain: socket.socket,
    host: str,
    context: ssl.SSLContext,
    files: TlsFiles | None,
    cure: str,
) -> str:
    try:
        secure = context.wrap_socket(plain, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        ca = files.ca if files else "the CA"
        return f"its certificate does not pass {ca}: {error.verify_message}"
    except ssl.SSLError as error:
        return f"it does not speak TLS ({error.reason})" if files else ""
    with secure:
        if files is None:
            return f"it speaks TLS, and requires a client certificate: {cure}"
        # A server of TLS 1.3 looks at our certificate after we are done, and then hangs up;
        # one that is content begins HTTP/2 by itself.
        try:
            refused = not secure.recv(1)
        except ssl.SSLError:
            refused = True
        if not refused:
            return ""
        return f"it refuses our certificate {files.cert}: is that of a CA that the server trusts?"


def _check_readable(what: str, path: Path) -> None:
    try:
        read_file(path)
    except OSError as error:
        raise TlsError(f"cannot read the TLS {what} {path}: {error.strerror}") from None


def _no_password() -> str:
    return ""  # or OpenSSL would ask at the terminal


def _shake_hands(server_context: ssl.SSLContext, client_context: ssl.SSLContext) -> None:
    """One handshake in memory. Raises what the client says of the server's certificate."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = server_context.wrap_bio(up, down, server_side=True)
    client = client_context.wrap_bio(down, up)
    for side in (client, server, client):
        with contextlib.suppress(ssl.SSLWantReadError):
            side.do_handshake()
