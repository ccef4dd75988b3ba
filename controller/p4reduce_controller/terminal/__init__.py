# SPDX-License-Identifier: Apache-2.0
"""The output of all commands: tables, JSON and exit codes.

Imports the control API's messages, and none of the other folders.
"""
