/* SPDX-License-Identifier: Apache-2.0 */
/* Many frames per packet of a veth pair: UDP segmentation offload (virtio_net_hdr, UDP_L4) between
 * two packet sockets with PACKET_VNET_HDR. The kernel passes such a packet on whole, and we take it
 * apart as the kernel would, but for what stays as it was: the IPv4 identification, and no UDP
 * checksum. So every frame comes out as it went in.
 *
 * Only frames with a right IPv4 checksum are put together, and the packet has one as well: a bridge with
 * netfilter drops others. Where a device on the way takes no such packets, the kernel takes them apart:
 * then the frames have identifications in a row, and UDP checksums.
 *
 * Whoever else listens at the veth pair sees packets of up to 64 KB. So frames are put
 * together only for a peer that has done so itself a moment ago, or that is known to understand it.
 */
#include "common/clock.h"
#include "link_impl.h"
#include "udp_frame.h"
#include "vlan.h"

#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#define UDP_BYTES 8
#define IP_UDP_BYTES 28
#define MOST_BYTES 65535 /* of a packet: what a filter of packet sockets lets through at most */
#define TRUST_NS 2000000000u
#define REFUSAL_NS 10000000000u /* before packets of many frames are tried again */

/* struct virtio_net_hdr of linux/virtio_net.h, which not every kernel's headers have in full. */
struct vnet {
    uint8_t flags, gso_type;
    uint16_t header_length, gso_size, checksum_start, checksum_offset;
};
#define NEEDS_CHECKSUM 1
#define GSO_UDP_L4 5

struct p4r_packets {
    int peer_understands;   /* whatever it sends */
    uint64_t trusted_until; /* else the end of the trust */
    uint64_t single_until;  /* the kernel or the device took no packet of many frames */
    /* A packet that is being taken apart: its bytes, its payload's part that is left. */
    uint8_t *packet;
    size_t at, end, segment;
    /* Of the IPv4 header. A peer of the version before sends the checksum of a single frame: then it
     * is left as it is. */
    int checksum_is_right;
};

struct p4r_link *p4r_link_over_interface(int fd, int peer_understands, int *error)
{
    int on = 1;
    struct p4r_link *link = p4r_link_accept(fd, 0, 0, error);
    if (link == NULL)
        return NULL;
    link->ops = &p4r_offload;
    link->packets = calloc(1, sizeof *link->packets);
    if (link->packets != NULL)
        link->packets->packet = malloc(MOST_BYTES + 64);
    if (link->packets == NULL || link->packets->packet == NULL) {
        *error = ENOMEM;
        return p4r_unmake(link);
    }
    if (setsockopt(fd, SOL_PACKET, PACKET_VNET_HDR, &on, sizeof on) != 0) {
        *error = errno;
        return p4r_unmake(link);
    }
    link->packets->peer_understands = peer_understands;
    return link;
}

static void free_packets(struct p4r_link *link)
{
    if (link->packets != NULL)
        free(link->packets->packet);
    free(link->packets);
}

static void write16(uint8_t *bytes, size_t value)
{
    bytes[0] = (uint8_t)(value >> 8);
    bytes[1] = (uint8_t)value;
}

/* One's complement sum of an IPv4 header without options (RFC 1071); 0xFFFF: its checksum is right. */
static unsigned sum_of(const uint8_t *header)
{
    unsigned sum = 0;
    for (int at = 0; at < 20; at += 2)
        sum += read16(header + at);
    sum = (sum & 0xFFFF) + (sum >> 16);
    return (sum & 0xFFFF) + (sum >> 16);
}

/* Changes the length in a frame's IPv4 header, and its checksum to fit (RFC 1624). */
static void set_ip_length(uint8_t *frame, size_t length)
{
    unsigned sum = (~read16(frame + IP_CHECKSUM) & 0xFFFF) + (~read16(frame + IP_LENGTH) & 0xFFFF) +
                   (unsigned)length;
    sum = (sum & 0xFFFF) + (sum >> 16);
    sum = (sum & 0xFFFF) + (sum >> 16);
    write16(frame + IP_LENGTH, length);
    write16(frame + IP_CHECKSUM, ~sum & 0xFFFF);
}

