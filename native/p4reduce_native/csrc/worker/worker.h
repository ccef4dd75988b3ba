/* SPDX-License-Identifier: Apache-2.0 */
/* The worker's part of the protocol: docs/protocol.md, "What a worker does". Contract with
 * worker/p4reduce/machine_code.py, which reads structures, functions and constants of this text.
 *
 * Nothing here allocates memory, has a thread or a socket, or looks at a clock: frames and times go
 * in, rows of frames to be sent come out. The specification that can be read as a program is
 * worker/p4reduce/reference. */
#ifndef P4R_WORKER_H
#define P4R_WORKER_H

#include "worker/header.h"

#include <stdint.h>

/* A row of a FrameBuffer: a frame begins two bytes into it, so that what follows Ethernet is
 * aligned. */
#define P4R_BUFFER_STRIDE 2048
#define P4R_BUFFER_PAD 2
#define P4R_MOST_NUMBER_BYTES (8 * P4R_MOST_LANES) /* of a block: float64 */

/* -- Numbers and lanes (lanes.c) -------------------------------------------------------------- */

enum p4r_numbers { P4R_INTEGERS, P4R_FLOAT16, P4R_FLOAT32, P4R_FLOAT64 };

/* How the numbers of a collective become lanes, and sums of lanes numbers. */
struct p4r_codec {
    uint32_t numbers;   /* enum p4r_numbers; integers are lanes as they are */
    uint32_t lane_bits; /* 32: rounded to nearest; 16, 8 or 4: rounded at random */
    uint32_t inexact;   /* a factor below is no power of two (lanes of 32 bits only) */
    uint32_t unused;
    uint64_t key;           /* of the noise, for rounding at random */
    double limit;           /* the largest magnitude of one rank's lane; below 0: any */
    double divisor;         /* of sums, for lanes of 16, 8 or 4 bits */
    const double *scales;   /* 256, by a block's exponent: numbers to lanes */
    const float *scales32;  /* the same as float32 */
    const double *factors;  /* 256: lanes to numbers */
    const float *factors32; /* the same as float32 */
};

/* Lanes in a block. */
static inline uint32_t p4r_lanes(const struct p4r_codec *codec)
{
    return 8 * P4R_PAYLOAD_BYTES / codec->lane_bits;
}

/* Bytes of a number in memory. Integers have their lanes' width there, but a byte at least. */
static inline uint32_t p4r_number_bytes(const struct p4r_codec *codec)
{
    static const uint8_t of_floats[] = {0, 2, 4, 8};
    if (codec->numbers != P4R_INTEGERS)
        return of_floats[codec->numbers & 3];
    return codec->lane_bits < 8 ? 1 : codec->lane_bits / 8;
}

/* Fill a payload with a block's lanes: `numbers` are as many as a payload has lanes. Unless it is
 * NULL, `residual` gets the rounding errors, numbers minus lanes, in the numbers' type; only for
 * floats in lanes that are rounded at random. Return the flags of the frame that follow from them:
 * OVERFLOW where the switch cannot tell (P4R_SUMS_WORDS). */
uint32_t p4r_lanes_encode(const struct p4r_codec *codec, const uint8_t *numbers, uint8_t exponent,
                          int64_t block, uint8_t *payload, uint8_t *residual);

/* Turn `count` lanes into numbers. */
void p4r_lanes_decode(const struct p4r_codec *codec, const uint8_t *lanes, uint32_t count,
                      uint8_t exponent, uint8_t *numbers);

/* Find the exponents of blocks, and whether they are not all zeros; `width` numbers each, of
 * `number_bytes` and of `kind`, an enum p4r_numbers. Unless it is NULL, `residual` is added to the blocks first, which have to be floats
 * then. Returns the first block with a float64 that is no float32, or -1; behind that block nothing is
 * added. */
int64_t p4r_measure(uint32_t kind, uint32_t number_bytes, uint8_t *base, uint64_t blocks,
                    uint64_t width, uint8_t *exponents, uint8_t *nonzero, const uint8_t *residual);

