# SPDX-License-Identifier: Apache-2.0
"""The demo with PyTorch: the same training over the switch and over Gloo, side by side."""
