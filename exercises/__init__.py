# SPDX-License-Identifier: Apache-2.0
"""Seven labs: write the parts of in-network aggregation by yourself, and have them checked.

Each lab has a folder with its text, a skeleton and a solution; `checks` is what says what is wrong.
`python -m exercises` is the command. Imports the embedded switch and the methods.
"""
