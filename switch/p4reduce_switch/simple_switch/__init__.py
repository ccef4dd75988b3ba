# SPDX-License-Identifier: Apache-2.0
"""`p4reduce-simple-switch-grpc`: the embedded switch behind the command line of BMv2's
simple_switch_grpc, so that scripts written for that start it by another path."""
