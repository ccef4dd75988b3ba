# SPDX-License-Identifier: Apache-2.0
"""What networks share: a `with` statement starts them and removes them at its end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TypeVar

Itself = TypeVar("Itself", bound="StartedNetwork")


class StartedNetwork(ABC):
    """A context manager."""

    @abstractmethod
    def start(self) -> None:
        """Make all of it."""

    @abstractmethod
    def stop(self) -> None:
        """Remove all of it. May be called twice."""

    def __enter__(self: Itself) -> Itself:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
