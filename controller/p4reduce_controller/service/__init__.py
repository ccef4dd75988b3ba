# SPDX-License-Identifier: Apache-2.0
"""The control API as a gRPC service: where it listens, what it takes, what it answers.

Imports `controller`, `fabric`, `jobs` and `values`.
"""
