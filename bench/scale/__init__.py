# SPDX-License-Identifier: Apache-2.0
"""How it scales: thousands of ranks in one process, and the model of time beside measured links.

`simulation` runs the real switches' pipelines and the real ranks' slot machines, `measured` real
processes over shaped links, `pictures` draws both with what `p4reduce_lab.planning` predicts; `run`
does all of it (`make scale`).
"""
