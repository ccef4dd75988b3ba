# SPDX-License-Identifier: Apache-2.0
"""The backend's name, in a module that loads neither torch nor the library."""

from __future__ import annotations

NAME = "p4reduce"
