/* SPDX-License-Identifier: Apache-2.0 */
#include "loop/capture.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { BUFFER_BYTES = 1 << 18 };

struct file_header {
    uint32_t magic;
    uint16_t version_major, version_minor;
    int32_t zone;
    uint32_t accuracy, longest, link_type;
};

struct record_header {
    uint32_t seconds, nanoseconds, captured, length;
};

struct p4r_capture {
    FILE *file;
};

struct p4r_capture *p4r_capture_new(int fd, uint32_t longest_frame)
{
    const struct file_header header = {
        .magic = 0xa1b23c4d, /* nanoseconds */
        .version_major = 2,
        .version_minor = 4,
        .longest = longest_frame,
        .link_type = 1, /* Ethernet */
    };
    struct p4r_capture *capture = malloc(sizeof *capture);
    FILE *file = capture != NULL ? fdopen(fd, "wb") : NULL;
    if (file == NULL) {
        free(capture);
        return NULL;
    }
    setvbuf(file, NULL, _IOFBF, BUFFER_BYTES);
    fwrite(&header, sizeof header, 1, file);
    capture->file = file;
    return capture;
}

void p4r_capture_write(struct p4r_capture *capture, const uint8_t *frame, uint32_t length)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    const struct record_header header = {
        .seconds = (uint32_t)now.tv_sec,
        .nanoseconds = (uint32_t)now.tv_nsec,
        .captured = length,
        .length = length,
    };
    if (!ferror(capture->file) && fwrite(&header, sizeof header, 1, capture->file) == 1)
        fwrite(frame, 1, length, capture->file);
}

void p4r_capture_flush(struct p4r_capture *capture) { fflush(capture->file); }

void p4r_capture_free(struct p4r_capture *capture)
{
    if (capture == NULL)
        return;
    fclose(capture->file);
    free(capture);
}
