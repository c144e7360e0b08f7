/* A probe of the network before a job: `ps-server --probe serve:PORT` on one host,
 * `ps-worker --probe HOST:PORT` on the others. psrun --doctor puts the answers in a
 * table.
 *
 * Over ZeroMQ, as a job's own messages, and encrypted where the job has keys: the client
 * sends a byte and gets it back, ROUNDS times (round-trip time), then sends blocks and
 * gets a byte for each (rate).
 */
#ifndef PS_PROBE_H
#define PS_PROBE_H

#include <stdio.h>

#include "curve.h"

typedef struct ps_probe_options {
    const char *what;
    const ps_curve *curve; // of this process; not NULL
    ps_role peer;          // with keys: the role of the end that serves
} ps_probe_options;

/* what: "serve:PORT" answers probes at that port of every interface (of the loopback,
 * without keys and net.insecure) for 60 s, or until standard input ends, after it has
 * printed a line of JSON; "HOST:PORT" measures and prints
 *   {"host": .., "address": this side's, "rtt_us": median, "mbit_s": ..}
 * within 20 s. NET or TIMEOUT when the other end cannot be reached, ARG when what has
 * neither form. */
ps_err ps_probe_run(const ps_probe_options *options, FILE *out);

#endif
