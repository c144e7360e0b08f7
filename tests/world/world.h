/* One deterministic world: all processes of a job in one process, with virtual time.
 *
 * The programs are the real ones. What they call to wait, to look at the clock, to draw a
 * random number or to talk to each other is replaced when the program ps-world is linked
 * (--wrap, world_libc.c) or simply not libzmq (world_zmq.c). A thread of theirs is a
 * task: a stack and thread-local variables of its own, in the one real thread. Who gets
 * it next is drawn from the seed among those that can go on; where nobody can, the clock
 * goes on to the next event or deadline. So a seed gives the same run each time.
 *
 * A process of the world is a set of tasks. Killed, its tasks never run again, and its
 * connections are gone; what it held is never freed: each run of ps-world's seeds is a
 * process of its own.
 */
#ifndef WORLD_H
#define WORLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { WORLD_PROCESSES = 6000, WORLD_NAME = 24 };

typedef struct world_process {
    char name[WORLD_NAME];
    int index, host;    // those of one host share an address
    char address[24];   // its host's: each has a host of its own
    uint64_t frozen_ns; // until then its tasks stand still
    bool dead;
    bool ended;   // main has returned `code`
    bool was_cut; // from a peer that it had connected to
    int code;
    int64_t clock_s;    // by how much its host's clock on the wall is wrong
    int signal;         // that it was sent; 0: none
    struct task *tasks; // that have not ended
    int (*main)(void *arg);
    void *arg;
} world_process;

/* Runs first(arg) as the first process, and everything that it starts, until it returns:
 * its result. Calls stuck(why) where nobody can go on any more, or at the end of the
 * virtual time. */
typedef struct world_options {
    uint64_t seed;
    int edition;       // of what seeds mean (world_since)
    uint64_t most_ns;  // virtual
    uint64_t schedule; // what happens when
    uint64_t kind;     // of job: what world_choice follows; 0: the seed
    bool trace;        // to stdout: a line per message, event and fault
    uint64_t *hash;    // NULL, or of the lines of the trace
    bool measures;     // how long tasks run
    FILE *errors;      // where world_wrong writes
} world_options;
int world_run(const world_options *options, int (*first)(void *arg), void *arg);

/* ---- for tasks ---- */

uint64_t world_now(void); // a call takes time, too
uint64_t world_time(void);
/* A number below `below`, from the seed. */
uint64_t world_draw(uint64_t below);
/* Waits until ready(arg) holds; false: `until` has passed before. UINT64_MAX: for ever.
 */
bool world_wait(bool (*ready)(void *arg), void *arg, uint64_t until_ns);
/* What a task waits for may hold now: of a process other than the caller's, and other
 * than the first one, which is looked at each time. */
void world_touch(const world_process *p);
void world_touch_all(void);
/* Lets others run. */
void world_yield(void);
world_process *world_self(void);
const world_process *world_running(void);         // NULL: the world has not begun
const world_process *world_process_at(int index); // NULL: there are not that many
/* Another task of this process. */
void *world_start_task(const char *name, void *(*run)(void *), void *arg);
/* For whoever looks at it. */
void world_name_task(void *task, const char *name);
/* What the tasks of that name have done so far; time: where the world measures it. */
typedef struct world_work {
    uint64_t ns;              // of processor time
    uint64_t messages, bytes; // sent, and received
} world_work;
world_work world_work_of(const char *name);
void world_note_message(uint64_t bytes); // of the present task
void world_join_task(void *task, void **result);

/* ---- processes and events ---- */

/* host: in whose place it starts, at the same address; NULL: a host of its own. */
world_process *world_start(const char *name, const world_process *host,
                           int (*run)(void *), void *arg);
/* At once. A task that has killed its own process calls world_die. */
void world_kill(world_process *p);
void world_die(void);
void world_freeze(world_process *p, uint64_t for_ns);
void world_clock_jumps(world_process *p, int64_t by_s);
void world_signal(world_process *p, int number);

/* Calls act(arg, number) at that time, by whichever task has the baton: it must not wait.
 */
void world_at(uint64_t at_ns, void (*act)(void *arg, uint64_t number), void *arg,
              uint64_t number);

/* The kind's own choice, which does not depend on what has run: for what a job is. */
uint64_t world_choice(uint64_t what, uint64_t below);
uint64_t world_choice_of(uint64_t kind, uint64_t what, uint64_t below);

/* What a seed's job and faults are drawn from has grown. A seed that failed once stays
 * what it was: it is run with its edition. */
