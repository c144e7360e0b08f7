/* How a process becomes a member of a job: it finds the coordinator, or starts it, and
 * asks to join until it is admitted or refused. The result is a connection, a rank and
 * the roster. What follows is in member.h. */
#ifndef PS_JOINING_H
#define PS_JOINING_H

#include "control.h"
#include "coord_orders.h"
#include "coordinator.h"
#include "init_method.h"
#include "roster.h"

typedef struct ps_member_options {
    const ps_config *config; // borrowed for the life of the member
    ps_role role;
    int rank; // -1: take a free one; PS_RANK_NOT_0: but not 0; the coordinator's host
              // gives its own
    int world_size; // workers of the job; the most of an elastic one
    /* Elastic jobs: the fewest workers (else 0), and how many this member's coordinator
     * waits for (0: not known). Whether it has served the job before, which then has a
     * worker 0. */
    int min_workers, expected_workers;
    bool goes_on;
    int n_servers; // servers of the job (0 in all-reduce mode)
    /* tcp://host:port or file:///path; the command line reader has resolved env://. NULL:
     * a job of this process alone. */
    const char *init_method;
    uint64_t plan_hash;
    int local_rank;       // -1: not given
    uint64_t incarnation; // how often this member's process was started before
    /* A server's data endpoints, one per shard, already bound ("tcp://10.0.0.1:40123").
     * In a wildcard endpoint (host 0.0.0.0, [::] or an asterisk) the host is replaced by
     * this process's address, which is known only after joining. So a server can simply
     * bind to "tcp://0.0.0.0:*". */
    const char *const *endpoints;
    int n_endpoints;
    ps_job_view *view; // for a coordinator in this process; borrowed; NULL: none
} ps_member_options;

typedef struct ps_joining {
    ps_member_options o; // borrows what the options borrow; read while joining
    void *zmq_context;   // borrowed
    ps_curve curve;      // of this process
    // The result:
    int rank;
    ps_coord_orders_reentry reentry; // push 0: it is in the job from the start
    ps_roster roster;
    ps_secret secret;                           // this process's own
    char address[PS_ADDRESS_MAX];               // this process's, on the network chosen
    char coordinator_endpoint[PS_ENDPOINT_MAX]; // of its door
    char members_endpoint[PS_ENDPOINT_MAX];     // of its ROUTER for members
    void *dealer, *monitor;      // the connection there, and what tells of its loss
    ps_coordinator *coordinator; // NULL: another process's
    // Used while joining:
    ps_init_method init;
    uint64_t file_nonce; // of the file that this process's coordinator wrote
    uint64_t nonce;      // of the job: as its file says, or its admission; 0: any
    bool joined;
    ps_deadline deadline; // of joining
    ps_deadline silence;  // once passed without an answer, the address is looked up again
    ps_control_id door_id;
    void *door; // the connection to the door; NULL once admitted
    char waiting_for[PS_CONTROL_TEXT_MAX]; // the members that have not joined
    bool refused_for_now;                  // it asks again soon
    bool is_over; // the job of the coordinator that answered last
    int refusals; // of that kind
    char refusal[PS_CONTROL_TEXT_MAX];
} ps_joining;

/* The address of this process that other members can reach. That is the address of
 * net.interface when it is not empty, else the source address of the route to the
 * coordinator. When there is no such route (a file, or NULL: no init method), or the host
 * is a name that resolves to this host's loopback, it is the source address of the
 * default route. A job with neither keys (net.curve) nor net.insecure stays on this host:
 * then it is the loopback's. Waits until the deadline for a host that does not resolve
 * yet. ARG, NET, TIMEOUT, INTERRUPTED. */
ps_err ps_joining_address(const ps_config *config, const char *init_method,
                          ps_deadline deadline, char out[PS_ADDRESS_MAX]);

/* Joins before net.join_timeout_ms have passed. ARG, NET, TIMEOUT or PEER, as
 * ps_member_join says. The caller must close and then fini j in every case. */
ps_err ps_joining_run(ps_joining *j, const ps_member_options *options, void *zmq_context);
/* Of the connections to the coordinator (ps_zsock_silence_ms). */
uint64_t ps_joining_silence_ms(const ps_joining *j);
/* Of a member whose connection has closed: whether the coordinator's process is gone for
 * sure, as its host refuses connections to its port. Takes up to 50 ms. */
bool ps_joining_is_refused(const ps_joining *j);
/* Closes the connection. The end of the context waits up to linger_ms for unsent
 * messages. */
void ps_joining_close(ps_joining *j, int linger_ms);
/* Ends this process's coordinator, if it has one, and removes its file. reason (may be
 * NULL) is for a job that is not over. close and fini are safe on a zeroed ps_joining. */
void ps_joining_fini(ps_joining *j, const char *reason);

#endif
