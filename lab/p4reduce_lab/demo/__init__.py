# SPDX-License-Identifier: Apache-2.0
"""Synchronous SGD on real data, its gradients summed by the switch: what ``make run`` shows.

`run` starts it with a `config`. `ranks` is the work of each process, `faults` kills processes, and
`verdict` judges the results. Imports the rest of the lab.
"""
