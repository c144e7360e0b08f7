/* A coordinator and the processes of its job in one struct: the real coordinator
 * (coordinator/coord_*.c, the codec of its messages, the roster), with queues of messages
 * where it has sockets, and stand-ins for the members (joining_stand_in.c).
 *
 *     1 or 2 servers, up to 3 workers; server 0's process has the coordinator
 *
 *     process: JOIN, HERE, GATHER, ... -> up[] -> ps_coord_turn
 *     process <- down[] <- ADMIT, WELCOME, ABORT, ... <- what the coordinator sends
 *
 * Everything that changes lies in W, at fixed addresses: memory that the coordinator
 * allocates comes out of W.memory. So a state is a copy of W, and copying it back brings
 * the job back. The clock stands still; a deadline passes when the search says so.
 *
 * What TCP and libzmq promise is modelled, and no more. Messages of a connection arrive
 * in order; of one that is closed or lost a tail is lost, either way, and the end is
 * noticed before or after what is left of it. A process's connections know nothing of
 * each other: what an earlier one has sent may come after what a later one has. */
#ifndef JOINING_WORLD_H
#define JOINING_WORLD_H

#include "coord_state.h"
#include "model_fault.h"

enum {
    SERVERS_MOST = 2,
    WORKERS_MOST = 3,
    MEMBERS = SERVERS_MOST + WORKERS_MOST, // servers first
    PER_MEMBER = 6,                        // connections at a time
    LINKS = MEMBERS * PER_MEMBER,
    QUEUE = 6,
    FD = 100, // of connection 0
    NOBODY = 255,
    PAGE = 2048,
    MEMORY = 64 * PAGE, // of the coordinator
    BLOCKS = 64
};

/* A connection of a process, to the door or to the ROUTER for members. */
typedef struct connection {
    bool used, at_door;
    uint8_t member, start; // the process
    bool open;             // at the process's end
    bool cut;              // lost: the process makes another one
    bool gone;             // at the coordinator's end: it has ended
    bool noted;            // the coordinator has noted its end
    bool shown;            // the ROUTER has taken its secret
    bool replaced;         // the ROUTER has a newer one of the same id
    uint8_t newer;         // than how many of that id
    ps_control_id id;
    uint8_t n_up, n_down;
    uint16_t up[QUEUE], down[QUEUE]; // frames (world_frame)
} connection;

typedef enum phase {
    PHASE_OUT,      // looks for the coordinator
    PHASE_DOOR,     // asks to join
    PHASE_ADMITTED, // says HERE
    PHASE_RUNS,     // is a member
    PHASE_ABORTED,  // knows that the job is over
    PHASE_AWAY,     // has not come yet, or has gone: the others go on without it
    PHASE_DONE,     // has ended in order
    PHASE_FAILED,   // has ended with an error
    PHASE_DEAD      // and is not started again
} phase;

typedef struct process {
    phase phase;
    uint8_t start; // how often it was started before
    uint8_t run;   // how often it has joined again: its id at the door is another
    uint8_t link;  // NOBODY: none
    uint8_t step, n_requests;
    uint16_t request;           // a frame, as long as it is asked
    bool asked, leaving, ended; // LEAVE is on its way; END has come
    // of elastic jobs
    uint8_t expected, newcomers; // workers, the next time; as worker 0 was told
    bool served;                 // has been a member
    bool told, regroups;         // to go; waits until the others regroup
    // of paced ones
    uint8_t push; // number of the next one
    bool is_back; // has taken a dead one's place
    int8_t rank;
    ps_secret secret;
    uint64_t nonce, roster; // roster: a hash of its entries
    ps_secret secrets[WORKERS_MOST + 2];
} process;

typedef struct block {
    uint32_t at, bytes;
    bool used;
} block;

typedef struct world {
    process processes[MEMBERS];
    connection links[LINKS];
    ps_coordinator *coordinator; // NULL: none runs
    ps_gate_options gate;        // its hooks
    void *(*thread)(void *);
    uint32_t generation;                                   // of the coordinator
    uint8_t deaths, cuts, aborts, delays, comings, goings; // that may still come
    uint8_t draws[MEMBERS];                                // secrets
    bool disturbed;                                        // something has failed
    uint32_t n_blocks, used;
    block blocks[BLOCKS];
    uint64_t memory_hash, pages; // as of the last turn; pages: those that are not zero
    uint64_t version;            // of the memory: a number of its own
    _Alignas(64) uint8_t memory[MEMORY];
} world;

