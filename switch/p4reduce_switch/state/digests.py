# SPDX-License-Identifier: Apache-2.0
"""Digests: samples from packets, collected into lists for the controller.

P4Runtime 1.4.1, "DigestEntry". Equal samples are sent once until the list is acknowledged or
`ack_timeout_ns` has passed. Without a configuration nothing is collected.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from p4reduce_switch.state.timers import Timers

_LONGEST_LIST = 1024  # BMv2's, where the configuration sets none

Sample = tuple[int, ...]
DigestSink = Callable[[str, int, list[Sample]], None]
"""Takes the name of the digest, the id of the list, and the samples."""


@dataclass(frozen=True, slots=True)
class DigestConfig:
    """How samples are collected into lists. `max_list_size` 0 means BMv2's 1,024.

    `most_samples`: as many as a message can hold.
    """

    max_timeout_ns: int
    max_list_size: int
    ack_timeout_ns: int
    most_samples: int = _LONGEST_LIST


class Digest:
    """One digest of a program. Used by the data plane's thread only."""

    def __init__(self, name: str, timers: Timers) -> None:
        self.name = name
        self.config: DigestConfig | None = None
        self.sink: DigestSink = lambda *_: None  # until a server asks for them
        self._timers = timers
        self._list_id = 1  # of the list that is being collected
        self._pending: dict[Sample, None] = {}
        self._unacknowledged: dict[int, list[Sample]] = {}
        self._known: set[Sample] = set()

    def configure(self, config: DigestConfig | None) -> None:
        """Start or change collecting, or stop it with None. Collected and unacknowledged samples
        are dropped."""
        self.config = config
        if self._pending:
            self._list_id += 1  # so that its timer finds it gone
        self._pending = {}
        self._unacknowledged = {}
        self._known = set()

    def learn(self, *sample: int) -> None:
        """Take a sample from the packet path."""
        config = self.config
        if config is None or sample in self._pending or sample in self._known:
            return
        self._pending[sample] = None
        longest = min(config.max_list_size or _LONGEST_LIST, config.most_samples)
        if config.max_timeout_ns == 0 or len(self._pending) >= longest:
            self._send(config)
        elif len(self._pending) == 1:
            self._timers.call_after(config.max_timeout_ns, partial(self._timeout, self._list_id))

    def acknowledge(self, list_id: int) -> None:
        """The controller has received a list. Unknown lists are ignored."""
        self._known.difference_update(self._unacknowledged.pop(list_id, ()))

    def _timeout(self, list_id: int) -> None:
        if list_id == self._list_id and self._pending and self.config is not None:
            self._send(self.config)

    def _send(self, config: DigestConfig) -> None:
        samples = list(self._pending)
        list_id = self._list_id
        self._list_id += 1
        self._pending = {}
        if config.ack_timeout_ns:
            self._unacknowledged[list_id] = samples
            self._known.update(samples)
            self._timers.call_after(config.ack_timeout_ns, partial(self.acknowledge, list_id))
        self.sink(self.name, list_id, samples)
