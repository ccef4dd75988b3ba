# SPDX-License-Identifier: Apache-2.0
"""Refuses requests that do not come from the page's user.

Any web page can make a browser send requests to loopback. So the Host header has to name this
server (DNS rebinding), and a request that another site caused is refused (Sec-Fetch-Site). Only GET
and HEAD are answered, and beyond loopback a token is needed.
"""

from __future__ import annotations

import hmac
import ipaddress
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from p4reduce_common.host_port import bracketed, named_host
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "p4reduce"
_HEADERS = {
    "content-security-policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'none'; style-src 'self' 'unsafe-inline'",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}


class Guard:
    """ASGI middleware that refuses requests. `hosts` are this server's names, without ports."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str], token: str = "") -> None:
        self._app = app
        self._hosts = hosts
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or refuse."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                extra = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *extra]}
            await send(message)

        refusal = self._refusal(scope)
        await (refusal or self._app)(scope, receive, send_guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("Only GET is answered: this page is read only.\n", 405)
        host = named_host(headers.get("host", ""))
        if host not in self._hosts:
            return PlainTextResponse(
                f"Host {host[:100]!r} is not this server's; it answers as "
                f"{', '.join(sorted(self._hosts))}.\n",
                421,
            )
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            navigates = headers.get("sec-fetch-mode") == "navigate" and scope["path"] == "/"
            if not navigates:
                return PlainTextResponse("Refused: another site asked for this.\n", 403)
        if self._token:
            return self._check_token(scope, headers)
        return None

    def _check_token(self, scope: Scope, headers: Headers) -> Response | None:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._is_token(given):
            return None
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            cookie = None
        if cookie is not None and self._is_token(cookie.value):
            return None
        [query] = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[:1]
        if scope["path"] == "/" and self._is_token(query):
            answer = RedirectResponse("/", 303)
            answer.set_cookie(COOKIE, query, secure=True, httponly=True, samesite="strict")
            return answer
        return PlainTextResponse(
            "A token is needed: open /?token=…, or send 'Authorization: Bearer …'.\n",
            401,
            {"www-authenticate": "Bearer"},
        )

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.strip().encode(), self._token.encode())


def own_names(host: str) -> frozenset[str]:
    """Return the names of a server that is bound to `host`."""
    names = {"localhost", "127.0.0.1", "[::1]"}
    try:
        return frozenset({*names, bracketed(str(ipaddress.ip_address(host)))})
    except ValueError:
        return frozenset({*names, host.lower()})
