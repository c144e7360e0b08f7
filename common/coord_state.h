/* What the coordinator's thread knows of the job, and how it speaks to members. For
 * coordinator.c and its parts alone: coord_end, coord_admission, coord_alive. */
#ifndef PS_COORD_STATE_H
#define PS_COORD_STATE_H

#include <pthread.h>

#include "coord_board.h"
#include "coordinator.h"

typedef enum ps_coord_state {
    PS_COORD_JOINING,
    PS_COORD_RUNNING,
    PS_COORD_ENDED,
    PS_COORD_ABORTED
} ps_coord_state;

enum { PS_COORD_OFFENDERS = 64 };

typedef struct ps_coord_peer {
    ps_control_id id;
    ps_roster_entry entry;
    uint64_t heard_ns;
    uint64_t lost_ns; // its connection closed then; 0: it stands
    int fd;           // of its connection, here
    bool left;        // said LEAVE
    bool gone;        // nothing more will come
    bool leaving;     // waits for the answer to LEAVE
    uint64_t leave_request, leave_ms;
    ps_deadline leave_deadline;
} ps_coord_peer;

/* Where a message came from: any routing id, perhaps not one of ours. */
typedef struct ps_coord_sender {
    const void *id;
    size_t bytes;
    int fd;
    ps_coord_peer *member; // NULL: none of the job's members
} ps_coord_sender;

struct ps_coordinator {
    ps_coordinator_options o; // its strings are owned
    char *job, *where;
    char endpoint[PS_ENDPOINT_MAX];
    uint64_t nonce;
    uint32_t epoch;
    void *zmq_context, *router, *monitor;
    int stop_fd;
    pthread_t thread;
    bool thread_started;
    char *last_reason; // written before stop_fd, read by the thread after it

    // The rest belongs to the thread.
    ps_coord_state state;
    char reason[PS_CONTROL_TEXT_MAX];
    ps_coord_peer *peers; // room for all members
    int n_peers;
    ps_coord_board *board;
    uint64_t next_beat_ns, last_round_ns;
    uint64_t offenders[PS_COORD_OFFENDERS];
    uint64_t n_offences;
};

/* Messages; m's nonce is set. What cannot be sent is logged: a member that does not get
 * it is noticed by its silence, or asks again. */
void ps_coord_send_raw(ps_coordinator *c, const void *id, size_t id_bytes, ps_control *m);
void ps_coord_send(ps_coordinator *c, const ps_coord_peer *p, ps_control *m);
void ps_coord_send_text(ps_coordinator *c, const ps_coord_peer *p, ps_control_kind kind,
                        const char *text);
/* FAIL with the present error message. */
void ps_coord_send_fail(ps_coordinator *c, const ps_coord_sender *to, uint64_t request,
                        ps_err code);
/* Logs what a sender did wrong (the present error message) once per sender, counts it,
 * and tells it. */
void ps_coord_complain(ps_coordinator *c, const ps_coord_sender *from, uint64_t request,
                       ps_err code);

/* "worker 2 (host b)". */
void ps_coord_describe(const ps_coord_peer *p, char *out, size_t cap);

#endif
