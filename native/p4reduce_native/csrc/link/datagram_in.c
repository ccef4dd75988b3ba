/* SPDX-License-Identifier: Apache-2.0 */
/* Receives the peer's datagrams, many per call. The kernel joins consecutive datagrams of one size
 * into one message, and reports that size (UDP_GRO). Each datagram is checked by itself. */
#include "datagram_impl.h"

#include <netinet/in.h>
#include <string.h>

#include "common/clock.h"

enum { FEW = 2 /* messages of a call, where each has many datagrams */ };

static const uint8_t handshake[4] = {'P', '4', 'R', 'U'};

void p4r_datagrams_prepare_arrivals(struct p4r_datagrams *own)
{
    for (int i = 0; i < P4R_UDP_ARRIVALS; i++) {
        own->in_vectors[i] =
            (struct iovec){own->arrivals + (size_t)i * P4R_MESSAGE_BYTES, P4R_MESSAGE_BYTES};
        own->in_messages[i].msg_hdr = (struct msghdr){
            .msg_iov = &own->in_vectors[i], .msg_iovlen = 1, .msg_control = &own->in_sizes[i]};
    }
}

static int is_of_peer(const struct p4r_datagrams *own, const uint8_t *bytes, size_t length)
{
    if (length < P4R_UDP_HEAD)
        return 0;
    uint8_t difference = 0; /* all are compared, so that the time taken reveals nothing */
    for (size_t i = 0; i < sizeof own->token; i++)
        difference |= (uint8_t)(bytes[i] ^ own->token[i]);
    return difference == 0;
}

