# SPDX-License-Identifier: Apache-2.0
"""The work of a demo's rank, and its files for the launcher.

Imports `demo.training`, `demo.config` and the worker's library.
"""
