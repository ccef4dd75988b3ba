# SPDX-License-Identifier: Apache-2.0
"""A rank's part in a job: joining, sending frames, recovery after a loss, leaving.

`joining` forms the job, and forms it again after a loss of ranks (`reform`). `recovery` handles the
loss of a switch. Imports all folders but `compression`, `switches` and `torch`; `communicator`
imports it. There are more than a dozen modules, because a session can begin, share, lose or leave
its switch in many ways.
"""
