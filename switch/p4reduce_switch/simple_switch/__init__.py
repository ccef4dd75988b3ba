# SPDX-License-Identifier: Apache-2.0
"""`p4reduce-simple-switch-grpc`: the embedded switch behind the options of simple_switch_grpc.

Scripts written for BMv2's command line only need another path. Imports `process`, and from
`p4runtime` and `ports` the types of options.
"""
