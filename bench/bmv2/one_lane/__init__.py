# SPDX-License-Identifier: Apache-2.0
"""The P4 program with one register per lane, compiled: what `bench.bmv2.compare` compares."""
