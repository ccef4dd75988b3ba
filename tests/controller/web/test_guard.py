# SPDX-License-Identifier: Apache-2.0
"""The token of the live page, and the names that a server answers to."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from p4reduce_controller.web.guard import Guard, own_names
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

TOKEN = "a-token-of-some-length"


async def secret(_: Request) -> PlainTextResponse:
    return PlainTextResponse("secret")


def ask(url: str, **headers: str) -> Any:
    """Ask a guarded server that has a secret."""
    routes = [Route("/", secret), Route("/view.json", secret)]
    app = Guard(Starlette(routes=routes), own_names("switch.example"), TOKEN)

    async def answer() -> Any:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(
            transport=transport, base_url="https://switch.example"
        ) as client:
            return await client.get(url, headers=headers)

    return asyncio.run(answer())


@pytest.mark.parametrize(
    "url", ["/", "/view.json", "/?token=", "/?token=wrong", f"/view.json?token={TOKEN}"]
)
def test_without_a_token_nothing_is_shown(url: str) -> None:
    answer = ask(url)
    assert answer.status_code == 401
    assert "secret" not in answer.text


def test_a_bearer() -> None:
    good = ask("/view.json", Authorization=f"Bearer {TOKEN}")
    assert (good.status_code, good.text) == (200, "secret")
    assert ask("/view.json", Authorization=f"Basic {TOKEN}").status_code == 401


def test_the_link_with_the_token_sets_a_cookie() -> None:
    answer = ask(f"/?token={TOKEN}")
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"]
    for word in ("HttpOnly", "Secure", "SameSite=strict"):
        assert word in cookie
    assert ask("/view.json", Cookie=cookie.partition(";")[0]).text == "secret"


def test_a_broken_cookie_is_no_token() -> None:
    assert ask("/", Cookie="p4reduce=;;\x01=").status_code == 401


@pytest.mark.parametrize(
    ("bound", "name"),
    [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]"), ("10.0.0.5", "10.0.0.5"), ("Host", "host")],
)
def test_own_names(bound: str, name: str) -> None:
    assert own_names(bound) == {"localhost", "127.0.0.1", "[::1]", name}
