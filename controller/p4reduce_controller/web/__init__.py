# SPDX-License-Identifier: Apache-2.0
"""The live page and the metrics: the controller's state over HTTP, read only.

`monitor` samples the control API inside the process, and `waiting` says what a job waits for. `app`
is the Starlette application, `guard` refuses strangers, and `metrics` writes Prometheus' format.
`server` runs all of it in the controller's event loop. `static` is the page. Needs the extra
`[web]`. Imports `controller`, `service`, `jobs` and `settings`.
"""
