/* SPDX-License-Identifier: Apache-2.0 */
/* Frames leave in datagrams, and datagrams of one size in a row by one message (UDP_SEGMENT): it goes
 * through the kernel once, and is taken apart by the device or just before it. On the wire nothing
 * tells them from datagrams that were sent one by one. */
#include "datagram_impl.h"

#include <netinet/in.h>
#include <string.h>

#include "common/clock.h"

enum {
    MOST_SEGMENTS = 64, /* UDP_MAX_SEGMENTS of older kernels */
    FRAME_BYTES = 256,  /* a datagram has one frame per so many of its bytes, at most */
    ZEROS = 4096,
};
static const uint64_t refusal_ns = 10000000000u; /* before segmentation is tried again */

static int frames_in(uint32_t bytes)
{
    const uint32_t frames = bytes / FRAME_BYTES;
    return frames < 1 ? 1 : frames > P4R_LINK_FRAMES ? P4R_LINK_FRAMES : (int)frames;
}

/* The fewest bytes that a record of a frame can have. */
static size_t least(const struct p4r_frame *frame)
{
    return frame->length < P4R_CONTEXT_FRAME_BYTES
               ? P4R_RECORD_HEAD + frame->length
               : P4R_RECORD_HEAD + P4R_COMPRESSED_HEAD +
                     (frame->length - P4R_CONTEXT_FRAME_BYTES) / 8 * 7;
}

/* Writes a record's length and what stands for the frame's header, at `head`. What follows goes to
 * `*rest`: the frame, or its lanes, or what stands for them. Returns how many bytes it wrote. Loopback
 * has more room than time, so frames go there as they are. */
static size_t begin_record(struct p4r_datagrams *own, const struct p4r_frame *frame, int place,
                           uint64_t now_ns, uint8_t *head, struct iovec *rest)
{
    const size_t compressed =
        own->path.bytes < P4R_UDP_MOST
            ? p4r_contexts_compress(&own->out_contexts, *frame, now_ns, head + P4R_RECORD_HEAD)
            : 0;
    const size_t skip = compressed != 0 ? P4R_CONTEXT_FRAME_BYTES : 0;
    const size_t shortened = compressed != 0 && own->takes_shortened
                                 ? p4r_float_lanes_shorten(*frame, own->shortened[place])
                                 : 0;
    *rest = shortened != 0
                ? (struct iovec){own->shortened[place], shortened}
                : (struct iovec){(void *)(uintptr_t)(frame->bytes + skip), frame->length - skip};
    size_t length = compressed + rest->iov_len;
    if (compressed != 0)
        length |= P4R_RECORD_COMPRESSED;
    if (shortened != 0)
        length |= P4R_RECORD_SHORTENED;
    head[0] = (uint8_t)(length & 0xFF);
    head[1] = (uint8_t)(length >> 8);
    return P4R_RECORD_HEAD + compressed;
}

/* Puts the first frames into one datagram; returns how many, at least one. `place`: of the first
 * one's vectors and head. */
static int put_together(struct p4r_datagrams *own, const struct p4r_frame *frames, int count,
                        int place, uint64_t now_ns, size_t *datagram_bytes)
{
    const int most = frames_in(own->path.bytes);
    size_t bytes = P4R_UDP_HEAD;
    int taken = 0;
    for (; taken < count && taken < most; taken++) {
        const struct p4r_frame *frame = &frames[taken];
        const size_t gap = taken != 0 ? (4 - bytes % 4) % 4 : 0;
        uint8_t *head = own->heads[place + taken];
        struct iovec *vectors = &own->out_vectors[2 * (place + taken)];
        size_t at = 0;
        if (taken == 0) {
            memcpy(head, own->token, sizeof own->token);
            memset(head + 8, 0, P4R_UDP_HEAD - 8);
            at = P4R_UDP_HEAD;
        } else if (bytes + gap + least(frame) > own->path.bytes) {
            break;
        }
        memset(head + at, 0, gap);
        at += gap;
        at += begin_record(own, frame, place + taken, now_ns, head + at, &vectors[1]);
        if (taken != 0 && bytes + at + vectors[1].iov_len > own->path.bytes)
            break;
        vectors[0] = (struct iovec){head, at};
        bytes += at - (taken == 0 ? P4R_UDP_HEAD : 0) + vectors[1].iov_len;
    }
    *datagram_bytes = bytes;
    return taken;
}

static void say_segment_size(struct p4r_datagrams *own, int message, size_t segment)
{
    struct msghdr *header = &own->out_messages[message].msg_hdr;
    header->msg_control = &own->out_sizes[message];
    header->msg_controllen = CMSG_SPACE(sizeof(uint16_t));
    struct cmsghdr *size = CMSG_FIRSTHDR(header);
    size->cmsg_level = IPPROTO_UDP;
    size->cmsg_type = P4R_UDP_SEGMENT;
    size->cmsg_len = CMSG_LEN(sizeof(uint16_t));
    const uint16_t bytes = (uint16_t)segment;
    memcpy(CMSG_DATA(size), &bytes, sizeof bytes);
}

/* Makes messages of frames: each is a run of datagrams of one size, of which the last may be shorter.
 * Returns how many there are; the first has `*first` datagrams. */
