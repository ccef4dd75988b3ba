# SPDX-License-Identifier: Apache-2.0
"""The controller: owns the switch by P4Runtime, and gives its slots to jobs."""

from p4reduce_common.p4runtime_messages import install

install()  # before anything imports P4Runtime's messages
