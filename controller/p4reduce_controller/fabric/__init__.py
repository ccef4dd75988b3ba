# SPDX-License-Identifier: Apache-2.0
"""The switch as the controller sees it: session, program, and the entries of jobs.

Imports `jobs`, `topology` and `values`; the only folder that speaks P4Runtime.
"""
