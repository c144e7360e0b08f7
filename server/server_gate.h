/* The gate (gate.h) of a server's shards: one thread for all of them, so that strangers
 * cost the shards no time. */
#ifndef PS_SERVER_GATE_H
#define PS_SERVER_GATE_H

#include "gate.h"

typedef struct ps_server_gate ps_server_gate;

/* zmq_context: the shards'. curve: borrowed until destroy. *out is owned by the caller.
 */
ps_err ps_server_gate_create(void *zmq_context, const ps_curve *curve, int n_members,
                             ps_server_gate **out);
/* The gate that watches the shards; borrowed. They are given to it before start. */
ps_gate *ps_server_gate_of(ps_server_gate *g);
/* Starts the thread. Nobody gets through yet. */
ps_err ps_server_gate_start(ps_server_gate *g);
/* From now on connections that show one of n secrets get through. The secrets are
 * borrowed until destroy. */
void ps_server_gate_open(ps_server_gate *g, const ps_secret *secrets, int n);
/* After the shards have stopped, before the context ends. */
void ps_server_gate_destroy(ps_server_gate **g);

#endif
