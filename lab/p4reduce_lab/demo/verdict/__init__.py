# SPDX-License-Identifier: Apache-2.0
"""What came of a run: results put together, the verdict on them, the picture.

Imports `demo.config`, `demo.faults`, `demo.ranks` and `demo.training`.
"""
