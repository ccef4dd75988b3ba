# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin: the fixture `p4reduce_network`, a real switch for tests of your own.

    def test_sum(p4reduce_network):
        sums = p4reduce_network.run(lambda comm: comm.allreduce(numpy.ones(3, numpy.float32)))
        assert sums[0].tolist() == [4, 4, 4]

The network starts with the first test that asks for it and serves all others. It has room for four
ranks; `@pytest.mark.p4reduce(ranks=8)` asks for another number. Each test is a job of its own.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from p4reduce_lab.local_network import LocalNetwork

RANKS = 4


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers", "p4reduce(ranks): how many ranks the fixture p4reduce_network has room for"
    )


@pytest.fixture(scope="session")
def p4reduce_networks() -> Iterator[Callable[[int], LocalNetwork]]:
    """Start networks by number of ranks, each once. All end with the session."""
    # Imported here: who installs p4reduce has this plugin in each run of pytest.
    from p4reduce.launch import start

    from p4reduce_lab.local_network import LocalNetwork

    started: dict[int, LocalNetwork] = {}
    with ExitStack() as stack:

        def network_for(ranks: int) -> LocalNetwork:
            if ranks not in started:
                started[ranks] = LocalNetwork(stack.enter_context(start(ranks, unix=True)))
            started[ranks].network.check()
            return started[ranks]

        yield network_for


@pytest.fixture
def p4reduce_network(
    request: pytest.FixtureRequest, p4reduce_networks: Callable[[int], LocalNetwork]
) -> Iterator[LocalNetwork]:
    """A switch with its controller, which the environment names while the test runs."""
    from p4reduce_lab.local_network import environment

    marker = request.node.get_closest_marker("p4reduce")
    ranks = RANKS if marker is None else marker.kwargs.get("ranks", RANKS)
    network = p4reduce_networks(ranks)
    with environment({**network.variables, "P4REDUCE_JOB": f"test-{secrets.token_hex(4)}"}):
        yield network
