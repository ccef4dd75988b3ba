# SPDX-License-Identifier: Apache-2.0
"""Counts of several cores for Prometheus, with a label for the core."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable, Iterable, Sequence

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

_WITHIN_S = 2.0  # for a core's answer


class CoresCollector(Collector):
    """Asks each core when Prometheus asks.

    Args:
        ports: returns the port of each core's own /metrics; None while it does not run.
    """

    def __init__(self, ports: Callable[[], Sequence[int | None]]) -> None:
        self._ports = ports

    def collect(self) -> Iterable[Metric]:
        """Return all present counts, without those of cores that do not answer."""
        up = GaugeMetricFamily(
            "p4reduce_dataplane_core_up", "Whether a core answers: 1, or 0.", labels=["core"]
        )
        families: dict[str, Metric] = {}
        for core, port in enumerate(self._ports()):
            found = list(_ask(port))
            up.add_metric([str(core)], bool(found))
            for family in found:
                whole = families.setdefault(
                    family.name, Metric(family.name, family.documentation, family.type)
                )
                for sample in family.samples:
                    labels = {"core": str(core), **sample.labels}
                    whole.add_sample(sample.name, labels, sample.value)
        yield up
        yield from families.values()


def _ask(port: int | None) -> Iterable[Metric]:
    if port is None:
        return ()
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=_WITHIN_S) as page:
            text = page.read().decode()
    except OSError:
        return ()
    return text_string_to_metric_families(text)
