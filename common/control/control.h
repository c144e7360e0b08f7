/* The control plane's messages between members and the coordinator, and their one encoder
 * and decoder.
 *
 * The coordinator has a door at the address that everybody knows, where a process asks to
 * join and is admitted or refused, and a ROUTER for members only. It tells the ROUTER's
 * port to the processes that it admits, together with a secret. The ROUTER takes no
 * message without a secret (gate.h), and answers only members.
 *
 * One ZeroMQ frame, a msgpack array of fixed length for each kind:
 *
 *   [version, kind, nonce, request, numbers (u64) ..., name?, text?, value?]
 *
 * DEALER (member, or a link of one of its threads) <-> ROUTER (coordinator). A member's
 * routing id is its secret and the number of the link (0: the member's own). So a member
 * that connects again is still the same member, and nobody can take its place. At the
 * door the id is random bytes of the same length. They identify a process that asks again
 * because the answer was lost.
 *
 * request is 0 in a message that needs no answer; otherwise exactly one DONE or FAIL with
 * that number follows. nonce is the job's; 0 where it is not known yet (JOIN, REFUSE).
 *
 *   process -> door
 *   JOIN       config hash, plan hash, world size, servers, incarnation (how often the
 *              process was started before); name: job; text: program version; value: a
 *              roster entry and the hashes of the configuration's sections. Repeated
 *              until it is answered
 *   READER     the process wants to read rows (wire.h), and to be no member. name: job;
 *              "": any; text: program version. Repeated until it is answered
 *
 *   door -> process
 *   ADMIT      port of the members' ROUTER; value: the secret
 *   REFUSE     1 if it may ask again soon; text: why the process cannot join, without
 *              details of the job
 *   SERVERS    to a reader: value: an array of the readers' secret and the endpoints of
 *              all shards, in their order
 *
 *   member -> coordinator
 *   HERE       the first message. Repeated every heartbeat until WELCOME
 *   HEARTBEAT
 *   CLOCK      its time; answered at once with CLOCK_IS (clock_sync.h)
 *   PACE       of a step: pace.h; no answer
 *   ABORT      error code, workers of the next job at this address (0: as many as now);
 *              text: why; the job is over for everybody
 *   GATHER     timeout ms; name; value: doubles. A barrier is one of no doubles
 *   PUT        name; value                   GET  timeout ms; name
 *   DROP       name: who may set the key needs it no more; it is as if never set
 *   NORM       of a server, by a link of each shard: step, shards, total blocks, 1 if all
 *              sums are wanted, else 0; value: as in gradnorm_sum.h; answered with
 *              NORM_SUM. For loss scaling alone: one block per shard, 0, or NaN when the
 *              step must be skipped
 *   PUSHED     of a server, by a link of each shard, where workers go on at their own
 *              pace (coord_orders.h): all chunks of a worker's push are in. Worker,
 *              number of its push, shards; 0, or over a new connection the next ORDER's
 *              number; fragment, and how many shards have chunks of it
 *   INTERRUPT  the workers are to end in order, as by a Ctrl-C
 *   LEAVE      timeout ms; DONE when this member may go
 *   STATUS     text: the address of its /metrics; value: doubles, in the order of the
 *              table of metrics (metric_table.h), then those of each embedding table
 *              (row_figures.h). No answer
 *   BYE        the last message; no answer
 *
 *   coordinator -> member
 *   WAIT       text: which members have not joined yet
 *   WELCOME    member epoch, rank; to a process that takes a dead worker's place where
 *              that one began (coord_orders.h), else zeros: push, stretch, rounds made,
 *              fragment; value: the roster, for servers with the workers' secrets
 *   HEARTBEAT
 *   CLOCK_IS   the time that CLOCK said, the coordinator's time; ns of CLOCK_MONOTONIC
 *   ABORT      as above; the job is over
 *   INTERRUPT  to workers: end in order
 *   DONE       value: the answer
 *   FAIL       error code; text
 *   NORM_SUM   step, bits of the double, 1 if all sums were wanted; value: the doubles,
 *              in their order, if they were
 *   ORDER      to shards: number; value: sync_codec.h
 *   CLOSE      to workers: how many stretches have all their versions (coord_orders.h)
 *   END        all workers have left
 *   STRAGGLER  to worker 0: the cause (straggler.h), role and rank
 *   NEWCOMERS  to worker 0 of an elastic job: how many processes wait to join
 */
#ifndef PS_CONTROL_H
#define PS_CONTROL_H

#include "mp.h"
#include "zsock.h"

enum {
    PS_CONTROL_VERSION = 11,
    PS_CONTROL_ID_BYTES = PS_SECRET_BYTES + 2,
    PS_CONTROL_NUMBERS = 6,
    PS_CONTROL_NAME_MAX = 256,
    PS_CONTROL_TEXT_MAX = 768,
    PS_CONTROL_GATHER_MAX = 65536, // numbers that are added up at once
    PS_CONTROL_VALUE_MAX = 64 << 20,
    PS_CONTROL_FRAME_MAX = PS_CONTROL_VALUE_MAX + 4096,
    PS_CONTROL_DOOR_FRAME_MAX = 64 << 10
};

