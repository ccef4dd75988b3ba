/* SPDX-License-Identifier: Apache-2.0 */
/* Frames in and out of a packet socket in batches: recvmmsg and sendmmsg. */
#ifndef P4R_LOOP_MESSAGES_H
#define P4R_LOOP_MESSAGES_H

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
struct p4r_messages {
    struct mmsghdr headers[P4R_BATCH];
    struct iovec vectors[P4R_BATCH];
    union p4r_auxdata auxdata[P4R_BATCH];
    uint8_t *rows;
};

/* 0, or -1: no memory. */
int p4r_messages_init(struct p4r_messages *);
void p4r_messages_free(struct p4r_messages *);

/* Whatever a socket with PACKET_AUXDATA has, of any length; the VLAN tag that the kernel has taken
 * out of a frame is put back in. Returns how many frames, 0 if there are none, or minus an errno. */
int p4r_messages_receive(struct p4r_messages *, int fd, struct p4r_frame *frames);

/* Sends up to P4R_BATCH frames. Returns how many left, the first ones, or minus an errno: what
 * became of the first. */
int p4r_messages_send(int fd, const struct p4r_frame *frames, int count);

#endif
