# SPDX-License-Identifier: Apache-2.0
"""The P4Runtime server over one data plane: arbitration, configuration, read, write, packets.

`server` takes the calls, `arbitration` says who is primary, `entities` plans updates and reads, and
refuses what is malformed. Imports the data plane, the pipeline, `state`, `debug` and `ports`, and
the errors of `program` and `codegen_c`. Only a switch as a process (`process` and `cores`, the
command lines) needs it.
"""
