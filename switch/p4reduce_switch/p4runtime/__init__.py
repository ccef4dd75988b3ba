# SPDX-License-Identifier: Apache-2.0
"""The P4Runtime server over one data plane: arbitration, configuration, read, write, packets.

Imports the data plane, the pipeline and `state`; nothing but the command line imports it.
"""
