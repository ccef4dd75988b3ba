# SPDX-License-Identifier: Apache-2.0
"""Methods of distributed optimisation and statistics, by sums that the switch computes.

Each module is one method of one paper, small enough to read beside it. docs/methods.md compares the
papers' claims with results here. Solvers are functions that return a `result.Result`. Estimators
need scikit-learn, solvers do not. Nothing else in the library imports it. Imports `compression` and
`wire`, for `cat.py`.
"""
