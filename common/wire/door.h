/* A socket where anybody may say something: DEALERs that connect to it send messages of
 * one frame, and are answered.
 *
 * With keys (curve.h) it is a ROUTER: a peer has to prove a role's key first.
 * Without, it is a STREAM, and zmtp.h reads what comes. A ROUTER would not do: libzmq up
 * to 4.3.5 ends the process by an assertion when a connection is reset of which it has
 * stopped reading (ZMQ_RCVHWM) and whose next bytes are a PING; without that limit, short
 * messages would take gigabytes.
 *
 * A connection that sends anything that its owner does not want is closed at once. The
 * gate (gate.h) bounds how many there are, how long they live and how much they send. */
#ifndef PS_DOOR_H
#define PS_DOOR_H

#include "gate.h"
#include "zsock.h"

typedef struct ps_door ps_door;

typedef struct ps_door_options {
    void *zmq_context;     // borrowed
    ps_gate *gate;         // borrowed
    const ps_curve *curve; // borrowed; NULL or without keys: plain
    int64_t frame_max;
    int n_members; // about that many connections more than PS_GATE_STRANGERS may be open
} ps_door_options;

/* Binds, as ps_zsock_bind says. */
ps_err ps_door_open(const ps_door_options *options, const char *where,
                    char endpoint[PS_ENDPOINT_MAX], ps_door **out);
/* linger_ms: for answers that are on their way. */
void ps_door_close(ps_door **door, int linger_ms);
void *ps_door_socket(const ps_door *d); // to poll

typedef struct ps_door_message {
    const uint8_t *id; // the sender's routing id
    size_t id_bytes;
    const uint8_t *body;
    size_t body_bytes;
    bool is_proven; // with keys: the sender has proven the role
    ps_role role;
} ps_door_message;

/* Returns whether the sender may go on. The message is valid during the call. */
typedef bool ps_door_take(void *owner, const ps_door_message *m);

/* Handles what has come: at most n_parts parts, each of a few KB at most. Never blocks.
 */
void ps_door_turn(ps_door *d, int n_parts, ps_door_take *take, void *owner);

/* Takes the frame, also on failure. PEER when no such sender is connected. */
ps_err ps_door_send(ps_door *d, const void *id, size_t id_bytes, zmq_msg_t *frame);

#endif