/* For each of `blocks` blocks find the first one from it on in its stripe that is not all zeros, or
 * `blocks`. Block b is in stripe b modulo `stripes`; `next` has an entry for each block of whole
 * rounds of all stripes, and one round more. Return how many blocks are not all zeros. */
uint64_t p4r_look_ahead(const uint8_t *nonzero, uint64_t blocks, uint64_t stripes, int64_t *next);

/* -- Tensors (blocks.c) ----------------------------------------------------------------------- */

/* A stretch of memory cut into blocks, of which the last may be shorter. */
struct p4r_piece {
    int64_t first;      /* number of its first block */
    int64_t full;       /* whole blocks */
    int64_t tail_bytes; /* of the one after these; 0: there is none */
    uint8_t *base;      /* NULL: all zeros, and what is written is dropped */
};

struct p4r_blocks {
    const struct p4r_piece *pieces; /* in order */
    const int64_t *places;          /* of each block among those that are there; NULL: all are */
    uint64_t count;                 /* of pieces */
};

enum p4r_part { P4R_FIRST = 1, P4R_SECOND = 2, P4R_WHOLE = 3 };

/* Quantise a block into a payload. `number` is the seed of its noise, and where its rounding errors
 * go among `residual`; without pieces they go nowhere. Return flags as `p4r_lanes_encode` does. */
uint32_t p4r_block_encode(const struct p4r_codec *codec, const struct p4r_blocks *source,
                          const struct p4r_blocks *residual, int64_t block, int64_t number,
                          uint8_t exponent, uint8_t *payload);

/* A block cannot be sent, as it is not finite on some rank: its finite numbers wait in `residual`. */
void p4r_block_withhold(const struct p4r_codec *codec, const struct p4r_blocks *source,
                        const struct p4r_blocks *residual, int64_t block);

/* Hints that a block will be read, or written, soon: a tensor is mostly in no core's cache. */
void p4r_block_will_encode(const struct p4r_codec *codec, const struct p4r_blocks *source,
                           int64_t block);
void p4r_block_will_decode(const struct p4r_codec *codec, const struct p4r_blocks *target,
                           int64_t block);

/* Write sums, or a half of them, into a block; perhaps past the caches (past_caches.h), for which a
 * fence has to follow. */
void p4r_block_decode(const struct p4r_codec *codec, const struct p4r_blocks *target, int64_t block,
                      uint8_t exponent, const uint8_t *lanes, uint32_t part, int past_caches);

/* Fill a whole block with zeros, or with numbers that are none; integers with zeros alone. */
void p4r_block_fill(const struct p4r_codec *codec, const struct p4r_blocks *target, int64_t block,
                    int nonfinite);

#define P4R_STATUSES_MOST 16
#define P4R_REPEATS_MOST 256

struct p4r_trace_heard {
    double at;
    uint64_t heard;
};

struct p4r_repeat {
    double at;
    int64_t frames;
};

/* When what happened to a collective that is traced, in seconds as in Python; 0: not yet. */
struct p4r_trace {
    double opened;      /* the first of its stripes had a slot */
    double all_there;   /* the first of its stripes was open, which takes all ranks */
    double last_answer; /* the latest round was complete */
    double last_made;   /* the latest frame with lanes of this rank was made */
    uint64_t repeated;  /* frames that timers sent again, also those that `repeats` lacks */
    uint32_t status_count, repeat_count;
    struct p4r_trace_heard
        statuses[P4R_STATUSES_MOST]; /* whom the switch said to have heard, where that was news */
    struct p4r_repeat repeats[P4R_REPEATS_MOST]; /* frames that timers sent again */
};

/* What becomes of `left[1]` of a stream. */
#define P4R_NO_OVERFLOW (-1)

/* How far each switch is with the collectives that are cut among several, side by side. Each switch
 * writes its own values, and all read them. */
struct p4r_progress {
    double *at;        /* collectives, the present one in part; NULL: it is not cut */
    double *held_back; /* frames that the whole window would have sent, beside those that went */
    uint32_t own, count;
    double before; /* collectives */
};

