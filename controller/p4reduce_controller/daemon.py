# SPDX-License-Identifier: Apache-2.0
"""`p4reduce-controller serve`: takes the switch, then serves the control API until told to stop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import grpc.aio
from p4reduce.control.control_pb2_grpc import add_ControlServicer_to_server

from p4reduce_controller import listen
from p4reduce_controller.addresses import parse_ip, parse_mac
from p4reduce_controller.controller import Controller, Settings
from p4reduce_controller.decoding import Decoding
from p4reduce_controller.fabric import Fabric
from p4reduce_controller.limits import MAX_CALLS, SERVER_OPTIONS
from p4reduce_controller.p4client import SwitchClient
from p4reduce_controller.program import Program, load_program
from p4reduce_controller.service import Service

log = logging.getLogger(__name__)

ANSWERS_GRACE = 0.3  # seconds for the last answers when stopping


class Daemon:
    """The process's one controller.

    Taking the switch blocks and raises what `SwitchClient.connect` does, `PipelineRefusedError`,
    `WriteRefusedError`, `ListenError`, or OSError for the state directory.
    """

    def __init__(self, settings: Settings, program: Program | None = None) -> None:
        self._settings = settings
        self._program = program or load_program()
        listen.prepare(settings.listen, settings.tls)
        self.client = SwitchClient.connect(
            settings.switch,
            settings.device_id,
            settings.election_id,
            timeout=settings.connect_timeout,
            files=settings.switch_tls,
        )
        self._fabric = Fabric(self.client)
        try:
            self._fabric.prepare(
                self._program,
                parse_ip(settings.switch_ip),
                parse_mac(settings.switch_mac),
                settings.ports,
                settings.hello_limit,
            )
        except BaseException:
            self.client.close()
            raise

    async def run(self, stop: asyncio.Event, ready: Callable[[str], None]) -> None:
        """Serve until `stop` is set; `ready` is called with the address when all is up."""
        try:
            controller = Controller(self._settings, self.client, self._fabric, self._program)
            server = grpc.aio.server(
                interceptors=[Decoding()],
                options=SERVER_OPTIONS,
                maximum_concurrent_rpcs=MAX_CALLS,
            )
            add_ControlServicer_to_server(Service(controller), server)
            address = listen.bind(server, self._settings.listen, self._settings.tls)
        except BaseException:
            self.client.close()
            raise
        with listen.cleared_away(address):
            await server.start()
            controller.start()
            ready(address)
            await stop.wait()
            log.info("stopping")
            await controller.stop()
            await server.stop(ANSWERS_GRACE)