typedef enum world_edition {
    WORLD_FIRST,  // until 30 November
    WORLD_KEYS,   // keys, full disks, many members, rows in elastic jobs
    WORLD_STARTS, // starts that are late or have no number, slow readers
    WORLD_ROWS,   // at each worker's pace
    WORLD_NOW = WORLD_ROWS
} world_edition;
bool world_since(world_edition e);

/* A line of the trace. */
__attribute__((format(printf, 1, 2))) void world_say(const char *format, ...);
bool world_traces(void); // or only hashes them
bool world_measures(void);
bool world_logs(void); // whether the programs' own lines are shown
/* Ends the run: the seed has failed. Does not return. */
__attribute__((format(printf, 1, 2), noreturn)) void world_wrong(const char *format, ...);

/* ---- files (world_libc.c) ---- */

/* A process is gone: its files are closed. */
void world_files_forget(const world_process *p);

/* ---- memory (world_memory.c) ---- */

typedef struct world_memory {
    uint64_t peak[2]; // the most that a server, and a worker, has had; 0: not known
} world_memory;
/* Notes them; disturbed: judges whether this run has had about as much as they say. */
void world_memory_judge(world_memory *m, bool disturbed);
uint64_t world_memory_of(const world_process *p); // bytes that it has now
/* It has ended by itself: judges that nothing of its is left. */
void world_memory_check_freed(const world_process *p);

/* ---- the disk (world_disk.c) ---- */

/* Before a write. Returns false where the disk has no room for it. */
bool world_disk_takes(int fd);
/* Until then no disk has room. */
void world_disk_fills(uint64_t until_ns);
/* Called before and after files are kept or get names; may kill the caller's process. */
extern void (*world_disk_moment)(void);
extern void (*world_fault_point)(
    const char *name);                     // at each PS_FAULT_POINT, may do so, too
extern void (*world_message_moment)(void); // after each message that is sent
/* What was not kept in this folder may be gone. */
void world_disk_loses_power(const char *folder);

/* ---- the network (world_zmq.c) ---- */

/* Breaks each connection between the two; what is on its way is lost from some message
 * on. NULL: any process. Returns how many. */
int world_cut(const world_process *a, const world_process *b);
/* Until then nothing passes between the two; what is sent waits. */
void world_part(const world_process *a, const world_process *b, uint64_t until_ns);
/* Until then its sockets give a message each so often: all, those of even numbers or
 * those of odd ones. */
typedef enum world_sockets { WORLD_ALL, WORLD_EVEN, WORLD_ODD } world_sockets;
void world_slow(const world_process *p, world_sockets which, uint64_t each_ns,
                uint64_t until_ns);
/* A process is gone: its connections end. */
void world_net_forget(const world_process *p);
/* The ROUTER's peer of that id, if it has one, loses its connection. */
void world_turn_out(const void *router, const void *id, size_t bytes);
/* Whether somebody listens there. */
bool world_listens(const char *endpoint);
/* The endpoint of one of the sockets where somebody listens, NULL: of none. for_members:
 * it asks for a secret, or for keys. */
const char *world_listener(uint64_t number, bool *for_members);
/* What somebody hears who listens on the wire, of a message that arrives at a socket to
 * which others connect. Borrowed during the call. */
enum { WORLD_FRAMES = 10, WORLD_ID = 64 };
typedef struct world_heard {
    const void *sender, *receiver; // sockets
    uint8_t id[WORLD_ID], secret[WORLD_ID];
    size_t id_bytes, secret_bytes;
    int n;
    struct {
        void *bytes;
        size_t n;
    } frames[WORLD_FRAMES];
} world_heard;
extern void (*world_overheard)(const world_heard *);
/* The public key of who listens there; false: without keys. is_door: whoever has a role's
 * key may come in, else members alone. */
enum { WORLD_KEY = 32 };
bool world_key_of(const char *endpoint, uint8_t out[WORLD_KEY], bool *is_door);
/* Whether this socket is connected to one that asks for a secret or for keys; has_role:
 * other than a door. */
bool world_is_let_in(const void *socket, bool has_role);
/* A socket, or its process, is gone. */
bool world_is_closed(const void *socket);
/* Who sent what was heard has come to that endpoint with another secret since. */
bool world_has_renewed(const char *endpoint, const world_heard *heard);
/* Descriptors of the world begin here: events, connections, monitors. */
enum { WORLD_FD = 1 << 20 };
bool world_fd_readable(int fd);
bool world_monitor_readable(int fd);
bool world_shm_readable(int fd); // a door for shared memory (world_shm.c)

#endif
