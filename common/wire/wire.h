/* The data plane's messages between workers and shards.
 *
 * ZeroMQ multipart. Frame 1, a msgpack array: what every message says, then what its kind
 * says (`says` in wire.c), in the order of ps_wire_header:
 *
 *   [version u8, kind u8, nonce u64, epoch u32, rank u32, ...]
 *
 * Frame 2, only for kinds with a payload: count elements as the codec encodes them, or,
 * with PS_CODEC_SHM, nothing (absent): the payload lies in the sender's registered
 * segment, at the chunk's place in the arena. Little-endian float32.
 *
 * A program may have several optimizers, and a step belong to one of them: all its PUSHes
 * say which (`step_of`). Those of chunks of other optimizers have PS_CODEC_IDLE and no
 * payload, and so have the WEIGHTS that answer them: the version grows, and the weights
 * stay. Ranks that step different ones end the job.
 *
 * DEALER (worker) <-> ROUTER (shard). The worker's routing id is its rank and its secret
 * (secret.h): a connection that was lost and made again takes its place (HANDOVER), and
 * nobody else can. A message under another id is dropped unread.
 *
 *   worker -> shard                      shard -> worker
 *   HELLO  first message of a            READY    the shard knows the worker; the HELLO's
 *          connection                             number
 *   INIT   rank 0: first weights         WEIGHTS  of a chunk, at version step
 *   PUSH   gradient of a chunk in step   CREDIT   bytes taken over (every other reply
 *                                                 gives them back too)
 *   PULL   weights at version step       STALE    the present member epoch
 *   BYE    the worker is done, or will   ERROR    frame 2: UTF-8; the job is over
 *          return with more tensors
 *                                        LEFT     the shard has the worker's BYE
 *   EXACT asks for the exact weights,   EXACT_WEIGHTS  the exact weights at version step,
 *          which codecs may not have             once every worker has asked
 *          reached
 *   FETCH  has not pushed step `step`:   STATE    the array
 *          an array of a chunk at
 *          version step
 *   RESTORE  rank 0, before INIT:        RESTORED
 *          an array of a chunk
 *   GROUPS rank 0, before the PUSHes of
 *          the first step that it
 *          counts for: the numbers of
 *          the parameter groups
 *
 * Rows of embedding tables (rows_wire.h says what their bodies hold) take the same
 * connection, but no chunk:
 *
 *   PULL_ROWS  ids, by table               ROWS  the rows; to the others only that the
 *   PUSH_ROWS  gradients of the rows             message was taken
 *          that the step has pulled
 *   LOAD_ROWS  rows, with their state
 *   SAVE_ROWS  asks for a part of a table
 *   KEEP_ROWS  sets a point to which
 *          all tables can go back
 *   RETURN_ROWS  goes back to it
 *
 * A reader is a process that is no member: it has the readers' secret (roster.h), reads
 * rows, and changes nothing. Its routing id has that secret and a number of its own
 * (wire_socket.h), and its rank is PS_WIRE_READER. It numbers its messages, each of
 * which is answered once, at once, by its number; it asks again where no answer comes.
 *
 *   reader -> shard                    shard -> reader
 *   ASK_TABLES                         TABLES  which tables the job has
 *   READ_ROWS  ids, by table           READ    the rows after `step` steps of the rows
 *                                      SOON    the job has not begun its steps: its rows
 *                                              may still come from a file
 *                                      ERROR   frame 2: UTF-8; of the reader's message
 *                                              alone: the job goes on
 *
 * With rows.buddy the rows of each server are kept a second time, by the next server
 * (server r's by (r + 1) mod servers): each shard's by the shard of the same place there,
 * its twin. The shard connects to its twin as a worker does; its routing id is its index
 * and the secret that servers show each other (roster.h). It numbers its messages, each
 * of which is answered once, in their order, by its number; over a new connection it
 * sends those again that are not answered. The twin ignores those that do not follow the
 * last one: what is missing comes again before them. The bodies (rows_body.h) are whole:
 * of PS_WIRE_PIECE_BYTES at most, or with one row.
 *
 *   shard -> twin                      twin -> shard
 *   TWIN_POINT  rows up to a point     TWIN  what the twin wants to hear, or a page
 *          are to come, or have all
 *          come
 *   TWIN_ROWS  some of them
 *   TWIN_ASK  asks for a page of the
 *          rows at a point: of a shard
 *          that has lost them
 *
 * A worker numbers its messages of rows to a shard, and the shard answers each once, in
 * that order. `step` counts the steps of the rows: a PULL_ROWS of step s is answered when
 * all workers' PUSH_ROWS of step s - 1 are applied. After a RETURN_ROWS the step is that
 * of the point. A body of `count` bytes travels in
 * pieces, in order, so that chunks need not wait behind it: a payload is a piece, which
 * begins at byte `at`. Over a new connection an unanswered body begins again with its
 * first byte. The shard returns the credit of each piece at once.
 *
 * GROUPS, in jobs without a model: count groups of eight little-endian doubles
 * (param_groups.h), never encoded. It has no answer and takes no credit; a worker sends
 * the last ones again over a new connection, and a shard ignores those that it has. A
 * PUSH names the newest GROUPS that were sent before it (`groups`). Without these the
 * shard drops it: they were lost with a connection, and both come again.
 *
 * FETCH and RESTORE are for checkpoints. The arrays are the optimizer's states (0 to 3)
 * and the weights (4), always as float32, whatever the codec, and in the message with
 * shared memory too. Except: a FETCH with PS_CODEC_SHM is of a worker that needs its
 * gradient no more; the shard writes the array over it, and STATE has PS_CODEC_SHM and
 * no payload. For a chunk whose weights were restored, INIT carries the weights that the
 * workers last received. Array 5, in jobs without a model, is the steps that each tensor
 * has missed (absent.h), a uint32_t in each of its elements. Array 255 is the shard's
 * step rule (step_rule.h), which is only fetched. The INIT of a resumed job carries the
 * job's step.
 *
 * What a worker has sent is answered by READY (HELLO), WEIGHTS (INIT, PUSH, PULL),
 * EXACT_WEIGHTS, STATE, RESTORED and LEFT. Over a new connection the worker sends HELLO,
 * and then again every message that is unanswered. The shard counts a message once and
 * answers it again. Credits start anew with every HELLO: bytes that were on the way
 * before it are not returned.
 *
 * WEIGHTS of codec NONE are the weights; of another codec they are the encoded change
 * since version step - 1, to be added. EXACT_WEIGHTS is never encoded.
 *
 * Version v of the weights is their state after v optimizer steps: a PUSH of step s (from
 * 0) is answered with WEIGHTS of step s + 1. A push's identity is (step, rank, chunk).
 * Where workers go on at their own pace, each counts its own pushes: step is the number
 * of a worker's push, and of the answer, and says nothing of the others.
 */
