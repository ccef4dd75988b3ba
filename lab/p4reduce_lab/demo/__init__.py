# SPDX-License-Identifier: Apache-2.0
"""Synchronous SGD on real data, its gradients summed by the switch: what ``make run`` shows.

`run` starts it, `ranks` is what each process does, `verdict` what came of it. Imports the rest of
the lab.
"""
