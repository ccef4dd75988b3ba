# SPDX-License-Identifier: Apache-2.0
"""Measurements, a folder for each question; all of them together by `make bench`.

Each runs from the checkout's root by itself, for instance `python -m bench.switch.pipeline`.
"""

from p4reduce_common.p4runtime_messages import install

install()  # before anything imports P4Runtime's messages
