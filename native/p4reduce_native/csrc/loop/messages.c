/* SPDX-License-Identifier: Apache-2.0 */
#include "loop/messages.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
    HEADROOM = 16, /* in front of each row's frame, for a VLAN tag; keeps frames aligned */
    VLAN_TAG_BYTES = 4,
    MAC_PAIR_BYTES = 12,
    ETHERTYPE_VLAN = 0x8100,
};

int p4r_messages_init(struct p4r_messages *messages)
{
    memset(messages, 0, sizeof *messages);
    messages->rows = malloc((size_t)P4R_BATCH * P4R_ROW_BYTES);
    if (messages->rows == NULL)
        return -1;
    for (int i = 0; i < P4R_BATCH; i++) {
        messages->vectors[i].iov_base = messages->rows + (size_t)i * P4R_ROW_BYTES + HEADROOM;
        /* One byte more than a frame may have shows that it was longer. */
        messages->vectors[i].iov_len = P4R_MAX_FRAME_BYTES + 1;
        messages->headers[i].msg_hdr.msg_iov = &messages->vectors[i];
        messages->headers[i].msg_hdr.msg_iovlen = 1;
        messages->headers[i].msg_hdr.msg_control = &messages->auxdata[i];
    }
    return 0;
}

void p4r_messages_free(struct p4r_messages *messages)
{
    free(messages->rows);
    messages->rows = NULL;
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

int p4r_messages_receive(struct p4r_messages *messages, int fd, struct p4r_frame *frames)
{
    for (int i = 0; i < P4R_BATCH; i++)
        messages->headers[i].msg_hdr.msg_controllen = sizeof messages->auxdata[i];
    const int count = recvmmsg(fd, messages->headers, P4R_BATCH, MSG_DONTWAIT, NULL);
    if (count < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : -errno;
    for (int i = 0; i < count; i++) {
        frames[i].bytes = messages->vectors[i].iov_base;
        frames[i].length = messages->headers[i].msg_len;
        const struct cmsghdr *header = CMSG_FIRSTHDR(&messages->headers[i].msg_hdr);
        if (header == NULL || header->cmsg_level != SOL_PACKET ||
            header->cmsg_type != PACKET_AUXDATA)
            continue;
        struct tpacket_auxdata aux;
        memcpy(&aux, CMSG_DATA(header), sizeof aux);
        if (aux.tp_status & TP_STATUS_VLAN_VALID && frames[i].length >= MAC_PAIR_BYTES)
            put_vlan_tag_back(&frames[i], messages->vectors[i].iov_base, &aux);
    }
    return count;
}

int p4r_messages_send(int fd, const struct p4r_frame *frames, int count)
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
