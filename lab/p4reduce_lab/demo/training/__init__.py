# SPDX-License-Identifier: Apache-2.0
"""The training of the demo: data, model, SGD, and the same training in one process as reference.

Imports `demo.config` only.
"""
