# SPDX-License-Identifier: Apache-2.0
"""What checks the labs: a module for each, and what they share.

`labs` lists them, `report` runs checks, `program` compiles a P4 file and runs it in the embedded
switch, `python_file` loads a student's Python file, `frames` is the labs' header. Imports
`p4reduce_switch` and `p4reduce.methods`.
"""
