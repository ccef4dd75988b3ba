/* SPDX-License-Identifier: Apache-2.0 */
#include "loop/batch.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
    HEADROOM = 16, /* in front of each row's frame, for a VLAN tag; keeps frames aligned */
    VLAN_TAG_BYTES = 4,
    MAC_PAIR_BYTES = 12,
    ETHERTYPE_VLAN = 0x8100,
};

int p4r_batch_init(struct p4r_batch *batch)
{
    memset(batch, 0, sizeof *batch);
    batch->rows = malloc((size_t)P4R_BATCH * P4R_ROW_BYTES);
    if (batch->rows == NULL)
        return -1;
    for (int i = 0; i < P4R_BATCH; i++) {
        batch->vectors[i].iov_base = batch->rows + (size_t)i * P4R_ROW_BYTES + HEADROOM;
        /* One byte more than a frame may have shows that it was longer. */
        batch->vectors[i].iov_len = P4R_MAX_FRAME_BYTES + 1;
        batch->messages[i].msg_hdr.msg_iov = &batch->vectors[i];
        batch->messages[i].msg_hdr.msg_iovlen = 1;
    }
    return 0;
}

void p4r_batch_free(struct p4r_batch *batch)
{
    free(batch->rows);
    batch->rows = NULL;
}

static int receive(struct p4r_batch *batch, int fd, struct p4r_frame *frames)
{
    const int count = recvmmsg(fd, batch->messages, P4R_BATCH, MSG_DONTWAIT, NULL);
    if (count < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : -errno;
    for (int i = 0; i < count; i++) {
        frames[i].bytes = batch->vectors[i].iov_base;
        frames[i].length = batch->messages[i].msg_len;
    }
    return count;
}

int p4r_batch_receive(struct p4r_batch *batch, int fd, struct p4r_frame *frames)
{
    for (int i = 0; i < P4R_BATCH; i++) {
        batch->messages[i].msg_hdr.msg_control = NULL;
        batch->messages[i].msg_hdr.msg_controllen = 0;
    }
    return receive(batch, fd, frames);
}

static void put_vlan_tag_back(struct p4r_frame *frame, uint8_t *bytes,
                              const struct tpacket_auxdata *aux)
{
    const uint16_t tpid =
        aux->tp_status & TP_STATUS_VLAN_TPID_VALID ? aux->tp_vlan_tpid : ETHERTYPE_VLAN;
    const uint8_t tag[VLAN_TAG_BYTES] = {
        (uint8_t)(tpid >> 8),
        (uint8_t)tpid,
        (uint8_t)(aux->tp_vlan_tci >> 8),
        (uint8_t)aux->tp_vlan_tci,
    };
    uint8_t *start = bytes - VLAN_TAG_BYTES;
    memmove(start, bytes, MAC_PAIR_BYTES);
    memcpy(start + MAC_PAIR_BYTES, tag, VLAN_TAG_BYTES);
    frame->bytes = start;
    frame->length += VLAN_TAG_BYTES;
}

int p4r_batch_receive_packets(struct p4r_batch *batch, int fd, struct p4r_frame *frames)
{
    for (int i = 0; i < P4R_BATCH; i++) {
        batch->messages[i].msg_hdr.msg_control = &batch->auxdata[i];
        batch->messages[i].msg_hdr.msg_controllen = sizeof batch->auxdata[i];
    }
    const int count = receive(batch, fd, frames);
    for (int i = 0; i < count; i++) {
        const struct cmsghdr *header = CMSG_FIRSTHDR(&batch->messages[i].msg_hdr);
        if (header == NULL || header->cmsg_level != SOL_PACKET ||
            header->cmsg_type != PACKET_AUXDATA)
            continue;
        struct tpacket_auxdata aux;
        memcpy(&aux, CMSG_DATA(header), sizeof aux);
        if (aux.tp_status & TP_STATUS_VLAN_VALID && frames[i].length >= MAC_PAIR_BYTES)
            put_vlan_tag_back(&frames[i], batch->vectors[i].iov_base, &aux);
    }
    return count;
}

int p4r_batch_send(int fd, const struct p4r_frame *frames, int count)
{
    struct mmsghdr messages[P4R_BATCH];
    struct iovec vectors[P4R_BATCH];
    if (count > P4R_BATCH)
        count = P4R_BATCH;
    for (int i = 0; i < count; i++) {
        /* The kernel does not write to what it sends. */
        vectors[i].iov_base = (void *)(uintptr_t)frames[i].bytes;
        vectors[i].iov_len = frames[i].length;
        memset(&messages[i].msg_hdr, 0, sizeof messages[i].msg_hdr);
        messages[i].msg_hdr.msg_iov = &vectors[i];
        messages[i].msg_hdr.msg_iovlen = 1;
    }
    const int sent = sendmmsg(fd, messages, (unsigned)count, MSG_DONTWAIT | MSG_NOSIGNAL);
    return sent < 0 ? -errno : sent;
}
