# SPDX-License-Identifier: Apache-2.0
"""Measurements: the machine, and changes between results.

Imports `errors` only; for `compare`, and for `bench/` and `experiments/` of the checkout.
"""
