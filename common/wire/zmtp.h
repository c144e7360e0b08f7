/* The accepting side of ZMTP 3.0 without a mechanism (rfc.zeromq.org/spec/23), for bytes
 * that may come from anybody: the other side is a DEALER that sends messages of one
 * frame. Pure: it reads and writes no socket.
 *
 * libzmq's own engine is not used for strangers: they can end the process (door.h). */
#ifndef PS_ZMTP_H
#define PS_ZMTP_H

#include <stddef.h>
#include <stdint.h>

#include "err.h"

enum { PS_ZMTP_ID_MAX = 255, PS_ZMTP_HEAD_MAX = 9 };

/* What is to be done next. */
typedef enum ps_zmtp_event {
    PS_ZMTP_NOTHING, // wait for more bytes
    PS_ZMTP_ANSWER,  // send these bytes
    PS_ZMTP_FRAME,   // these bytes are a message
    PS_ZMTP_WRONG    // close the connection: it speaks something else
} ps_zmtp_event;

typedef struct ps_zmtp {
    int stage;
    size_t frame_max;
    uint8_t id[PS_ZMTP_ID_MAX]; // the peer's routing id; known when a frame has come
    size_t id_bytes;
    uint8_t *bytes; // that came and are not taken yet: n_bytes of them, from `taken` on
    size_t taken, n_bytes, cap;
} ps_zmtp;

/* frame_max: the largest message. */
void ps_zmtp_init(ps_zmtp *z, size_t frame_max);
void ps_zmtp_fini(ps_zmtp *z);

/* Adds bytes that have come. NOMEM. */
ps_err ps_zmtp_put(ps_zmtp *z, const void *bytes, size_t n);
/* Must be called after ps_zmtp_put until it returns NOTHING or WRONG. *data and *n: the
 * bytes of an answer or a frame, valid until the next call. */
ps_zmtp_event ps_zmtp_next(ps_zmtp *z, const uint8_t **data, size_t *n);

/* The head of a message of one frame with n bytes; returns the head's length. */
size_t ps_zmtp_head(uint8_t out[PS_ZMTP_HEAD_MAX], size_t n);

#endif