/* Reads one packet; returns its bytes, 0: there is none, or minus an errno. */
static ssize_t read_packet(struct p4r_link *link, struct vnet *vnet, size_t *start)
{
    uint8_t *packet = link->packets->packet;
    union p4r_auxdata control;
    /* Room in front for a VLAN tag. */
    struct iovec vectors[2] = {{vnet, sizeof *vnet},
                               {packet + P4R_VLAN_TAG_BYTES, MOST_BYTES + 32}};
    struct msghdr message = {.msg_iov = vectors,
                             .msg_iovlen = 2,
                             .msg_control = &control,
                             .msg_controllen = sizeof control};
    ssize_t bytes = recvmsg(link->fd, &message, MSG_DONTWAIT);
    if (bytes < 0)
        return p4r_is_full(errno) || errno == EINTR ? 0 : -errno;
    bytes -= (ssize_t)sizeof *vnet;
    if (bytes <= 0)
        bytes = 1; /* an empty message, as 0 means none */
    const size_t tag = p4r_vlan_put_back(packet + P4R_VLAN_TAG_BYTES, (size_t)bytes, &message);
    *start = P4R_VLAN_TAG_BYTES - tag;
    return bytes + (ssize_t)tag;
}

/* Gives frames out of the packet at hand, into rows from `count` on; returns how many there are. */
static int take_apart(struct p4r_link *link, struct p4r_frame *frames, int count, int most)
{
    struct p4r_packets *it = link->packets;
    const uint8_t *headers = it->packet + P4R_VLAN_TAG_BYTES;
    for (; it->at < it->end && count < most; count++) {
        size_t payload = it->end - it->at < it->segment ? it->end - it->at : it->segment;
        uint8_t *row = link->rows + (size_t)count * P4R_ROW_STRIDE;
        memcpy(row, headers, HEADERS);
        if (it->checksum_is_right)
            set_ip_length(row, IP_UDP_BYTES + payload);
        else
            write16(row + IP_LENGTH, IP_UDP_BYTES + payload);
        write16(row + UDP_LENGTH, UDP_BYTES + payload);
        memcpy(row + HEADERS, it->packet + it->at, payload);
        frames[count] = (struct p4r_frame){row, (uint32_t)(HEADERS + payload)};
        it->at += payload;
    }
    return count;
}

static int receive_some(struct p4r_link *link, struct p4r_frame *frames, int most)
{
    struct p4r_packets *it = link->packets;
    int count = take_apart(link, frames, 0, most);
    while (count < most && it->at >= it->end) {
        struct vnet vnet;
        size_t start = 0;
        ssize_t bytes = read_packet(link, &vnet, &start);
        if (bytes <= 0)
            return count != 0 ? count : (int)bytes;
        const uint8_t *packet = it->packet + start;
        if (vnet.gso_type == GSO_UDP_L4 && start == P4R_VLAN_TAG_BYTES && vnet.gso_size != 0 &&
            vnet.gso_size <= P4R_LINK_MAX_FRAME - HEADERS && bytes > HEADERS &&
            is_plain_udp(packet, (size_t)bytes) && read16(packet + UDP_CHECKSUM) == 0) {
            it->trusted_until = p4r_now_ns() + TRUST_NS;
            it->segment = vnet.gso_size;
            it->checksum_is_right = sum_of(packet + IP_HEADER) == 0xFFFF;
            it->at = start + HEADERS;
            it->end = start + (size_t)bytes;
            count = take_apart(link, frames, count, most);
            continue;
        }
        /* A frame; one that is too long shows as such by a byte. */
        uint8_t *row = link->rows + (size_t)count * P4R_ROW_STRIDE;
        size_t length = (size_t)bytes < P4R_ROW_ROOM ? (size_t)bytes : P4R_ROW_ROOM;
        memcpy(row, packet, length);
        frames[count++] = (struct p4r_frame){row, (uint32_t)length};
    }
    return count;
}

static int receive(struct p4r_link *link, struct p4r_frame *frames, int most)
{
    const int count = receive_some(link, frames, most);
    link->has_more = link->packets->at < link->packets->end;
    return count;
}