static int gather(struct p4r_datagrams *own, const struct p4r_frame *frames, int count,
                  uint64_t now_ns, int *first)
{
    int messages = 0, taken = 0, open = 0, datagrams = 0; /* of the message that is open */
    const int runs = now_ns >= own->single_until_ns;
    size_t segment = 0, total = 0;
    while (taken < count) {
        size_t bytes;
        const int place = taken;
        taken += put_together(own, frames + taken, count - taken, taken, now_ns, &bytes);
        if (open && bytes <= segment && datagrams < MOST_SEGMENTS &&
            total + bytes <= P4R_UDP_MOST) {
            struct msghdr *header = &own->out_messages[messages - 1].msg_hdr;
            if (++datagrams == 2)
                say_segment_size(own, messages - 1, segment);
            header->msg_iovlen += 2 * (size_t)(taken - place);
            total += bytes;
            open = bytes == segment;
        } else {
            own->out_messages[messages++].msg_hdr = (struct msghdr){
                .msg_iov = &own->out_vectors[2 * place], .msg_iovlen = 2 * (size_t)(taken - place)};
            datagrams = 1;
            segment = total = bytes;
            open = runs;
        }
        own->ends[messages - 1] = taken;
        if (messages == 1)
            *first = datagrams;
    }
    return messages;
}

/* Asks the peer whether a datagram of this size reaches it. */
static void ask(struct p4r_link *link, uint32_t bytes)
{
    static const uint8_t zeros[ZEROS];
    struct p4r_datagrams *own = link->datagrams;
    uint8_t head[P4R_UDP_HEAD + P4R_PATH_NONCE] = {0};
    struct iovec vectors[2 + P4R_UDP_MOST / ZEROS + 1] = {{head, sizeof head}};
    size_t count = 1;
    memcpy(head, own->token, sizeof own->token);
    head[8] = P4R_UDP_PING;
    memcpy(head + P4R_UDP_HEAD, own->path.nonce, P4R_PATH_NONCE);
    for (size_t left = bytes > sizeof head ? bytes - sizeof head : 0; left > 0; count++) {
        const size_t part = left < ZEROS ? left : ZEROS;
        vectors[count] = (struct iovec){(void *)(uintptr_t)zeros, part};
        left -= part;
    }
    const struct msghdr message = {.msg_iov = vectors, .msg_iovlen = count};
    /* An error may belong to an earlier datagram: who forges ICMP messages without end would have no
     * question sent. One that is lost is sent again. */
    if (sendmsg(link->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
        (void)!sendmsg(link->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (own->path.echoes) /* so that its silence means this size, and not the peer */
        p4r_datagrams_say(link, P4R_UDP_PING, NULL, 0);
}

static size_t bytes_of(const struct msghdr *message)
{
    size_t bytes = 0;
    for (size_t i = 0; i < message->msg_iovlen; i++)
        bytes += message->msg_iov[i].iov_len;
    return bytes;
}

/* The first message, of `datagrams`, was refused for its size, or for having several. Returns whether
 * its frame is given up. */
static int refused(struct p4r_link *link, int code, int datagrams, int *again, uint64_t now_ns)
{
    struct p4r_datagrams *own = link->datagrams;
    if (code == EMSGSIZE && !*again) { /* this error may belong to an earlier datagram */
        *again = 1;
        p4r_path_suspect(&own->path, now_ns);
        return 0;
    }
    *again = 0;
    if (datagrams > 1) { /* runs are refused: single datagrams show whether the size fits */
        own->single_until_ns = now_ns + refusal_ns;
        own->counts.tx_runs_refused++;
        return 0;
    }
    if (bytes_of(&own->out_messages[0].msg_hdr) <= own->path.bytes &&
        p4r_path_refused(&own->path, link->fd, now_ns))
        return 0;
    link->counts.tx_bad_length++;
    own->counts.tx_too_long++;
    return 1;
}

int p4r_datagrams_send(struct p4r_link *link, const struct p4r_frame *frames, int count)
{
    struct p4r_datagrams *own = link->datagrams;
    const uint64_t now_ns = p4r_now_ns();
    int done = 0, again = 0;
    const uint32_t question = p4r_path_question(&own->path, link->fd, now_ns);
    if (question != 0)
        ask(link, question);
    const struct p4r_context *context = p4r_contexts_to_announce(&own->out_contexts, now_ns);
    if (context != NULL)
        p4r_datagrams_say_context(link, P4R_UDP_CONTEXT, context->number, context->bytes);
    while (done < count) {
        const int most = count - done < P4R_LINK_MOST ? count - done : P4R_LINK_MOST;
        int first = 1;
        const int messages = gather(own, frames + done, most, now_ns, &first);
        const int sent =
            sendmmsg(link->fd, own->out_messages, (unsigned)messages, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent > 0) {
            own->counts.tx_calls++;
            done += own->ends[sent - 1];
            continue;
        }
        const int code = errno;
        if (code == EINTR)
            continue;
        if (done > 0)
            break; /* the next call finds the same, at its first frame */
        if (code == EMSGSIZE ||
            ((code == EINVAL || code == EIO || code == EOPNOTSUPP) && first > 1)) {
            if (refused(link, code, first, &again, now_ns))
                return 1;
            continue;
        }
        const int error = p4r_datagrams_send_failed(link, code);
        if (error < 0 || code != ECONNREFUSED)
            return error;
    }
    return done;
}
