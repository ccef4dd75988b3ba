# SPDX-License-Identifier: Apache-2.0
"""A switch and its controller as two actors of a placement group."""

from __future__ import annotations

import contextlib
import logging
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from p4reduce.errors import LaunchError
from p4reduce.launch import READY_TIMEOUT
from p4reduce.ray.actors import REFUSALS, Part, Serving

log = logging.getLogger(__name__)

SWITCHES, CONTROLLER = "switches", "controller"
_PARTS = (SWITCHES, CONTROLLER)
_RESTARTS = 10  # of an actor by Ray; each has restarts of its processes before
_HERE = 0.001  # of a host's own resource, which there is 1.0 of
_END_TIMEOUT = 15.0  # seconds, for both parts


class RayNetwork:
    """A network that starts on the host of the first worker. See `wait`, and `close` it.

    The actors belong to the process that creates this, and end with it.

    Args:
        hosts: IP addresses of the hosts of all workers, one for each, the first worker's first.
        resources: for each of the two actors, in Ray's words, such as {"CPU": 1}; they have a
            place on that host even if it has no resources left where this is empty.
        host: the address by which workers reach it, where it is not Ray's.
        name: of the controller's actor, for `ray.get_actor`; "": none.
        settings: more of `p4reduce.launch.start`.

    Attributes:
        actors: the two, "switches" and "controller".
    """

    def __init__(
        self,
        hosts: Sequence[str],
        *,
        resources: Mapping[str, float] | None = None,
        host: str = "",
        name: str = "",
        **settings: Any,
    ) -> None:
        first = hosts[0]
        address = host or ("" if set(hosts) == {first} else first)
        request = {
            "ranks": len(hosts),
            "host": address,
            "unix": not address,
            "shared": f"ray-{secrets.token_hex(8)}",
            **settings,
        }
        bundle = {**(resources or {}), f"node:{first}": _HERE}
        self._group: Any = placement_group([bundle] * len(_PARTS), strategy="STRICT_PACK")
        actor = ray.remote(Part)
        self.actors: dict[str, Any] = {}
        try:
            for index, part in enumerate(_PARTS):
                named = {"name": name} if name and part == CONTROLLER else {}
                self.actors[part] = actor.options(
                    **named,
                    num_cpus=0,
                    max_restarts=_RESTARTS,
                    scheduling_strategy=PlacementGroupSchedulingStrategy(
                        placement_group=self._group, placement_group_bundle_index=index
                    ),
                ).remote({**request, "part": part})
        except BaseException:  # ValueError: the name is taken
            self.close()
            raise

    def wait(self, timeout: float = READY_TIMEOUT) -> Mapping[str, str]:
        """Wait until it serves, and return the variables by which workers find it.

        Raises:
            TypeError, ValueError, P4ReduceError: as `p4reduce.launch.start`.
            LaunchError: Ray does not place the actors, or they end.
        """
        try:
            return self.serving(timeout)[CONTROLLER].variables
        except RayError as error:
            raise trouble(error, timeout) from None

    def serving(self, timeout: float = READY_TIMEOUT) -> dict[str, Serving]:
        """Return what each part serves. Raises RayError."""
        asked = [self.actors[part].serving.remote() for part in _PARTS]
        return dict(zip(_PARTS, ray.get(asked, timeout=timeout), strict=True))

    def close(self) -> None:
        """End both actors and all their processes. Idempotent."""
        actors, self.actors = self.actors, {}
        group, self._group = self._group, None
        if group is None:
            return
        deadline = time.monotonic() + _END_TIMEOUT
        for part in reversed(actors):  # the controller ends the jobs, and needs the switches
            with contextlib.suppress(RayError):
                left = max(deadline - time.monotonic(), 0.0)
                ray.get(actors[part].close.remote(), timeout=left)
        for actor in actors.values():
            ray.kill(actor, no_restart=True)
        remove_placement_group(group)


def trouble(error: RayError, timeout: float) -> Exception:
    """Return Ray's error about a part as the one that `p4reduce.launch.start` raises."""
    if isinstance(error, GetTimeoutError):
        return LaunchError(
            f"the actors of switch and controller were not ready within {timeout:g} s: `ray "
            "status` shows what they wait for, and each asks for the resources that you gave"
        )
    if isinstance(error, RayTaskError) and isinstance(error.cause, REFUSALS):
        return error.cause
    return LaunchError(f"an actor of switch or controller has ended: {error}")
