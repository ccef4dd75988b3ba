/* SPDX-License-Identifier: Apache-2.0 */
/* Where copies of a packet go: multicast groups and clone sessions, by number. */
#ifndef P4R_P4_COPIES_H
#define P4R_P4_COPIES_H

#include "base.h"

enum { P4R_GROUPS = 1 << 16, P4R_SESSIONS = 1 << 15 };

struct p4r_copy {
    uint32_t port;
    uint32_t instance; /* what egress finds in egress_rid */
};

struct p4r_copies {
    uint64_t most; /* bytes of a copy; what is longer is cut */
    uint32_t count;
    struct p4r_copy copy[];
};

#define P4R_UNLIMITED UINT64_MAX

#endif