/* A datagram without the peer's token. */
static void receive_unknown(struct p4r_link *link, const uint8_t *bytes, size_t length)
{
    struct p4r_datagrams *own = link->datagrams;
    if (length != 0 && length == own->greeting_bytes && memcmp(bytes, own->greeting, length) == 0) {
        (void)!send(link->fd, own->answer, own->answer_bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
        return;
    }
    own->counts.strangers++;
    if (own->greeting_bytes == 0 || length < sizeof handshake ||
        memcmp(bytes, handshake, sizeof handshake) != 0)
        return;
    memset(own->control_message, 0, sizeof own->control_message);
    memcpy(own->control_message, bytes,
           length < sizeof own->control_message ? length : sizeof own->control_message);
    own->control_message_bytes = length;
    own->counts.control_messages++;
}

/* A CONTEXT datagram: the peer's context under a number, which is stored and confirmed. A CONFIRMED one:
 * the number of a context that the peer has stored, and what the peer can do. */
static void receive_context(struct p4r_link *link, int type, const uint8_t *body, size_t length)
{
    struct p4r_datagrams *own = link->datagrams;
    if (length < P4R_UDP_NUMBER)
        return;
    const uint16_t number = (uint16_t)(body[0] | body[1] << 8);
    if (type == P4R_UDP_CONFIRMED) {
        own->takes_shortened = body[P4R_UDP_ABLE_AT] & P4R_UDP_TAKES_SHORTENED;
        p4r_contexts_confirmed(&own->out_contexts, number);
    } else if (length >= P4R_UDP_NUMBER + P4R_CONTEXT_BYTES && number != 0) {
        p4r_contexts_store(&own->in_contexts, number, body + P4R_UDP_NUMBER);
        p4r_datagrams_say_context(link, P4R_UDP_CONFIRMED, number, NULL);
    }
}

/* Judges a datagram, and does what it asks for; returns whether it has frames. */
static int judge(struct p4r_link *link, const uint8_t *bytes, size_t length)
{
    struct p4r_datagrams *own = link->datagrams;
    own->counts.rx_datagrams++;
    if (!is_of_peer(own, bytes, length)) {
        receive_unknown(link, bytes, length);
        return 0;
    }
    own->unheard = own->refused = 0;
    own->path.heard = 1;
    const uint8_t *nonce = length >= P4R_UDP_HEAD + P4R_PATH_NONCE ? bytes + P4R_UDP_HEAD : NULL;
    switch (bytes[8]) {
    case P4R_UDP_FRAMES:
        return 1;
    case P4R_UDP_PING:
        p4r_datagrams_say(link, P4R_UDP_PONG, nonce, nonce != NULL ? P4R_PATH_NONCE : 0);
        return 0;
    case P4R_UDP_PONG:
        p4r_path_answered(&own->path, nonce, p4r_now_ns());
        return 0;
    case P4R_UDP_BYE:
        own->has_left = 1;
        return 0;
    case P4R_UDP_CONTEXT:
    case P4R_UDP_CONFIRMED:
        receive_context(link, bytes[8], bytes + P4R_UDP_HEAD, length - P4R_UDP_HEAD);
        return 0;
    default:
        return 0;
    }
}

/* The length of each datagram of a message except the last one. */
static size_t segment_of(struct mmsghdr *message)
{
    struct cmsghdr *header = CMSG_FIRSTHDR(&message->msg_hdr);
    int size = 0;
    if (header != NULL && header->cmsg_level == IPPROTO_UDP && header->cmsg_type == P4R_UDP_GRO &&
        header->cmsg_len >= CMSG_LEN(sizeof size))
        memcpy(&size, CMSG_DATA(header), sizeof size);
    return size > 0 ? (size_t)size : message->msg_len;
}

static size_t filled_up(size_t bytes) { return (bytes + 3) & ~(size_t)3; }

static const struct p4r_frame of_bad_length = {(const uint8_t *)"", 0};

/* Restores a frame into the link's row of this number. */
static struct p4r_frame restored(struct p4r_link *link, const uint8_t *compressed, size_t bytes,
                                 int are_shortened, int row)
{
    uint8_t *place = link->rows + (size_t)row * P4R_ROW_STRIDE + P4R_ROW_PAD;
    uint8_t *lanes = place + P4R_CONTEXT_FRAME_BYTES;
    const size_t taken =
        p4r_contexts_restore(&link->datagrams->in_contexts, compressed, bytes, place);
    size_t rest = bytes - taken;
    if (taken == 0 || rest > P4R_MAX_FRAME_BYTES - P4R_CONTEXT_FRAME_BYTES)
        return of_bad_length;
    if (are_shortened) {
        rest = p4r_float_lanes_restore(compressed + taken, rest, lanes);
        if (rest == 0)
            return of_bad_length;
    } else {
        memcpy(lanes, compressed + taken, rest);
    }
    return (struct p4r_frame){place, P4R_CONTEXT_FRAME_BYTES + (uint32_t)rest};
}

/* Finds the frames of a message from `*at` on, and moves it behind them. What is left where a record
 * does not fit is one frame of bad length. `row`: of the first one, if it has to be restored. */
static int find_frames(struct p4r_link *link, const uint8_t *message, size_t bytes, size_t *at,
                       struct p4r_frame *frames, int most, int row)
{
    int count = 0;
    while (*at < bytes && count < most) {
        size_t length = 0, room = bytes - *at;
        if (room >= P4R_RECORD_HEAD)
            length = (size_t)message[*at] | (size_t)message[*at + 1] << 8;
        const size_t compressed = length & P4R_RECORD_COMPRESSED;
        const size_t shortened = compressed ? length & P4R_RECORD_SHORTENED : 0;
        length -= compressed + shortened;
        if (room < P4R_RECORD_HEAD || length > room - P4R_RECORD_HEAD) {
            frames[count++] = of_bad_length;
            *at = bytes;
            break;
        }
        const uint8_t *first = message + *at + P4R_RECORD_HEAD;
        frames[count] = compressed ? restored(link, first, length, shortened != 0, row + count)
                                   : (struct p4r_frame){first, (uint32_t)length};
        count++;
        *at += filled_up(P4R_RECORD_HEAD + length);
    }
    return count;
}

/* Frames of the current datagram; continues with the next one when there are no more. `row`: see
 * find_frames. */
static int take_some(struct p4r_link *link, struct p4r_frame *frames, int most, int row)
{
    struct p4r_datagrams *own = link->datagrams;
    struct mmsghdr *message = &own->in_messages[own->message];
    const uint8_t *bytes = own->in_vectors[own->message].iov_base;
    const size_t segment = segment_of(message), left = message->msg_len - own->at;
    const size_t length = segment < left ? segment : left;
    if (own->record == 0)
        own->record = judge(link, bytes + own->at, length) ? P4R_UDP_HEAD : length;
    const int count = find_frames(link, bytes + own->at, length, &own->record, frames, most, row);
    if (own->record < length)
        return count;
    own->record = 0;
    own->at += length;
    if (own->at >= message->msg_len) {
        own->at = 0;
        own->message++;
    }
    return count;
}

/* Returns 0, or minus an errno if the link is broken. */
static int receive_messages(struct p4r_link *link)
{
    struct p4r_datagrams *own = link->datagrams;
    const int most = own->gathers ? FEW : P4R_UDP_ARRIVALS;
    for (int i = 0; i < most; i++)
        own->in_messages[i].msg_hdr.msg_controllen = sizeof own->in_sizes[i];
    own->message = own->messages = 0;
    /* An error is reported before what has come, once. */
    for (int tries = 0; tries <= P4R_UDP_REFUSALS; tries++) {
        const int messages =
            recvmmsg(link->fd, own->in_messages, (unsigned)most, MSG_DONTWAIT, NULL);
        const int code = errno;
        if (messages >= 0) {
            own->messages = messages;
            break;
        }
        if (p4r_is_full(code))
            return own->refused >= P4R_UDP_REFUSALS ? p4r_break(link, EPIPE) : 0;
        if (code != EINTR && p4r_datagrams_receive_failed(link, code) != 0)
            return -link->broken;
    }
    if (own->messages == 0)
        return 0;
    own->counts.rx_calls++;
    own->gathers = segment_of(&own->in_messages[0]) < own->in_messages[0].msg_len;
    return 0;
}

int p4r_datagrams_receive(struct p4r_link *link, struct p4r_frame *frames, int most)
{
    struct p4r_datagrams *own = link->datagrams;
    if (own->message == own->messages) {
        const int error = own->has_left ? p4r_break(link, EPIPE) : receive_messages(link);
        if (error != 0)
            return error;
    }
    int count = 0;
    while (own->message < own->messages && count < most) {
        count += take_some(link, frames + count, most - count, count);
        /* Rows for less than half: the next message would be split between two calls, and its answers
         * sent in two short runs. */
        if (own->at == 0 && own->record == 0 && count >= most / 2)
            break;
    }
    link->has_more = own->message < own->messages;
    return own->has_left && count == 0 && !link->has_more ? p4r_break(link, EPIPE) : count;
}