/* A collective. Nothing here changes while it runs, but for what `left` and `trace` point to. */
struct p4r_stream {
    struct p4r_codec codec;
    struct p4r_blocks source, target;
    struct p4r_blocks residual;  /* takes the rounding errors; without pieces: they are dropped */
    const int64_t *next_nonzero; /* from a block on in its stripe, this rank's; or `count` */
    const uint8_t *exponents;    /* of each block, and of `count` */
    int64_t count;               /* blocks */
    int64_t stripes;
    int64_t sequence;
    int64_t first;  /* of the slots for collectives of its class */
    int64_t offset; /* slot of the first stripe */
    int64_t slots;  /* for collectives of its class */
    int64_t before; /* taken from its order: more, the higher its class */
    int64_t *left;  /* stripes that are not over; and the first block with an overflow */
    double deadline;
    double unattended_since; /* seconds: when its caller came, or another engine took it over */
    uint32_t tag, format;
    struct p4r_trace *trace; /* NULL: it is not traced */
    struct p4r_progress progress;
    uint32_t reads, writes; /* whether `source` and `target` are there; else see p4r_visit */
};

/* A round of it is complete, one that opens a stripe or another one. (trace.c) */
void p4r_trace_answered(struct p4r_trace *trace, int opening, double now);

/* The switch has said whom it has heard, as bits. */
void p4r_trace_status(struct p4r_trace *trace, uint64_t heard, double now);

/* A timer has sent a frame again. */
void p4r_trace_repeated(struct p4r_trace *trace, double now);

/* Both for many blocks: rows of a FrameBuffer, whose first row is at `rows`. `blocks` says where
 * they are, `numbers` what they are called. */
void p4r_encode(const struct p4r_codec *codec, const struct p4r_blocks *source,
                const struct p4r_blocks *residual, const int64_t *blocks, const int64_t *numbers,
                const uint8_t *exponents, uint8_t *rows, const int64_t *which, uint64_t count);
void p4r_decode(const struct p4r_codec *codec, const struct p4r_blocks *target,
                const int64_t *blocks, const uint8_t *exponents, const uint8_t *rows,
                const int64_t *which, uint64_t count);

/* -- Slots (receive.c, rounds.c) --------------------------------------------------------------- */

#define P4R_SHAPES 3       /* rows of a slot in the frames to send: */
#define P4R_EMPTY 0        /* without lanes, */
#define P4R_FILLED 1       /* with, */
#define P4R_PADDED 2       /* with room for those of the result */
#define P4R_IDLE (-1)      /* in `expected` */
#define P4R_OPENING (-1)   /* in `block` */
#define P4R_LAST INT64_MAX /* in `order`: nothing to send */
#define P4R_CLASSES 8      /* of collectives, at most */
#define P4R_COMPARED 6     /* words of 8 bytes, from the sixth byte of a frame on */
#define P4R_ROUND_TRIPS 4096

/* RFC 6298's estimate, and the timeout that follows; in seconds. (timers.c) */
struct p4r_timeout {
    double seconds, floor, least_ceiling, ceiling;
    double smoothed, variation, longest, window_ends;
    double answered_up_to; /* when the latest one of the answered contributions was sent first */
    double answered_at;    /* when the latest answer came that no timer had asked for */
};

/* statistics.Counts */
struct p4r_counts {
    int64_t frames_sent, bytes_sent, frames_received, bytes_received, retransmissions, spurious,
        padded, duplicates, stale, statuses, invalid, collectives, blocks, blocks_announced,
        blocks_sent, empty_sent, blocks_received, overflows;
};

/* Why nothing can be summed any more. */
enum p4r_trouble {
    P4R_FINE,
    P4R_MISMATCH,   /* the ranks do not agree about `trouble_slot` */
    P4R_RANKS_LEFT, /* ranks have left that it waits for: those behind `trouble_bits` */
    P4R_DEADLINE,   /* of the stream with sequence number `trouble_sequence` */
};

/* Visits blocks that only Python can reach, such as those of sparse tensors. `what` is P4R_READ to
 * copy their numbers into rows, or an enum p4r_part to store sums. P4R_ZEROS and P4R_NONFINITE fill
 * the blocks. */
