# SPDX-License-Identifier: Apache-2.0
"""The switch's counts for Prometheus, over HTTP on loopback, read only."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from p4reduce_common.host_port import named_host
from p4reduce_common.threads import new_thread
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from p4reduce_switch.errors import P4RuntimeError
from p4reduce_switch.process.settings import StartError

Counts = Callable[[], Mapping[str, Mapping[str, int]]]

_HOSTS = frozenset({"127.0.0.1", "localhost", "[::1]"})
_REQUEST_WITHIN = 10.0  # seconds
_PORT = "port "  # as `DataPlane.counts` names ports


class SwitchCollector(Collector):
    """Turns `DataPlane.counts` into metrics, such as
    p4reduce_dataplane_port_rx_frames_total{port="1"}."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts

    def collect(self) -> Iterable[Metric]:
        """Return all present counts."""
        families: dict[str, CounterMetricFamily] = {}
        for source, counts in self._counts().items():
            of_port = source.startswith(_PORT)
            part = "port_" if of_port else "pipeline_" if source == "pipeline" else ""
            for name, value in counts.items():
                full = f"p4reduce_dataplane_{part}{name}"
                if full not in families:
                    of = "each port" if of_port else f"the {source}"
                    families[full] = CounterMetricFamily(
                        full, f"Of {of}: {name}.", labels=["port"] if of_port else []
                    )
                families[full].add_metric([source.removeprefix(_PORT)] if of_port else [], value)
        yield from families.values()


@contextlib.contextmanager
def serving_metrics(port: int, collector: Collector) -> Iterator[int]:
    """Serve a collector's metrics at /metrics while the block runs; yields the port.

    The port is of 127.0.0.1; 0 chooses a free one.

    Raises:
        StartError: the port cannot be used.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)

    class Handler(BaseHTTPRequestHandler):
        timeout = _REQUEST_WITHIN

        def do_GET(self) -> None:
            # A page that a browser shows may not read this by a name of its own (DNS rebinding).
            if named_host(self.headers.get("Host") or "") not in _HOSTS:
                self._answer(421, b"This server answers as 127.0.0.1 and localhost.\n")
            elif self.path.partition("?")[0] != "/metrics":
                self._answer(404, b"There is /metrics alone.\n")
            else:
                try:
                    self._answer(200, generate_latest(registry), CONTENT_TYPE_LATEST)
                except P4RuntimeError as error:
                    self._answer(503, f"{error.message}\n".encode())

        def _answer(self, status: int, body: bytes, kind: str = "text/plain") -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Requests are not logged."""

    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except OSError as error:
        raise StartError(f"--metrics-port {port}: {error.strerror}") from None
    # Whoever asks is refused then, and does not wait.
    thread = new_thread(server.serve_forever, "metrics", lambda _: server.server_close())
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
