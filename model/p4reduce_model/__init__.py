# SPDX-License-Identifier: Apache-2.0
"""Checks the protocol exhaustively for small cases, with the real switch program and worker.

docs/model.md says what is modelled, what is checked, and how to read a counterexample. More than a
dozen modules, as the model of the system and the search through it are read together.
"""
