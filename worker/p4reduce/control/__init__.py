# SPDX-License-Identifier: Apache-2.0
"""The API between workers, operators and the controller: `control.proto` and its modules.

Imports `statistics` and nothing else of the worker, as the controller imports it too.
"""