/* name, number on the wire, count of numbers, has a name, a text, a value */
#define PS_CONTROL_MAP(X)                                                                \
    X(JOIN, 1, 5, 1, 1, 1)                                                               \
    X(HEARTBEAT, 2, 0, 0, 0, 0)                                                          \
    X(ABORT, 3, 2, 0, 1, 0)                                                              \
    X(GATHER, 4, 1, 1, 0, 1)                                                             \
    X(PUT, 5, 0, 1, 0, 1)                                                                \
    X(GET, 6, 1, 1, 0, 0)                                                                \
    X(NORM, 7, 4, 0, 0, 1)                                                               \
    X(LEAVE, 8, 1, 0, 0, 0)                                                              \
    X(BYE, 9, 0, 0, 0, 0)                                                                \
    X(INTERRUPT, 10, 0, 0, 0, 0)                                                         \
    X(HERE, 11, 0, 0, 0, 0)                                                              \
    X(STATUS, 12, 0, 0, 1, 1)                                                            \
    X(CLOCK, 13, 1, 0, 0, 0)                                                             \
    X(PACE, 14, 3, 0, 0, 1)                                                              \
    X(PUSHED, 15, 6, 0, 0, 0)                                                            \
    X(READER, 16, 0, 1, 1, 0)                                                            \
    X(DROP, 17, 0, 1, 0, 0)                                                              \
    X(WAIT, 32, 0, 0, 1, 0)                                                              \
    X(REFUSE, 33, 1, 0, 1, 0)                                                            \
    X(WELCOME, 34, 6, 0, 0, 1)                                                           \
    X(DONE, 35, 0, 0, 0, 1)                                                              \
    X(FAIL, 36, 1, 0, 1, 0)                                                              \
    X(NORM_SUM, 37, 3, 0, 0, 1)                                                          \
    X(END, 38, 0, 0, 0, 0)                                                               \
    X(ADMIT, 39, 1, 0, 0, 1)                                                             \
    X(NEWCOMERS, 40, 1, 0, 0, 0)                                                         \
    X(CLOCK_IS, 41, 2, 0, 0, 0)                                                          \
    X(STRAGGLER, 42, 3, 0, 0, 0)                                                         \
    X(ORDER, 43, 1, 0, 0, 1)                                                             \
    X(CLOSE, 44, 1, 0, 0, 0)                                                             \
    X(SERVERS, 45, 0, 0, 0, 1)

typedef enum ps_control_kind {
#define PS_CONTROL_ENUM(name, number, numbers, has_name, has_text, has_value)            \
    PS_CONTROL_##name = number,
    PS_CONTROL_MAP(PS_CONTROL_ENUM)
#undef PS_CONTROL_ENUM
} ps_control_kind;

/* A routing id. */
typedef struct ps_control_id {
    uint8_t bytes[PS_CONTROL_ID_BYTES];
} ps_control_id;

void ps_control_id_make(ps_control_id *id, const ps_secret *secret, unsigned link);
bool ps_control_id_is_of(const ps_control_id *id, const ps_secret *secret);
unsigned ps_control_id_link(const ps_control_id *id);

typedef struct ps_control {
    ps_control_kind kind;
    uint64_t nonce, request;
    union { // the kind's numbers, in the order above
        uint64_t number[PS_CONTROL_NUMBERS];
        struct {
            uint64_t config_hash, plan_hash, world_size, servers, incarnation;
        } join;
        struct {
            uint64_t epoch, rank, push, stretch, made, fragment;
        } welcome;
        struct {
            uint64_t code, next_workers;
        } abort;
        struct {
            uint64_t step, shards, blocks, wants_sums;
        } norm;
        struct {
            uint64_t step;
            double norm;
            uint64_t wants_sums;
        } norm_sum;
        struct {
            uint64_t rank, number, shards, next_order, fragment, holders;
        } pushed;
        struct { // CLOCK, CLOCK_IS
            uint64_t asked_ns, is_ns;
        } clock;
        struct {
            uint64_t step, part, stall;
        } pace;
        struct {
            uint64_t cause, role, rank;
        } straggler;
        uint64_t timeout_ms; // GATHER, GET, LEAVE
        uint64_t code;       // FAIL
        uint64_t for_now;    // REFUSE
        uint64_t port;       // ADMIT
        uint64_t order;      // ORDER
        uint64_t closed;     // CLOSE
        uint64_t newcomers;  // NEWCOMERS
    };
    char name[PS_CONTROL_NAME_MAX];
    char text[PS_CONTROL_TEXT_MAX];
    const void *value; // borrowed
    size_t bytes;
} ps_control;

/* Appends the message to w. w fails when the value is too long. */
void ps_control_write(ps_mp_writer *w, const ps_control *c);

/* Reads exactly one message; value points into frame. PROTOCOL when it is anything else;
 * *version (may be NULL) is set as soon as it could be read. Does not allocate. */
ps_err ps_control_read(const void *frame, size_t bytes, ps_control *c, uint64_t *version);

/* The message as one frame. */
ps_err ps_control_frame(zmq_msg_t *msg, const ps_control *c);

const char *ps_control_kind_name(int kind);

/* The error code of an ABORT or a FAIL. INTERNAL if the number is not a known code. */
ps_err ps_control_error(const ps_control *c);

/* Sends the message on a DEALER. */
ps_err ps_control_send(void *dealer, const ps_control *c);

/* Receives one message on a DEALER; *got is 0 when none came before the deadline. c
 * borrows from frame, which the caller closes when *got is 1. PROTOCOL when it is
 * malformed. */
ps_err ps_control_recv(void *dealer, ps_deadline deadline, zmq_msg_t *frame,
                       ps_control *c, int *got);

/* Sets the name. ARG when it is too long. */
ps_err ps_control_set_name(ps_control *c, const char *name);
/* Sets the text, cut where it is too long. */
void ps_control_set_text(ps_control *c, const char *text);

#endif
