# SPDX-License-Identifier: Apache-2.0
"""The outcome of a run: its results, the verdict on them, the picture.

Imports `demo.config`, `demo.faults`, `demo.ranks` and `demo.training`.
"""
