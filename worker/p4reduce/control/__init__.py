# SPDX-License-Identifier: Apache-2.0
"""The API between workers, operators and the controller: `control.proto` and its modules.

Of the worker it imports `errors`, `inherited`, `statistics` and `variables` only, as the controller
imports it too.
"""
