# SPDX-License-Identifier: Apache-2.0
"""TLS files of the P4Runtime server: read and checked before gRPC gets them.

gRPC accepts any files, and then refuses each connection without a reason.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc
from p4reduce_common.fresh_certificates import fresh_credentials
from p4reduce_native.files import read_file


class ServerTlsError(ValueError):
    """The files cannot be used; the message names the one at fault."""


@dataclass(frozen=True, slots=True)
class ServerTlsFiles:
    """A certificate (PEM, with its chain), its key, and the CA of the controllers' certificates.

    Without a CA every client is served. `options` has the names of the three files' options.
    """

    cert: Path
    key: Path
    ca: Path | None
    options: tuple[str, str, str] = ("--tls-cert", "--tls-key", "--tls-ca")

    def credentials(self) -> grpc.ServerCredentials:
        """Return credentials that require a client certificate if there is a CA.

        Changed files are read again.

        Raises:
            ServerTlsError: a file cannot be read, is no PEM, or the key is another certificate's.
        """
        self._pem()  # says what is wrong with them, before they are watched
        files = (self.cert, self.key) if self.ca is None else (self.cert, self.key, self.ca)
        return fresh_credentials(files, self._pem)

    def _pem(self) -> tuple[bytes, bytes, bytes | None]:
        cert, key = _read(self.cert), _read(self.key)
        ca = None if self.ca is None else _read(self.ca)
        cert_option, key_option, ca_option = self.options
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            # An empty password, or OpenSSL would ask for one at the terminal.
            context.load_cert_chain(self.cert, self.key, password="")
        except ssl.SSLError as error:
            raise ServerTlsError(
                f"{cert_option} {self.cert} and {key_option} {self.key} are not a certificate "
                "and its key, without a password, in PEM form: "
                f"{error.reason or 'the key does not open'}"
            ) from None
        if ca is None:
            return cert, key, None
        try:
            context.load_verify_locations(cafile=self.ca)
        except ssl.SSLError:
            raise ServerTlsError(
                f"{ca_option} {self.ca} is not a CA certificate in PEM form"
            ) from None
        return cert, key, ca


def _read(path: Path) -> bytes:
    try:
        return read_file(path)[0]
    except OSError as error:
        raise ServerTlsError(f"cannot read {path}: {error.strerror}") from None