#ifndef PS_WIRE_H
#define PS_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "codec.h"
#include "err.h"

enum { PS_WIRE_VERSION = 10, PS_WIRE_HEADER_MAX = 80 };

/* Bytes of a body of rows, and of a piece of it, at most. */
enum { PS_WIRE_BODY_BYTES = 1 << 30, PS_WIRE_PIECE_BYTES = 256 << 10 };

/* Of readers: the body of READ_ROWS, and the rows that answer it, at most. They keep the
 * workers waiting for a few milliseconds. */
enum { PS_WIRE_ASKED_BYTES = 128 << 10, PS_WIRE_READ_BYTES = 4 << 20 };
#define PS_WIRE_READER UINT32_MAX

/* Of messages between a shard and its twin, at most: with the longest row. */
enum { PS_WIRE_TWIN_BYTES = 1 << 20 };

/* `flags` in WEIGHTS, where workers go on at their own pace: with these weights all
 * workers rest; and the job is over; the gradient that they answer did not count. */
enum { PS_WIRE_REST = 1, PS_WIRE_OVER = 2, PS_WIRE_DROPPED = 4 };

/* `array` in FETCH, RESTORE and STATE. */
enum { PS_WIRE_STATE_WEIGHTS = 4, PS_WIRE_STATE_MISSED = 5, PS_WIRE_STATE_RULE = 255 };

/* name, number, sender, has a payload */
#define PS_MSG_MAP(X)                                                                    \
    X(HELLO, 1, WORKER, false)                                                           \
    X(INIT, 2, WORKER, true)                                                             \
    X(PUSH, 3, WORKER, true)                                                             \
    X(PULL, 4, WORKER, false)                                                            \
    X(BYE, 5, WORKER, false)                                                             \
    X(EXACT, 6, WORKER, false)                                                           \
    X(FETCH, 7, WORKER, false)                                                           \
    X(RESTORE, 8, WORKER, true)                                                          \
    X(GROUPS, 9, WORKER, true)                                                           \
    X(PULL_ROWS, 10, WORKER, true)                                                       \
    X(PUSH_ROWS, 11, WORKER, true)                                                       \
    X(LOAD_ROWS, 12, WORKER, true)                                                       \
    X(SAVE_ROWS, 13, WORKER, true)                                                       \
    X(KEEP_ROWS, 14, WORKER, true)                                                       \
    X(RETURN_ROWS, 15, WORKER, true)                                                     \
    X(READY, 16, SHARD, false)                                                           \
    X(WEIGHTS, 17, SHARD, true)                                                          \
    X(CREDIT, 18, SHARD, false)                                                          \
    X(STALE, 19, SHARD, false)                                                           \
    X(ERROR, 20, SHARD, true)                                                            \
    X(EXACT_WEIGHTS, 21, SHARD, true)                                                    \
    X(LEFT, 22, SHARD, false)                                                            \
    X(STATE, 23, SHARD, true)                                                            \
    X(RESTORED, 24, SHARD, false)                                                        \
    X(ROWS, 25, SHARD, true)                                                             \
    X(ASK_TABLES, 26, READER, false)                                                     \
    X(READ_ROWS, 27, READER, true)                                                       \
    X(TABLES, 28, SHARD, true)                                                           \
    X(READ, 29, SHARD, true)                                                             \
    X(SOON, 30, SHARD, false)                                                            \
    X(TWIN_POINT, 31, SERVER, true)                                                      \
    X(TWIN_ROWS, 32, SERVER, true)                                                       \
    X(TWIN_ASK, 33, SERVER, true)                                                        \
    X(TWIN, 34, SHARD, true)

