# SPDX-License-Identifier: Apache-2.0
"""The controller's metrics for Prometheus. Names and units follow its conventions."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from p4reduce.control import control_pb2 as pb
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from p4reduce_controller.web.monitor import Monitor
from p4reduce_controller.web.sample import MetricsSample

_RANK = ["job", "rank", "switch", "port"]

# Name, help, where it stands in RankStatistics ("worker." for what the rank itself says).
_RANK_COUNTERS = (
    ("contributions", "Contributions that the switch admitted, repeated ones too.", "frames_up"),
    ("contributed_bytes", "Bytes of admitted contributions.", "bytes_up"),
    ("payload_contributions", "Contributions with lanes.", "payload_up"),
    ("results", "Results that the switch sent to the rank.", "frames_down"),
    ("result_bytes", "Bytes of results that the switch sent to the rank.", "bytes_down"),
    ("collectives", "Collectives that ended well on the rank.", "worker.collectives"),
    ("blocks", "Blocks in the tensors, zero or not.", "worker.blocks"),
    ("announced_blocks", "Blocks that are not zero on some rank.", "worker.blocks_announced"),
    ("retransmissions", "Contributions that the rank repeated.", "worker.retransmissions"),
    ("overflows", "Collectives in which a sum left its lanes' range.", "worker.overflows"),
    ("sent_bytes", "Bytes that the rank sent.", "worker.bytes_sent"),
    ("received_bytes", "Bytes that the rank received.", "worker.bytes_received"),
)


class ControllerCollector(Collector):
    """Turns a sample of the controller into metrics."""

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        self._sample: MetricsSample | None = None

    def take(self, sample: MetricsSample) -> None:
        """Use a sample for the next collection."""
        self._sample = sample

    def collect(self) -> Iterable[Metric]:
        """Return all metrics; none before the first sample."""
        if self._sample is None:
            return
        yield from self._controller()
        yield from _jobs(self._sample)
        yield from self._heartbeats(self._sample)
        yield from _ranks(self._sample)
        yield from _switches(self._sample)

    def _controller(self) -> Iterator[Metric]:
        controller = self._monitor.controller
        yield _gauge(
            "p4reduce_lease_seconds",
            "After so long without a heartbeat a rank is lost.",
            [],
            [((), controller.settings.lease)],
        )
        events = CounterMetricFamily(
            "p4reduce_events",
            "What happened, by kind, since the controller began.",
            labels=["kind"],
        )
        for kind, count in self._monitor.event_counts.items():
            events.add_metric([kind], count)
        yield events

    def _heartbeats(self, sample: MetricsSample) -> Iterator[Metric]:
        ages = []
        now = time.monotonic()
        names = {job.name for job in sample.jobs}
        for job in self._monitor.controller.jobs.all:
            if job.name in names and job.state.name == "RUNNING":
                ages += [
                    ((job.name, str(member.rank)), now - member.heard) for member in job.active
                ]
        yield _gauge(
            "p4reduce_rank_heartbeat_age_seconds",
            "Time since the rank's last heartbeat.",
            ["job", "rank"],
            ages,
        )


def _gauge(
    name: str, text: str, labels: list[str], values: Iterable[tuple[tuple[str, ...], float]]
) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for of, value in values:
        family.add_metric(of, value)
    return family


def _jobs(sample: MetricsSample) -> Iterator[Metric]:
    states = [name.lower() for name in pb.JobState.keys()[1:]]
    counts = dict.fromkeys(states, 0)
    ranks: dict[tuple[str, str], int] = {}
    for job in sample.jobs:
        counts[pb.JobState.Name(job.state).lower()] += 1
        if job.state in (pb.FORMING, pb.RUNNING):
            for member in job.members:
                key = job.name, member.state
                ranks[key] = ranks.get(key, 0) + 1
    yield _gauge(
        "p4reduce_jobs", "Jobs by state.", ["state"], [((k,), v) for k, v in counts.items()]
    )
    yield _gauge("p4reduce_job_ranks", "Ranks by state.", ["job", "state"], ranks.items())


def _ranks(sample: MetricsSample) -> Iterator[Metric]:
    rows = []
    for job in sample.jobs:
        if job.state != pb.RUNNING:
            continue
        members = {member.rank: member for member in job.members}
        for rank, figures in sample.ranks.get(job.incarnation, {}).items():
            at = members.get(rank, pb.Member())
            rows.append(((job.name, str(rank), at.switch, str(at.port)), figures))
    for name, text, field in _RANK_COUNTERS:
        family = CounterMetricFamily(f"p4reduce_rank_{name}", text, labels=_RANK)
        for labels, figures in rows:
            message, _, attribute = field.rpartition(".")
            source = getattr(figures, message) if message else figures
            family.add_metric(labels, getattr(source, attribute))
        yield family


def _switches(sample: MetricsSample) -> Iterator[Metric]:
    switches = [((switch.name,), switch) for switch in sample.switches]
    label = ["switch"]
    yield _gauge(
        "p4reduce_switch_up",
        "Whether the controller has a session with the switch.",
        label,
        [(of, float(switch.connected)) for of, switch in switches],
    )
    yield _gauge(
        "p4reduce_switch_slots",
        "Slots of the switch.",
        label,
        [(of, switch.slots) for of, switch in switches],
    )
    yield _gauge(
        "p4reduce_switch_free_slots",
        "Slots that no job has.",
        label,
        [(of, switch.slots_free) for of, switch in switches],
    )
    yield _gauge(
        "p4reduce_switch_uplink_up",
        "Whether a probe has come through the link to the parent lately.",
        [*label, "parent"],
        [
            ((switch.name, switch.uplink.parent), float(switch.uplink.works))
            for _, switch in switches
            if switch.HasField("uplink")
        ],
    )
    refused = CounterMetricFamily(
        "p4reduce_switch_hellos_refused", "HELLOs that the controller refused.", labels=label
    )
    for of, switch in switches:
        refused.add_metric(of, switch.hellos_refused)
    yield refused
    frames = CounterMetricFamily(
        "p4reduce_switch_frames", "Frames that came in, by outcome.", labels=[*label, "outcome"]
    )
    octets = CounterMetricFamily(
        "p4reduce_switch_bytes", "Bytes that came in, by outcome.", labels=[*label, "outcome"]
    )
    for name, outcomes in sample.outcomes.items():
        for outcome, count in outcomes.items():
            frames.add_metric([name, outcome], count.frames)
            octets.add_metric([name, outcome], count.bytes)
    yield frames
    yield octets
