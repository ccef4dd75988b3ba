# SPDX-License-Identifier: Apache-2.0
"""Several switches side by side: a session for each, and what of each call goes through which.

Imports all folders but `compression`, `protocol` and `torch`; `communicator` is made of it.
"""