typedef enum ps_msg_kind {
#define PS_MSG_ENUM(name, number, sender, payload) PS_MSG_##name = number,
    PS_MSG_MAP(PS_MSG_ENUM)
#undef PS_MSG_ENUM
} ps_msg_kind;

/* What the kind does not say is 0 after ps_wire_decode, and not sent by ps_wire_encode.
 */
typedef struct ps_wire_header {
    uint8_t version;
    uint8_t kind;
    uint64_t nonce;
    uint32_t epoch;
    uint32_t rank;
    uint64_t step;
    uint32_t chunk;
    uint8_t codec; // of the payload; PS_CODEC_SHM: it is in shared memory. HELLO: all are
    uint64_t count;  // of the payload's elements; of groups; of a whole body's bytes
    uint64_t credit; // from shards: bytes that are given back
    union {
        struct {             // HELLO, READY
            uint64_t number; // of the worker's HELLO, from 1
            /* HELLO: ps_sync_order's `back` of the order that took the dead one's place
             * away; 0: of a worker that is in the job from the start. A smaller one than
             * the shard knows comes from the dead one. */
            uint64_t back;
            /* From now on the PUSHes and GROUPS of the worker, and the WEIGHTS that
             * answer its PUSHes, travel through rings in shared memory (wire_rings.h).
             * They outlive a lost connection, so nothing of them is sent again. */
            bool rings;
        } hello;
        struct {              // PUSH
            uint64_t groups;  // 1 + the step of the newest GROUPS that it was sent after
            uint32_t step_of; // 1 + the optimizer that makes the step; 0: all of them
        } push;
        struct { // WEIGHTS, EXACT_WEIGHTS
            /* The bits of the float32 loss scale of step `step` (loss_scale.h), the same
             * in all chunks of a version; smaller than that of the version before when
             * the step between them was skipped. 0 without loss scaling. */
            uint32_t scale;
            uint32_t flags; // PS_WIRE_REST, PS_WIRE_OVER, PS_WIRE_DROPPED
        } weights;
        struct { // FETCH, STATE, RESTORE, RESTORED
            uint64_t array;
        } state;
        struct {             // of rows, by number PULL_ROWS to RETURN_ROWS; ROWS;
                             // of and to readers, of and to twins
            uint64_t number; // of the sender's message to this shard, from 1
            uint64_t at;     // of the piece in the body
        } rows;
        struct {              // STALE
            uint32_t present; // member epoch
        } stale;
        struct { // BYE
            /* The job goes on with another table of tensors (ps_member_next_table). */
            uint32_t returns; // 1; 0: the worker is done
        } bye;
    };
} ps_wire_header;

/* Writes the header; *bytes: its size (at most PS_WIRE_HEADER_MAX). Cannot fail. */
void ps_wire_encode(const ps_wire_header *h, uint8_t out[PS_WIRE_HEADER_MAX],
                    size_t *bytes);

/* Reads frame 1. PROTOCOL when it is not exactly such an array, of another version, or of
 * an unknown kind or codec. Does not allocate. */
ps_err ps_wire_decode(const void *frame, size_t bytes, ps_wire_header *h);

/* Whether messages of the kind carry a payload. */
bool ps_wire_kind_has_payload(int kind);
/* Whether the message has a second frame. A payload in shared memory is not a frame. */
bool ps_wire_has_payload(const ps_wire_header *h);
/* Whether it is a worker's message of rows. */
static inline bool ps_wire_is_rows(int kind)
{
    return kind >= PS_MSG_PULL_ROWS && kind <= PS_MSG_RETURN_ROWS;
}
/* Whether workers send the kind; otherwise shards do, or it is unknown. */
bool ps_wire_from_worker(int kind);
/* Whether readers send the kind. */
bool ps_wire_from_reader(int kind);
/* Whether shards send the kind to their twins. */
bool ps_wire_from_server(int kind);
const char *ps_wire_kind_name(int kind);

#endif
