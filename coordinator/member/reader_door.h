/* How a process that is no member finds the shards of a job, to read rows (wire.h): it
 * asks at the coordinator's door. */
#ifndef PS_READER_DOOR_H
#define PS_READER_DOOR_H

#include "control.h"
#include "init_method.h"

/* What it is told. */
typedef struct ps_reader_pass {
    uint64_t nonce; // of the job
    ps_secret secret;
    char (*endpoints)[PS_ENDPOINT_MAX]; // (n) of the shards; owned
    size_t n;
} ps_reader_pass;

typedef struct ps_reader_door {
    void *zmq_context;     // borrowed
    const ps_curve *curve; // of a worker; borrowed
    const ps_init_method *at;
    const char *job; // "": any
} ps_reader_door;

/* Asks once. *later: it may be let in if it asks again: nobody listens there yet, nobody
 * answers until the deadline, or not all members are there. PEER: it is not let in, or
 * what listens there is no coordinator, or its job has keys and the reader none; NET,
 * TIMEOUT, ARG, IO: nobody was reached; PROTOCOL; INTERRUPTED. */
ps_err ps_reader_door_ask(const ps_reader_door *door, ps_deadline deadline,
                          ps_reader_pass *out, bool *later);
void ps_reader_pass_fini(ps_reader_pass *pass); // safe on a zeroed one

#endif
