# SPDX-License-Identifier: Apache-2.0
"""What operators see of any command: tables, JSON and exit codes.

Imports the control API's messages, and none of the other folders.
"""
