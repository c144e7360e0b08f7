/* A probe of the network before a job: `ps-server --probe serve:PORT` on one host,
 * `ps-worker --probe HOST:PORT` on the others. psrun --doctor puts the answers in a
 * table.
 *
 * Over plain TCP: the client sends one byte and gets it back, ROUNDS times (round-trip
 * time), then sends BYTES and gets one byte when all have come (rate).
 */
#ifndef PS_PROBE_H
#define PS_PROBE_H

#include <stdio.h>

#include "err.h"

/* what: "serve:PORT" answers probes at that port of every interface for 60 s, or until
 * standard input ends, after it has printed a line of JSON; "HOST:PORT" measures and
 * prints
 *   {"host": .., "address": this side's, "rtt_us": median, "mbit_s": ..}
 * within 20 s. NET or TIMEOUT when the other end cannot be reached, ARG when what has
 * neither form. */
ps_err ps_probe_run(const char *what, FILE *out);

#endif
