# SPDX-License-Identifier: Apache-2.0
"""Several switches side by side: a session for each, and the division of calls among them.

Imports all folders but `compression`, `protocol` and `torch`; `communicator` imports it.
"""