enum p4r_visit { P4R_READ = 0, P4R_ZEROS = 4, P4R_NONFINITE = 5 };
typedef void (*p4r_visit)(int64_t sequence, uint32_t what, const int64_t *blocks, uint32_t count,
                          uint8_t *rows);

/* All slots of a job, with timers and window. Arrays have an entry for each slot unless something
 * else is said; the memory is Python's, and what is in it is changed by these functions alone. */
struct p4r_slots {
    /* What never changes. */
    uint32_t slots, job, levels,
        deferral;                /* `levels`: more than one in a tree; `deferral`: timers.c */
    uint32_t rank, asks_for_all; /* whether it asks for all at its switch */
    uint32_t tries_a_doubling;   /* timers.c */
    uint32_t classes, starts[P4R_CLASSES]; /* first slot of each class, the lowest class first */
    double stretch;                        /* timers.c */
    uint64_t everybody, own_bit;           /* on the own switch, as bits */
    uint64_t wanted[P4R_COMPARED], mask[P4R_COMPARED]; /* answers.own_answers */
    p4r_visit visit;

    /* What runs, and the round under way. */
    const struct p4r_stream **live;    /* in order; room for `room` */
    const struct p4r_stream **streams; /* that a slot is about */
    int64_t *over;                     /* sequence numbers of streams that are over; likewise */
    uint32_t live_count, over_count, room, trouble;      /* enum p4r_trouble */
    int64_t *expected, *block, *announced, *row, *owner; /* `owner`: the stream's sequence number */
    uint32_t *next_round;
    uint8_t *exponent, *parts;
    uint64_t *heard;   /* from the last STATUS; 0: there was none */
    uint8_t *level;    /* which switch that is from, 0: the own one */
    uint8_t *outgoing; /* first row of the frames to send, P4R_SHAPES each */
    int64_t *lengths;  /* of these */
    uint8_t *kept;     /* first row of the last result of each slot, as far as it has come */
    uint64_t *left;    /* ranks that have left, as bits of each level */

    /* Timers and window. */
    int64_t *tries, *order;
    double *sent_at, *due;
    uint8_t *opening, *waiting; /* `waiting`: it has a frame to send */
    double *round_trips;        /* P4R_ROUND_TRIPS */
    struct p4r_timeout timeout, opening_timeout;
    double latest, silence, heard_switch_at;
    int64_t window, growth, settling, results, troubled, floor; /* `window` is its size */
    int64_t round_trip_count;
    uint32_t backed_off, some_open, holds_back, queued_count;

    struct p4r_counts counts;
    int64_t trouble_slot, trouble_level, trouble_sequence;
    int64_t next_sequence; /* of the first stream that has not been submitted */
    uint64_t trouble_bits;

    /* Scratch. */
    int64_t *queued;    /* slots that have got a frame to send since p4r_release */
    int64_t *completed; /* slots whose round is complete, at most one entry each */
    uint8_t *how;       /* of each of these: P4R_LATE, ... */
    uint32_t *next;     /* of each of these: next block and exponent, two words */
    int64_t *sorted;    /* slots, or their order */
    double *samples;    /* P4R_ROUND_TRIPS */
    uint8_t *numbers;  /* for p4r_visit: P4R_MOST_NUMBER_BYTES twice for each slot; NULL: no room */
    int64_t *visited;  /* blocks in these: three for each slot */
    int64_t *visiting; /* slots of those that are read */
};

/* -- Called by the driver of the slots --------------------------------------------------------- */

/* Start a stream, which is placed, behind those before it. There has to be room in `live`. */
void p4r_submit(struct p4r_slots *slots, const struct p4r_stream *stream, double now);

/* Take frames, the first rows of a FrameBuffer, whatever they are. `now`: seconds. */
void p4r_receive(struct p4r_slots *slots, uint8_t *rows, const int64_t *lengths, uint32_t count,
                 double now);

/* The same of frames that lie elsewhere, maybe in memory that is written to meanwhile; their
 * headers are in the rows. NULL: all is in the rows. `which` rows, in order; NULL: the first ones. */
