# SPDX-License-Identifier: Apache-2.0
"""Synchronous SGD on real data, its gradients summed by the switch: what ``make run`` shows."""
