# SPDX-License-Identifier: Apache-2.0
"""A rank's part in a job: joining, moving frames, recovery after a loss, leaving.

Imports all other folders but `compression`; `communicator` is made of it.
"""
