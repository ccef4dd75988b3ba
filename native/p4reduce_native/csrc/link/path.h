/* SPDX-License-Identifier: Apache-2.0 */
/* How large a datagram may be on a path, found by asking the peer.
 *
 * The handshake finds a size that passes. From then on a datagram of that size is sent every now and
 * then, with a nonce that the peer sends back (packetization layer path MTU discovery, RFC 8899,
 * section 5). If it is never answered although other frames arrive, the size is narrowed. Later a larger
 * size is tried again. What routers say (ICMP, "fragmentation needed") may be anybody's lie: it makes the
 * next question come at once, and is tried as the new size only after questions went unanswered. No size
 * goes below P4R_PATH_LEAST, which takes any frame with numbers in it.
 */
#ifndef P4R_LINK_PATH_H
#define P4R_LINK_PATH_H

#include <stdint.h>

#define P4R_PATH_LEAST 1200 /* as LEAST_BYTES of udp_handshake.py */
#define P4R_PATH_NONCE 8

struct p4r_path {
    uint32_t bytes;  /* of a datagram, at most */
    uint32_t agreed; /* by the handshake: `bytes` is never more */
    uint32_t trial;  /* bytes of the question under way; 0: there is none */
    int tries;       /* how often it was sent */
    int heard;       /* anything, since the trial began */
    int echoes;      /* the peer sends nonces back; one of an older version does not */
    uint8_t nonce[P4R_PATH_NONCE];
    uint64_t probe_timeout_ns;              /* for an answer */
    uint64_t due_ns;                        /* when there is something to do next */
    uint64_t widen_ns;                      /* when a larger size may be tried */
    uint64_t narrowed, widened, too_narrow; /* how often; the last: the least size had no answer */
};

/* A question is sent up to three times, and waits `probe_timeout_ms` for its answer; 0: 300. */
void p4r_path_init(struct p4r_path *, uint32_t agreed, uint32_t probe_timeout_ms);

/* The size of a question to be sent now, with the nonce; 0: none. */
uint32_t p4r_path_question(struct p4r_path *, int fd, uint64_t now_ns);

/* A nonce came back (NULL: an answer without one). */
void p4r_path_answered(struct p4r_path *, const uint8_t *nonce, uint64_t now_ns);

/* Somebody says that the path is narrower. */
void p4r_path_suspect(struct p4r_path *, uint64_t now_ns);

/* This host says so: `fd` takes no datagram of `bytes`. Returns whether there is a smaller size. */
int p4r_path_refused(struct p4r_path *, int fd, uint64_t now_ns);

#endif
