# SPDX-License-Identifier: Apache-2.0
"""`p4reduce-simple-switch-grpc`: the embedded switch behind the options of simple_switch_grpc.

Scripts that were written for BMv2's command line start it by another path. Imports `process`, and
of `p4runtime` and `ports` what options are read into.
"""