void p4r_receive_from(struct p4r_slots *slots, uint8_t *rows, const int64_t *lengths,
                      const uint8_t *const *frames, const uint32_t *which, uint32_t count,
                      double now);

/* Repeat the frames whose time is up, and look at deadlines. */
void p4r_expire(struct p4r_slots *slots, double now);

/* Take results that did not come from the switch, at most one a slot: rows of a FrameBuffer in which
 * only the aggregation header and the lanes count. They are no samples of round trips. */
void p4r_take_handed(struct p4r_slots *slots, const uint8_t *rows, uint32_t count, double now);

/* Send the contributions of all rounds under way for the first time, on another switch. */
void p4r_resume(struct p4r_slots *slots, double now);

/* When there is something for p4r_expire. `in_flight`: how many timers run. */
double p4r_next_due(const struct p4r_slots *slots, uint32_t *in_flight);

/* Which rows may be sent now; `out` has room for one a slot. Returns how many. */
uint32_t p4r_release(struct p4r_slots *slots, int64_t *out);

/* Start the timers of rows that were sent. */
void p4r_sent(struct p4r_slots *slots, const int64_t *rows, uint64_t count, double now);

/* End everything that is under way. */
void p4r_stop(struct p4r_slots *slots);

/* Let all timers that run run out now; with `waiting`, those of all slots that wait for a result. */
void p4r_expire_timers(struct p4r_slots *slots, int waiting, double now);

/* -- Among the files of this folder ------------------------------------------------------------ */

/* Make the frame of a slot's next round, about `block` with the exponent agreed. Returns whether
 * its numbers have to be read by p4r_visit. */
int p4r_contribute(struct p4r_slots *slots, uint32_t slot, int64_t block, uint8_t exponent,
                   double now);

/* Make room for the lanes of a result in a slot's contribution, if it has none. Returns whether it
 * had none. */
int p4r_pad(struct p4r_slots *slots, uint32_t slot);

/* The stripe in a slot is over: the next stream in line begins. Returns whether one does. */
int p4r_end_stripe(struct p4r_slots *slots, uint32_t slot, double now);

/* A slot has a frame to send. */
void p4r_queue(struct p4r_slots *slots, uint32_t slot);

/* Of a slot's contribution, its flags. */
uint8_t *p4r_flags(struct p4r_slots *slots, uint32_t slot);

enum { P4R_LATE = 1, P4R_TRIED = 2, P4R_ANSWERED = 4 }; /* `how` */

/* Rounds of `completed` slots are over. Returns how many there were, besides opening ones, and sets
 * how many of them were troubled: repeated though nothing was lost, or because something was. */
int64_t p4r_timers_completed(struct p4r_slots *slots, uint32_t count, double now,
                             int64_t *troubled);

/* Nothing has come for so long that it is not single frames that are lost. */
int p4r_quiet(const struct p4r_slots *slots, double now);

/* A switch has said whom it has heard in the round that a slot waits for. It was asked by this rank,
 * or by another one and answered all; the latter counts as if this one had asked. */
void p4r_timers_answered(struct p4r_slots *slots, uint32_t slot, int heard, int quiet, double now);

/* A slot's contribution or its result was lost, unless it was sent a moment ago. */
void p4r_missed(struct p4r_slots *slots, uint32_t slot, double now);

/* Results have come, `troubled` of them after a repetition. Any frame has come. */
void p4r_window_completed(struct p4r_slots *slots, int64_t results, int64_t troubled);
/* A round of a stream is complete, and its slot goes on with the block `next`. */
void p4r_window_passed(const struct p4r_stream *stream, int64_t block, int64_t next);
void p4r_window_heard(struct p4r_slots *slots, double now);

/* Round trips grow faster than timers, so the window doubles no more (RFC 9406: slow start ends when
 * the delay grows). */
void p4r_window_outgrown(struct p4r_slots *slots);

/* Put the first `count` slots of `sorted` into the order that all ranks have. */
void p4r_sort_by_order(struct p4r_slots *slots, uint32_t count);

#endif
