# SPDX-License-Identifier: Apache-2.0
"""Names of the environment variables by which a worker finds a network that others started.

A launcher sets them and a worker reads them. A launcher has no use for numpy or gRPC, which take
longer to import than all of the launcher, so this module imports nothing.
"""

CONTROLLER = "P4REDUCE_CONTROLLER"
INTERFACE = "P4REDUCE_INTERFACE"
TOKEN = "P4REDUCE_TOKEN"
UDP_KEY = "P4REDUCE_UDP_KEY"
"""The key itself, for hosts that share no files."""
UDP_KEY_FILE = "P4REDUCE_UDP_KEY_FILE"
TLS = ("P4REDUCE_TLS_CERT", "P4REDUCE_TLS_KEY", "P4REDUCE_TLS_CA")

BESIDE_CONTROLLER = "P4REDUCE_BESIDE_CONTROLLER"
"""The ranks on the controller's host, where the ranks of a job have started it: "0,1"."""

ALL = (CONTROLLER, INTERFACE, TOKEN, UDP_KEY, UDP_KEY_FILE, *TLS)
