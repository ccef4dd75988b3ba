/* SPDX-License-Identifier: Apache-2.0 */
/* A port's frames in a pcap file: the classic format with nanosecond time stamps. */
#ifndef P4R_LOOP_CAPTURE_H
#define P4R_LOOP_CAPTURE_H

#include <stdint.h>

struct p4r_capture;

/* Takes over `fd`, a file that is empty, and writes the file header. NULL: no memory, and the file
 * is the caller's. */
struct p4r_capture *p4r_capture_new(int fd, uint32_t longest_frame);

/* Buffered. After the first write that fails (a full disk) nothing more is written, and the last record
 * may be incomplete. */
void p4r_capture_write(struct p4r_capture *, const uint8_t *frame, uint32_t length);

void p4r_capture_flush(struct p4r_capture *);

/* Writes what is buffered and closes the file. */
void p4r_capture_free(struct p4r_capture *);

#endif