/* One rule that the check itself breaks: it has to notice. */
typedef enum mistake {
    MISTAKE_NONE,
    MISTAKE_SECRETS_STAY,
    MISTAKE_CLOSED_IS_NOT_NOTED,
    MISTAKE_ABORT_IS_TOLD_ONCE,
    MISTAKE_END_IS_TOLD_ONCE,
    MISTAKE_NOTHING_IS_REPEATED,
    MISTAKE_OLD_START_WINS,
    MISTAKE_GOODBYE_IS_FORGOTTEN,
    MISTAKE_ENTRIES_LEAK
} mistake;

typedef struct scenario {
    const char *name;
    uint8_t servers, workers; // 0: 2
    uint8_t deaths, cuts;
    uint8_t aborts; // a member notices a death before the coordinator, and says so
    uint8_t delays; // a connection is lost for so long that its member seems dead
    uint8_t comings, goings; // of workers other than 0; one comes: it is the last one
    bool elastic;            // there are such
    bool paced;              // the policy backup: a dead worker's place is taken
    bool begun;              // all have joined when it begins
    bool alone;     // nobody joins again (recovery.rejoins=0) or is started again
    bool unranked;  // except for server 0, which the others look for
    bool uncounted; // whoever starts a process again gives it no PS_INCARNATION
    mistake mistake;
} scenario;

extern world W;
extern scenario S;

static inline uint32_t world_members(void)
{
    return S.servers + S.workers;
}

void world_open(const scenario *s);
void world_allow_faults(void); // those of the scenario
void world_copy(world *to, const world *from);
uint64_t world_hash(void);

/* ---- the coordinator ---- */

void world_start_coordinator(void);
void world_end_coordinator(void);  // in order, with its last words
void world_kill_coordinator(void); // with its process
/* The coordinator takes the next message of the connection; notes its end; or finds that
 * the i-th member has not mended its connection, or has not come, for too long. */
void world_up(uint32_t link);
void world_closed(uint32_t link);
void world_dead(uint32_t i);
bool world_can_push(uint32_t m);
void world_push(uint32_t m, uint64_t number); // a shard tells that the worker's is in
bool world_may_begin(void);                   // with fewer workers than expected
void world_begin(uint32_t host);              // it has waited for more for too long
bool world_may_be_dead(int i);
uint32_t world_process_of(uint32_t i);
bool world_has_ended(void);              // no worker is awaited
bool world_is_here(const connection *l); // for the coordinator

/* ---- messages ---- */

uint16_t world_frame(const ps_control *c); // its number
const char *world_frame_name(uint16_t frame);
void world_read_frame(uint16_t frame, ps_control *out);
void world_send(connection *l, uint16_t frame);
void world_lose_rest(uint32_t link);
uint8_t world_connect(uint32_t member, bool at_door, const ps_control_id *id);
/* Frees the connections of which nothing can be heard any more. */
void world_tidy(void);
void world_order_links(void);

/* ---- for the coordinator's code (joining_sockets.c) ---- */

#define WORLD_NOW UINT64_C(1000000000000)

typedef struct world_news { // what its sockets have for it
    connection *from;       // of a message; NULL: none
    int closed;             // a descriptor, or 0
} world_news;
extern world_news world_coming;
extern bool world_in_coordinator; // it runs: what is allocated is its own
extern uint64_t world_waited_ns;  // at its end its clock goes on
void world_clear(uint16_t *queue, uint8_t *n);
void world_forget_frames(void);

/* ---- the members' stand-ins ---- */

void stand_in_begin(void);
/* What a process does by itself, at once: another order would lead to the same. */
void stand_in_settle(void);
void stand_in_take(uint32_t m); // the next message of its connection
void stand_in_lose(uint32_t m); // what is left of them
bool stand_in_can_repeat(uint32_t m);
void stand_in_repeat(uint32_t m); // asks again, or its heartbeat
bool stand_in_can_cut(uint32_t m);
void stand_in_cut(uint32_t m);
void stand_in_reconnect(uint32_t m);
void stand_in_abort(uint32_t m);
void stand_in_die(uint32_t m);
bool stand_in_can_push(uint32_t m);
void stand_in_push(uint32_t m);
bool stand_in_can_go(uint32_t m);
void stand_in_go(uint32_t m); // is told to leave the job
void stand_in_come(uint32_t m);
bool stand_in_lives(uint32_t m);
bool world_is_final(void);

#endif
