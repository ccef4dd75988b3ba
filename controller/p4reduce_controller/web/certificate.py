# SPDX-License-Identifier: Apache-2.0
"""The live page's certificate, which is read again when its files change."""

from __future__ import annotations

import logging
import ssl

from p4reduce.control.tls import TlsFiles
from p4reduce_common.fresh_certificates import stamp

log = logging.getLogger(__name__)


def keep_fresh(context: ssl.SSLContext, files: TlsFiles) -> None:
    """Let each handshake of `context` check whether the files have changed.

    Unusable files are logged once, and the former certificate stays in use.
    """
    watched = (files.cert, files.key)
    known, current = stamp(watched), context

    def look(connection: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
        nonlocal known, current
        try:
            now = stamp(watched)
            if now != known:
                known = now
                files.check()
                fresh = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                fresh.load_cert_chain(files.cert, files.key)
                current = fresh
                log.info("certificates read again: %s, %s", *watched)
        except (OSError, ValueError) as error:
            log.error("the previous certificates stay in use: %s", error)
        connection.context = current

    context.sni_callback = look
