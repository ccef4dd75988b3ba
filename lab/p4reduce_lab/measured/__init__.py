# SPDX-License-Identifier: Apache-2.0
"""What was measured: on which machine, how it gets into a page, and what has changed since.

Imports `errors` only; for `compare`, and for `bench/` and `experiments/` of the checkout.
"""
