# SPDX-License-Identifier: Apache-2.0
"""The demo with PyTorch: the same training over the switch and over Gloo, side by side.

Imports `demo.training` for the data, and of the lab what starts switch, controller and ranks.
"""
