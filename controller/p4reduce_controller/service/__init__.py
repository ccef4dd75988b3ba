# SPDX-License-Identifier: Apache-2.0
"""The control API as a gRPC service: its address, its limits and its answers.

Imports `controller`, `fabric`, `jobs` and `values`.
"""
