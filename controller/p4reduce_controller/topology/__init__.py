# SPDX-License-Identifier: Apache-2.0
"""The controller's switches and the links between them.

Imports `values` alone.
"""
