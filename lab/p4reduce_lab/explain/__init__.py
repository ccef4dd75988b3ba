# SPDX-License-Identifier: Apache-2.0
"""Causes and cures of error messages: `p4reduce-lab explain`, and the tables of the site.

`messages.tsv` has a row per message. The site's pages about errors show these rows, and
tests/controller/cli/test_troubleshooting.py compares them with what the code raises. Imports only
`p4reduce_common`.
"""
