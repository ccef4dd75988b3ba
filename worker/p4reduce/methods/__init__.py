# SPDX-License-Identifier: Apache-2.0
"""Methods of distributed optimisation and statistics, by sums that the switch computes.

Each module is one method after one paper, small enough to be read beside it; docs/methods.md has
what each claims and what it comes to here. Nothing else in the library
imports it. Imports `compression` and `wire`, for `cat.py`.
"""
