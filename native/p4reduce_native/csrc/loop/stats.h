/* SPDX-License-Identifier: Apache-2.0 */
/* What is counted; Python reads these in place. */
#ifndef P4R_LOOP_STATS_H
#define P4R_LOOP_STATS_H

#include <stdint.h>

/* As `PortStats` of p4reduce_switch/ports/port.py, by name. */
struct p4r_port_stats {
    uint64_t rx_frames;
    uint64_t rx_bytes;
    uint64_t rx_too_short;
    uint64_t rx_too_long;
    uint64_t rx_overrun;
    uint64_t tx_frames;
    uint64_t tx_bytes;
    uint64_t tx_too_long;
    uint64_t tx_queue_full;
    uint64_t tx_down;
    uint64_t rx_stranger;
    uint64_t path_narrowed;
    uint64_t path_too_narrow;
    uint64_t tx_runs_refused;
};

struct p4r_loop_stats {
    uint64_t no_pipeline;
    uint64_t no_such_port;
    uint64_t packet_ins_lost; /* Python did not take them fast enough */
};

#endif
