# SPDX-License-Identifier: Apache-2.0
"""What the backend is called."""

from __future__ import annotations

NAME = "p4reduce"
