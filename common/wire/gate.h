/* Decides who may use the ROUTER sockets of a ZeroMQ context, and bounds what any other
 * peer may cost.
 *
 * ROUTERs of members ask for a secret (secret.h) in the handshake of a connection: before
 * that, no message and no routing id is taken. libzmq asks the gate over ZAP
 * (rfc.zeromq.org/spec/27). A peer without one is not answered: its connection is closed.
 * In a job without keys the peer shows its secret, by ZeroMQ's PLAIN mechanism. In a job
 * with keys (curve.h) the secret is its secret key, and it is proven and not shown.
 *
 * A door asks for no secret. In a job with keys its peers prove the key of a role, and
 * ps_gate_role tells which.
 *
 * libzmq bounds a frame, but neither the frames of a message nor the connections. So the
 * gate watches each connection until it is proven; those of a door are
 * watched for their whole life. A connection that lasts too long, has sent
 * too much, or is the oldest of too many is shut down.
 *
 * It has no thread: its owner polls ps_gate_items and calls ps_gate_turn.
 */
#ifndef PS_GATE_H
#define PS_GATE_H

#include <stdbool.h>
#include <stdint.h>
#include <zmq.h>

#include "curve.h"
#include "secret.h"

enum {
    PS_GATE_SOCKETS_MAX = 1024,
    PS_GATE_MEMBER_BYTES = 4096,    // before a secret is shown: a handshake is shorter
    PS_GATE_DOOR_BYTES = 256 << 10, // in the life of a connection to a door
    PS_GATE_PATIENCE_MS = 10000,    // for a handshake; the life of a connection to a door
    PS_GATE_STRANGERS = 256         // connections that are not proven, at a time
};

typedef enum ps_gate_kind {
    PS_GATE_MEMBERS, // a secret is asked for
    PS_GATE_DOOR     // no secret is asked for: connections are short and small
} ps_gate_kind;

typedef struct ps_gate ps_gate;

typedef struct ps_gate_options {
    void *zmq_context; // borrowed; has one gate at most
    int n_members; // that many connections more than PS_GATE_STRANGERS may be unproven
    uint64_t patience_ms;
    const ps_curve *curve; // borrowed; NULL or without keys: plain
    /* The secret of the i-th member, borrowed until the next call; NULL when there are
     * fewer. Called by ps_gate_turn. */
    const ps_secret *(*secret_of)(void *owner, int i);
    /* A connection of a ROUTER of members has closed, with the descriptor that ZMQ_SRCFD
     * told. May be NULL. Called by ps_gate_turn. */
    void (*closed)(void *owner, int fd);
    void *owner;
} ps_gate_options;

ps_err ps_gate_create(const ps_gate_options *options, ps_gate **out);
/* Must be called after the watched sockets were unwatched and before the context ends. */
void ps_gate_destroy(ps_gate **gate);

/* Watches a ROUTER, or the STREAM of a door. Must be called before it binds, by the
 * thread that owns it. */
ps_err ps_gate_watch(ps_gate *gate, void *router, ps_gate_kind kind);
/* Must be called before the ROUTER is closed, by the thread that owns it. */
void ps_gate_unwatch(void *router);

/* Opens the gate. Until then connections wait. */
void ps_gate_open(ps_gate *gate);

/* What to poll: items has room for ps_gate_n_items. ps_gate_poll_ms: how long at most
 * (-1: no limit). */
int ps_gate_n_items(const ps_gate *gate);
void ps_gate_items(const ps_gate *gate, zmq_pollitem_t *items);
int ps_gate_poll_ms(const ps_gate *gate);

/* Handles everything that is pending; never blocks. */
void ps_gate_turn(ps_gate *gate);

/* The role that the sender of a message at a door has proven. False without keys. */
bool ps_gate_role(zmq_msg_t *received, ps_role *out);

#endif
