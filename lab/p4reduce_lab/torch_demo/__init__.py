# SPDX-License-Identifier: Apache-2.0
"""The demo with PyTorch: the same training over the switch and over Gloo, side by side.

Imports `demo` for the data, `execute`, `several` and `processes` to start switch and ranks.
"""
