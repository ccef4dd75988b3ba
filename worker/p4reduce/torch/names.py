# SPDX-License-Identifier: Apache-2.0
"""What the backend is called. Apart, since it is read before torch and the library are loaded."""

from __future__ import annotations

NAME = "p4reduce"
