/* What a member's threads share: callers (member_calls.c, member_pace.c) and its control
 * thread (member.c). */
#ifndef PS_MEMBER_STATE_H
#define PS_MEMBER_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "clock_sync.h"
#include "event.h"
#include "job_view.h"
#include "member.h"
#include "pace.h"

/* A call that waits for its answer. In the list until the caller takes it out. */
typedef struct ps_member_request {
    struct ps_member_request *next;
    uint64_t number;
    zmq_msg_t message;   // kept, to be sent again over a new connection
    bool sent, answered; // sent: over the present connection
    ps_err code;
    char text[PS_CONTROL_TEXT_MAX];
    void *value; // owned
    size_t bytes;
} ps_member_request;

/* A step that the coordinator is to be told of. */
typedef struct ps_member_pace_note {
    struct ps_member_pace_note *next;
    uint64_t step;
    unsigned part;
    size_t n;
    double values[];
} ps_member_pace_note;

struct ps_member {
    bool names_straggler;
    bool watches_stalls; // its own: without links they decide nothing (straggler.h)
    uint64_t heartbeat_ms, dead_after_ms;
    bool recovers;
    void *zmq_context;
    ps_joining joined;   // constant once the thread has started, which owns its sockets
    uint64_t silence_ms; // ps_member_silence_ms
    // Owned by the thread:
    uint64_t heard_ns, lost_ns, next_beat_ns, last_round_ns;
    bool was_connected;
    bool refused;            // since lost_ns: the coordinator's process is gone
    bool aborts, interrupts; // has told the coordinator to
    ps_clock_sync clock;
    uint64_t n_bursts;
    ps_stall stall;
    bool misses_coordinator;
    atomic_bool knows_clock;
    _Atomic int64_t ahead_ns; // of the coordinator's clock
    _Atomic uint64_t down_ns; // since when its connection is down; 0: it is up

    pthread_t thread;
    bool thread_started;
    ps_event wake, abort, end;
    atomic_bool aborted; // set after reason is written
    atomic_bool interrupted;
    atomic_int newcomers;
    _Atomic uint64_t closed; // stretches
    atomic_bool leaving;     // the work is done and LEAVE is on its way
    pthread_mutex_t lock;    // never held across I/O
    pthread_cond_t changed;
    // Under the lock:
    ps_member_request *requests;
    ps_member_pace_note *paces, **last_pace;
    int n_paces;
    ps_straggler straggler;
    uint64_t last_number;
    bool stop, ended, left;
    bool deserted; // the coordinator ended while this member was leaving
    bool said_bye;
    bool tell_abort; // the coordinator must be told the reason
    bool tell_interrupt;
    int n_told; // values to be told; 0: none are new
    double told[PS_METRICS];
    char told_address[PS_VIEW_ADDRESS_MAX];
    char reason[PS_CONTROL_TEXT_MAX];
    ps_err cause;
    int next_workers; // 0: as many as now
};

/* When the member has joined, before its thread starts. */
void ps_member_pace_init(ps_member *m, const ps_member_options *o);
/* The control thread: sends the steps that wait to be told; those that cannot be sent now
 * are forgotten. */
void ps_member_pace_send(ps_member *m);
/* As the coordinator has sent them; numbers out of range are ignored. */
void ps_member_set_straggler(ps_member *m, uint64_t cause, uint64_t role, uint64_t rank);
/* Names the coordinator's process, which nobody else can, once it has been silent for
 * that long, and until it is heard again. */
void ps_member_note_silence(ps_member *m, uint64_t silent_ms);
/* How long the control thread may wait for messages. */
int ps_member_poll_ms(ps_member *m);
void ps_member_pace_fini(ps_member *m);

#endif
