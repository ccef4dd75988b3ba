# SPDX-License-Identifier: Apache-2.0
"""Tests here import P4Runtime's messages, under any version of protobuf."""

from __future__ import annotations

from p4reduce_common.p4runtime_messages import install

install()
