# SPDX-License-Identifier: Apache-2.0
"""`p4reduce-controller serve`: configures the switches, then serves the control API until
stopped."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import socket
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import grpc.aio
from p4reduce.control.control_pb2_grpc import add_ControlServicer_to_server
from p4reduce_common.polling import retry

from p4reduce_controller.controller import Controller, Start
from p4reduce_controller.fabric.compiled_program import PipelineProgram, load_program
from p4reduce_controller.fabric.devices import devices_at
from p4reduce_controller.fabric.fabric import Fabric
from p4reduce_controller.fabric.layout import Layout, ground, lay_out
from p4reduce_controller.fabric.p4client import RETRY, NotPrimaryError, SwitchClient, SwitchError
from p4reduce_controller.fabric.switches import TakenSwitch
from p4reduce_controller.jobs.job import Job
from p4reduce_controller.jobs.job_states import JobState
from p4reduce_controller.jobs.plan import plan_as_it_was
from p4reduce_controller.service import listen
from p4reduce_controller.service.control_api import Service
from p4reduce_controller.service.decoding import Decoding
from p4reduce_controller.service.limits import MAX_CALLS, SERVER_OPTIONS
from p4reduce_controller.settings import ControllerSettings, Http, SwitchServer
from p4reduce_controller.storage.job_table import TableFile
from p4reduce_controller.terminal.render import port_ranges
from p4reduce_controller.topology.given import with_cores

log = logging.getLogger(__name__)

ANSWERS_GRACE = 0.3  # seconds for the last answers when stopping


class Daemon:
    """The one controller of this process.

    Its creation connects to the switches, and blocks. It raises what `SwitchClient.connect` raises,
    `PipelineRefusedError`, `WriteRefusedError`, `ListenError`, `TableError`, or OSError for the
    state directory.
    """

    def __init__(
        self, settings: ControllerSettings, program: PipelineProgram | None = None
    ) -> None:
        listen.prepare(settings.listen, settings.tls)
        self._page = _bind_page(settings.http)
        self._settings = settings = _with_cores(settings)
        program = program or load_program()
        self._fabrics = {
            name: Fabric(program, ground(settings.topology, name, settings.hello_limit))
            for name in settings.topology.switches
        }
        servers = [(server.address, server.device_id) for server in settings.servers.values()]
        self._file = TableFile(settings.state_directory, servers)
        try:
            self._jobs = self._restore()
            self.taken = self._take_switches()
        except BaseException:
            self._hang_up()
            self._file.close()
            if self._page is not None:
                self._page.close()
            raise

    @property
    def settings(self) -> ControllerSettings:
        """The settings, completed by the further cores that the switches have."""
        return self._settings

    @property
    def page(self) -> tuple[str, int] | None:
        """Host and port of the live page; None if there is none."""
        return self._page.getsockname()[:2] if self._page is not None else None

    def _restore(self) -> list[Job]:
        """Return the jobs that a controller before this one left.

        Tell each fabric which entries its switch should have.
        """
        table = self._file.read()
        if table is None:
            return []
        header, jobs = table
        topology = self._settings.topology
        layouts: dict[str, dict[int, Layout]] = {name: {} for name in self._fabrics}
        unfit: set[str] = set()  # links of their jobs have changed: they are configured anew
        for job in filter(_is_on_switch, jobs):
            planned = plan_as_it_was(job, topology)
            if planned is None:
                unfit.update(job.shares)
                continue
            for name, layout in lay_out(job, topology, planned).items():
                layouts[name][job.incarnation] = layout
        for state in header.switches:
            fabric = self._fabrics.get(state.name)
            if fabric is None or state.name in unfit:
                continue
            if (state.ip, state.mac) == (fabric.ground.ip, fabric.ground.mac):
                fabric.remember(state.cookie, layouts[state.name])
        return jobs

    def _take_switches(self) -> dict[str, TakenSwitch]:
        """Take up all switches, at once: each may take long."""
        with ThreadPoolExecutor(len(self._fabrics), thread_name_prefix="take-up") as threads:
            taken = {name: threads.submit(self._take_switch, name) for name in self._fabrics}
        return {name: each.result() for name, each in taken.items()}

    def _take_switch(self, name: str) -> TakenSwitch:
        fabric = self._fabrics[name]
        connect = functools.partial(self._connect, self._settings.servers[name])
        client = self._connect_after_crash(connect) if self._jobs else connect()
        try:
            self._check_ports(name, client)
            return TakenSwitch(fabric, client, connect, fabric.take_up(client))
        except BaseException:
            client.close()
            raise

    def _check_ports(self, name: str, client: SwitchClient) -> None:
        """Refuse ports that the switch does not have, where it says which it has."""
        there = client.ports()
        if there is None:
            return
        missing = frozenset(self._settings.topology.switches[name].ports) - there
        if missing:
            number = f"port{'s' * (len(missing) > 1)} {port_ranges(missing)}"
            raise SwitchError(
                f"the switch at {client.address} has no {number}, which --ports or the topology "
                f"names; it has {port_ranges(there) or 'none'}"
            )

    def _connect_after_crash(self, connect: Callable[[], SwitchClient]) -> SwitchClient:
        """Connect, though a switch may not have noticed yet that our former life is over."""
        timeout = self._settings.connect_timeout
        return retry(lambda left: connect(), NotPrimaryError, timeout, RETRY)

    def _connect(self, server: SwitchServer, timeout: float | None = None) -> SwitchClient:
        settings = self._settings
        return SwitchClient.connect(
            server.address,
            server.device_id,
            settings.election_id,
            timeout=timeout or settings.connect_timeout,
            files=settings.switch_tls_at(server.address),
            patient=timeout is None,
            take_over=settings.take_over,
        )

    def _hang_up(self) -> None:
        for fabric in self._fabrics.values():
            fabric.hang_up()

    async def run(self, stop: asyncio.Event, ready: Callable[[str], None]) -> None:
        """Serve until `stop` is set. Call `ready` with the address when the service is up."""
        try:
            controller = Controller(self._settings, Start(self.taken, self._file, self._jobs))
            server = grpc.aio.server(
                interceptors=[Decoding()],
                options=SERVER_OPTIONS,
                maximum_concurrent_rpcs=MAX_CALLS,
            )
            try:
                service = Service(controller)
                add_ControlServicer_to_server(service, server)
                address = listen.bind(server, self._settings.listen, self._settings.tls)
                with listen.cleared_away(address):
                    await server.start()
                    controller.start()
                    async with self._shown(controller, service):
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
            self._hang_up()
            self._file.close()

    @contextlib.asynccontextmanager
    async def _shown(self, controller: Controller, service: Service) -> AsyncIterator[None]:
        """Show the live page, if it was asked for."""
        if self._page is None or self._settings.http is None:
            yield
            return
        from p4reduce_controller.web.server import serving

        async with serving(self._settings.http, self._page, controller, service) as address:
            log.info("live page at %s", address)
            yield


def _with_cores(settings: ControllerSettings) -> ControllerSettings:
    """Ask the servers how many cores their switches have. Raises as `SwitchClient.connect`."""
    if not settings.find_cores:
        return settings
    servers = dict(settings.servers)
    found = {
        name: devices_at(
            server.address,
            server.device_id,
            settings.connect_timeout,
            settings.switch_tls_at(server.address),
        )
        for name, server in servers.items()
    }
    topology = with_cores(settings.topology, {name: len(ids) for name, ids in found.items()})
    for name, (_, *further) in found.items():
        for core, device_id in zip(topology.cores(name), further, strict=True):
            servers[core] = SwitchServer(servers[name].address, device_id)
    return replace(settings, topology=topology, servers=servers)


def _bind_page(http: Http | None) -> socket.socket | None:
    """Take the page's port before anything else is done. Raises ListenError."""
    if http is None:
        return None
    try:
        from p4reduce_controller.web.server import bind
    except ModuleNotFoundError as error:
        raise listen.ListenError(
            f"--http needs the package {error.name!r}: pip install 'p4reduce[web]'"
        ) from None
    return bind(http)


def _is_on_switch(job: Job) -> bool:
    return job.state in (JobState.RUNNING, JobState.FAILED) and not job.over
