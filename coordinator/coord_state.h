/* What the coordinator's thread knows of the job, and how it speaks to members. For
 * coordinator.c and its parts alone: coord_elastic, coord_pace, coord_end, coord_back,
 * coord_admission. */
#ifndef PS_COORD_STATE_H
#define PS_COORD_STATE_H

#include "coord_board.h"
#include "coordinator.h"
#include "door.h"
#include "event.h"
#include "gate.h"
#include "thread.h"

typedef struct ps_coord_pace ps_coord_pace; // coord_pace.h

typedef enum ps_coord_state {
    PS_COORD_JOINING,
    PS_COORD_RUNNING,
    PS_COORD_ENDED,
    PS_COORD_ABORTED
} ps_coord_state;

typedef struct ps_coord_peer {
    ps_secret secret;
    ps_control_id id;      // at the members' ROUTER
    ps_control_id door_id; // under which it asked to join
    ps_roster_entry entry;
    int asked_rank;        // the rank that it came with; < 0: none
    uint64_t incarnation;  // how often the process was started before
    bool here;             // has used its secret; until then it is not waited for long
    bool complained;       // a complaint about it was logged; one is enough
    uint64_t queued_bytes; // what was sent on this connection
    uint64_t heard_ns;
    uint64_t lost_ns; // when its connection closed, except after a silence; 0: it is open
    int fd;           // this side's descriptor of its connection
    bool away;        // dead, and the others go on; a process may take its place
    bool is_back;     // one has
    bool left;        // said LEAVE
    bool gone;        // nothing more will come
    bool leaving;     // waits for the answer to LEAVE
    uint64_t leave_request, leave_ms;
    ps_deadline leave_deadline;
} ps_coord_peer;

/* Where a member's message came from. */
typedef struct ps_coord_sender {
    ps_control_id id;
    ps_coord_peer *member;
} ps_coord_sender;

/* A process that waits until the workers regroup. It asks again all the time. */
typedef struct ps_coord_newcomer {
    ps_control_id door_id;
    uint64_t heard_ns;
} ps_coord_newcomer;

/* Finds a member by its routing id in a time that does not grow with the job. The
 * coordinator does it for every message, and all members together send as many as there
 * are of them: with a search each, its work would grow with the square. */
typedef struct ps_coord_index {
    int *places; // a member's number in peers, and 1; 0: empty
    size_t n;    // a power of two, and at least twice the members
} ps_coord_index;

enum { PS_COORD_NEWCOMERS = 64 };

/* What may be on its way to one member: two values of the largest size. */
enum { PS_COORD_BACKLOG_MAX = 2 * PS_CONTROL_VALUE_MAX };

struct ps_coordinator {
    ps_coordinator_options o; // its strings are owned
    char *job, *where;
    char endpoint[PS_ENDPOINT_MAX]; // of the door
    int members_port;
    uint64_t nonce;
    ps_secret readers; // theirs (coord_readers.h)
    ps_secret twins;   // that servers show each other
    uint32_t epoch;
    void *zmq_context, *router;
    ps_door *door;
    ps_gate *gate;
    uint64_t silence_ms; // of the router's connections
    ps_event stop;
    ps_thread thread;
    char *last_reason; // written before stop is set, read by the thread after it

    // The rest belongs to the thread.
    ps_coord_state state;
    bool interrupted;                 // the workers are to end in order
    char reason[PS_CONTROL_TEXT_MAX]; // of an abort
    ps_err abort_code;
    int next_workers;    // of an abort: how many are expected afterwards; 0: as many
    int n_workers;       // of the job that runs; before: how many it waits for
    uint64_t waiting_ns; // since when enough workers are here; 0: they are not
    ps_coord_newcomer newcomers[PS_COORD_NEWCOMERS];
    int n_newcomers;
    uint64_t told_closed; // as ps_coord_orders_closed has it
    ps_coord_peer *peers; // room for all members
    int n_peers;
    ps_coord_index index; // of peers
    ps_coord_board *board;
    ps_coord_pace *pace; // NULL: not needed yet
    uint64_t next_beat_ns, last_round_ns;
    uint64_t next_look_ns; // at all members; 0: now
};

/* One turn of its thread: handles all that has come and all that is due; never blocks. */
void ps_coord_turn(ps_coordinator *c);

/* Sends a message and sets its nonce. A message that cannot be sent is logged: its member
 * asks again, or its silence is noticed. A member that takes nothing is sent nothing
 * (PS_COORD_BACKLOG_MAX). */
void ps_coord_send_to(ps_coordinator *c, const ps_coord_sender *to, ps_control *m);
void ps_coord_send(ps_coordinator *c, ps_coord_peer *p, ps_control *m);
/* FAIL with the present error message. */
void ps_coord_send_fail(ps_coordinator *c, const ps_coord_sender *to, uint64_t request,
                        ps_err code);
/* Tells a member what it did wrong: the present error message. Logs it once per member.
 */
void ps_coord_complain(ps_coordinator *c, const ps_coord_sender *from, uint64_t request,
                       ps_err code);

/* Sends an answer at the door, to any routing id. */
void ps_coord_send_at_door(ps_coordinator *c, const void *id, size_t id_bytes,
                           const ps_control *m);
/* Drops a message from a stranger. It is not answered, and few are logged. */
void ps_coord_drop_stranger(const char *what);

/* Bytes sent to the member that its host has not taken yet. */
uint64_t ps_coord_backlog(const ps_coord_peer *p);

/* "worker 2 (host b)". */
void ps_coord_describe(const ps_coord_peer *p, char *out, size_t cap);

/* Makes room for that many members. NOMEM. ps_coord_index_fini is safe after it failed.
 */
ps_err ps_coord_index_init(ps_coord_index *index, int n_members);
void ps_coord_index_fini(ps_coord_index *index);

/* Must be called after a member was added to c->peers, removed or moved. */
void ps_coord_index_renew(ps_coordinator *c);

/* The member whose secret the routing id has, or NULL. The time tells a stranger nothing:
 * the socket takes messages only from connections that have shown a secret (gate.h). */
ps_coord_peer *ps_coord_index_find(ps_coordinator *c, const ps_control_id *id);

#endif
