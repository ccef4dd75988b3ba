# SPDX-License-Identifier: Apache-2.0
"""A rank's part in a job: joining, moving frames, recovery after a loss, leaving.

`joining` forms the job, and forms it anew after a loss of ranks (`reform`); `recovery` is for the
loss of a switch. Imports all folders but `compression`, `switches` and `torch`; `communicator` is
made of it. More than a dozen modules: each way for a session to begin, share, lose or leave its
switch has one.
"""
