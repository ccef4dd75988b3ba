# SPDX-License-Identifier: Apache-2.0
"""Synchronous SGD on real data, its gradients summed by the switch: what ``make run`` shows.

`run` starts it with a `config`, `ranks` is what each process does, `faults` what is killed and
when, `verdict` what came of it. Imports the rest of the lab.
"""
