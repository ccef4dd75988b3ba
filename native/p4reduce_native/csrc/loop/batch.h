/* SPDX-License-Identifier: Apache-2.0 */
/* Frames in and out of a socket in batches, one message per frame: recvmmsg and sendmmsg. */
#ifndef P4R_LOOP_BATCH_H
#define P4R_LOOP_BATCH_H

#include <linux/if_packet.h>
#include <stdint.h>
#include <sys/socket.h>

#include "common/frame.h"

enum { P4R_BATCH = 64 }; /* frames per call */

union p4r_auxdata {
    struct cmsghdr header;
    uint8_t bytes[CMSG_SPACE(sizeof(struct tpacket_auxdata))];
};

/* Where frames are read to. One serves all ports of a loop: they stay until the next receive. */
struct p4r_batch {
    struct mmsghdr messages[P4R_BATCH];
    struct iovec vectors[P4R_BATCH];
    union p4r_auxdata auxdata[P4R_BATCH];
    uint8_t *rows;
};

/* 0, or -1: no memory. */
int p4r_batch_init(struct p4r_batch *);
void p4r_batch_free(struct p4r_batch *);

/* Whatever messages a socket has, of any length. Returns how many, 0 if there are none, or minus an
 * errno. */
int p4r_batch_receive(struct p4r_batch *, int fd, struct p4r_frame *frames);

/* The same of a packet socket with PACKET_AUXDATA: the VLAN tag that the kernel has taken out of a
 * frame is put back in. */
int p4r_batch_receive_packets(struct p4r_batch *, int fd, struct p4r_frame *frames);

/* Sends up to P4R_BATCH frames. Returns how many left, the first ones, or minus an errno: what
 * became of the first. */
int p4r_batch_send(int fd, const struct p4r_frame *frames, int count);

#endif
