# SPDX-License-Identifier: Apache-2.0
"""`p4reduce-controller serve`: takes the switch, then serves the control API until told to stop."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

import grpc.aio
from p4reduce.control.control_pb2_grpc import add_ControlServicer_to_server

from p4reduce_controller.controller import Controller, Start
from p4reduce_controller.fabric.compiled_program import Program, load_program
from p4reduce_controller.fabric.fabric import Fabric
from p4reduce_controller.fabric.layout import lay_out
from p4reduce_controller.fabric.p4client import NotPrimaryError, SwitchClient
from p4reduce_controller.jobs.job import Job, JobState
from p4reduce_controller.service import listen
from p4reduce_controller.service.control_api import Service
from p4reduce_controller.service.decoding import Decoding
from p4reduce_controller.service.limits import MAX_CALLS, SERVER_OPTIONS
from p4reduce_controller.settings import Settings
from p4reduce_controller.storage.job_table import TableFile

log = logging.getLogger(__name__)

ANSWERS_GRACE = 0.3  # seconds for the last answers when stopping
RETRY = 0.05  # seconds between two attempts to follow a controller that died


class Daemon:
    """The process's one controller.

    Taking the switch blocks and raises what `SwitchClient.connect` does, `PipelineRefusedError`,
    `WriteRefusedError`, `ListenError`, `TableError`, or OSError for the state directory.
    """

    def __init__(self, settings: Settings, program: Program | None = None) -> None:
        self._settings = settings
        listen.prepare(settings.listen, settings.tls)
        self._fabric = Fabric(program or load_program(), settings.ground)
        self._file = TableFile(settings.state_directory, settings.switch, settings.device_id)
        try:
            self._jobs = self._restored()
            self.client = self._take_switch()
        except BaseException:
            self._file.close()
            raise

    def _restored(self) -> list[Job]:
        """Return the jobs of a former life that ended without ending them."""
        table = self._file.read()
        if table is None:
            return []
        header, jobs = table
        ground = self._fabric.ground
        if jobs and (header.switch_ip, header.switch_mac) == (ground.ip, ground.mac):
            layouts = {job.incarnation: lay_out(job) for job in jobs if _is_on_switch(job)}
            self._fabric.remember(header.cookie, layouts)
        return jobs

    def _take_switch(self) -> SwitchClient:
        client = self._connect_after_crash() if self._jobs else self._connect()
        try:
            self._kept = self._fabric.take_up(client)
        except BaseException:
            client.close()
            raise
        return client

    def _connect_after_crash(self) -> SwitchClient:
        """Connect, though the switch may not have noticed yet that our former life is over."""
        end = time.monotonic() + self._settings.connect_timeout
        while True:
            try:
                return self._connect()
            except NotPrimaryError:
                if time.monotonic() >= end:
                    raise
            time.sleep(RETRY)

    def _connect(self, timeout: float | None = None) -> SwitchClient:
        settings = self._settings
        return SwitchClient.connect(
            settings.switch,
            settings.device_id,
            settings.election_id,
            timeout=timeout or settings.connect_timeout,
            files=settings.switch_tls,
            patient=timeout is None,
        )

    async def run(self, stop: asyncio.Event, ready: Callable[[str], None]) -> None:
        """Serve until `stop` is set; `ready` is called with the address when all is up."""
        try:
            start = Start(
                self.client, self._connect, self._fabric, self._file, self._jobs, self._kept
            )
            controller = Controller(self._settings, start)
            server = grpc.aio.server(
                interceptors=[Decoding()],
                options=SERVER_OPTIONS,
                maximum_concurrent_rpcs=MAX_CALLS,
            )
            try:
                add_ControlServicer_to_server(Service(controller), server)
                address = listen.bind(server, self._settings.listen, self._settings.tls)
                with listen.cleared_away(address):
                    await server.start()
                    controller.start()
                    ready(address)
                    await stop.wait()
                    log.info("stopping")
                    await controller.stop()
                    await server.stop(ANSWERS_GRACE)
            except BaseException:
                controller.abandon()
                await server.stop(None)
                raise
        finally:
            self._fabric.hang_up()
            self._file.close()


def _is_on_switch(job: Job) -> bool:
    return job.state in (JobState.RUNNING, JobState.FAILED) and not job.over
