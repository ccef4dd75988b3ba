# SPDX-License-Identifier: Apache-2.0
"""What a change of tables, profiles, groups, sessions or value sets can be refused for."""

from __future__ import annotations


class StateError(Exception):
    """A change that is not made; the message says why."""


class AlreadyThereError(StateError):
    """There already is an object of this key or id."""


class NotThereError(StateError):
    """There is no object of this key or id."""


class FullError(StateError):
    """There is no room for another object."""


class InUseError(StateError):
    """Something else refers to the object."""


class MixedUseError(StateError):
    """The object is in use in another way, which excludes this one."""


class ConstantError(StateError):
    """The program declares it constant."""
