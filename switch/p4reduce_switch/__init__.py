# SPDX-License-Identifier: Apache-2.0
"""The embedded switch: runs any v1model program that p4c compiled for BMv2, serves P4Runtime."""

from p4reduce_common.p4runtime_messages import install

install()  # before anything imports P4Runtime's messages
