# SPDX-License-Identifier: Apache-2.0
"""Certificates that change while a server runs: new connections get the new ones."""

from __future__ import annotations

import contextlib
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from made_certificates import files, make, needs_openssl
from p4reduce.control.tls import TlsFiles
from p4reduce_controller.web.certificate import keep_fresh
from p4reduce_switch.p4runtime.server_tls import ServerTlsFiles as SwitchTlsFiles

pytestmark = needs_openssl


def renew(directory: Path) -> None:
    """A new certificate of the same authority in place of the server's."""
    make(directory, "renewed=127.0.0.1")
    for suffix in ("key", "pem"):
        (directory / f"renewed.{suffix}").replace(directory / f"server.{suffix}")


def shown(port: int, client: TlsFiles) -> bytes:
    """The certificate that a server shows now."""
    context = ssl.create_default_context(cafile=str(client.ca))
    context.load_cert_chain(client.cert, client.key)
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(("127.0.0.1", port), 60) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as secure,
    ):
        certificate = secure.getpeercert(binary_form=True)
    assert certificate is not None
    return certificate


def der(path: Path) -> bytes:
    return ssl.PEM_cert_to_DER_cert(path.read_text())


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    make(tmp_path, "server=127.0.0.1", "client")
    return tmp_path


@pytest.mark.parametrize("kind", [TlsFiles, SwitchTlsFiles], ids=["controller", "switch"])
def test_a_grpc_server_shows_the_new_certificate(
    kind: type, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ours, client = files(directory, "server"), files(directory, "client")
    credentials = (
        ours.server_credentials()
        if kind is TlsFiles
        else SwitchTlsFiles(ours.cert, ours.key, ours.ca).credentials()
    )
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    try:
        first = der(ours.cert)
        assert shown(port, client) == first
        renew(directory)
        second = der(ours.cert)
        assert second != first
        assert shown(port, client) == second
        good = ours.cert.read_bytes()
        ours.cert.write_text("half a certificate")
        assert shown(port, client) == second
        assert "the previous certificates stay in use" in caplog.text
        ours.cert.write_bytes(good)
        renew(directory)
        assert shown(port, client) == der(ours.cert) != second
    finally:
        server.stop(None)


def test_the_live_page_shows_the_new_certificate(directory: Path) -> None:
    ours = files(directory, "server")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(ours.cert, ours.key)
    keep_fresh(context, ours)

    def handshake() -> bytes:
        up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
        trusting = ssl.create_default_context(cafile=str(ours.ca))
        server = context.wrap_bio(up, down, server_side=True)
        client = trusting.wrap_bio(down, up, server_hostname="127.0.0.1")
        for side in (client, server, client):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
        certificate = client.getpeercert(binary_form=True)
        assert certificate is not None
        return certificate

    assert handshake() == der(ours.cert)
    renew(directory)
    assert handshake() == der(ours.cert)
    good = der(ours.cert)
    ours.key.write_text("no key")
    assert handshake() == good