/* How many of the first frames can go together: equal and right headers, no UDP checksum. An IPv4
 * checksum of 0xFFFF is one that set_ip_length never makes, so it would not come out as it went in. */
static int together(const struct p4r_frame *frames, int count)
{
    const struct p4r_frame *first = &frames[0];
    if (!is_plain_udp(first->bytes, first->length) || first->length == HEADERS ||
        read16(first->bytes + UDP_CHECKSUM) != 0 || read16(first->bytes + IP_CHECKSUM) == 0xFFFF ||
        sum_of(first->bytes + IP_HEADER) != 0xFFFF)
        return 1;
    size_t payload = first->length - HEADERS;
    int most = (int)((MOST_BYTES - HEADERS) / payload), run = 1;
    if (most > P4R_LINK_FRAMES)
        most = P4R_LINK_FRAMES;
    while (run < count && run < most && frames[run].length == first->length &&
           memcmp(frames[run].bytes, first->bytes, HEADERS) == 0)
        run++;
    return run;
}

static int is_refusal(int code)
{
    return code == EINVAL || code == EIO || code == EMSGSIZE || code == EOPNOTSUPP;
}

static int send_frames(struct p4r_link *link, const struct p4r_frame *frames, int count)
{
    struct head {
        struct vnet vnet;
        uint8_t headers[HEADERS];
    } heads[P4R_LINK_FRAMES];
    struct iovec vectors[2 * P4R_LINK_FRAMES];
    int runs[P4R_LINK_FRAMES], messages = 0, used = 0, done = 0;
    const uint64_t now = p4r_now_ns();
    int coalesces = (link->packets->peer_understands || now < link->packets->trusted_until) &&
                    now >= link->packets->single_until;
    if (count > P4R_LINK_FRAMES)
        count = P4R_LINK_FRAMES;
    memset(link->out_messages, 0, sizeof link->out_messages);
    for (; done < count; messages++) {
        const struct p4r_frame *run = &frames[done];
        int length = coalesces ? together(run, count - done) : 1;
        struct head *head = &heads[messages];
        struct msghdr *message = &link->out_messages[messages].msg_hdr;
        memset(&head->vnet, 0, sizeof head->vnet);
        message->msg_iov = &vectors[used];
        vectors[used++] = (struct iovec){head, sizeof head->vnet};
        if (length == 1) {
            vectors[used++] = (struct iovec){(void *)(uintptr_t)run->bytes, run->length};
        } else {
            size_t payload = run->length - HEADERS;
            head->vnet = (struct vnet){NEEDS_CHECKSUM,    GSO_UDP_L4, HEADERS,
                                       (uint16_t)payload, UDP_HEADER, UDP_CHECKSUM - UDP_HEADER};
            memcpy(head->headers, run->bytes, HEADERS);
            set_ip_length(head->headers, IP_UDP_BYTES + (size_t)length * payload);
            write16(head->headers + UDP_LENGTH, UDP_BYTES + (size_t)length * payload);
            vectors[used - 1].iov_len = sizeof *head;
            for (int i = 0; i < length; i++)
                vectors[used++] =
                    (struct iovec){(void *)(uintptr_t)(run[i].bytes + HEADERS), payload};
        }
        message->msg_iovlen = (size_t)(&vectors[used] - message->msg_iov);
        runs[messages] = length;
        done += length;
    }
    int sent =
        sendmmsg(link->fd, link->out_messages, (unsigned)messages, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && runs[0] > 1 && is_refusal(errno)) { /* not in this way */
        link->packets->single_until = now + REFUSAL_NS;
        return send_frames(link, frames, count);
    }
    if (sent < 0) {
        const int code = errno; /* it ends nothing, and the next call tries again */
        return p4r_is_full(code) ? p4r_send_failed(link, code) : code == EINTR ? 0 : -code;
    }
    done = 0;
    for (int i = 0; i < sent; i++)
        done += runs[i];
    return done;
}

const struct p4r_link_ops p4r_offload = {
    .kind = P4R_LINK_OFFLOAD,
    .receive = receive,
    .send = send_frames,
    .events = p4r_events_without_end,
    .free = free_packets,
};
