/* How a process becomes a member of a job: it finds the coordinator, or starts it, says
 * who it is until it is welcome or refused, and ends with a connection, a rank and the
 * roster. What it does from then on is in member.h. */
#ifndef PS_JOINING_H
#define PS_JOINING_H

#include "control.h"
#include "coordinator.h"
#include "init_method.h"
#include "roster.h"

typedef struct ps_member_options {
    const ps_config *config; // borrowed for the life of the member
    ps_role role;
    int rank;       // -1: take a free one; the coordinator's host gives its own
    int world_size; // workers of the job
    int n_servers;  // servers of the job (0 in all-reduce mode)
    /* tcp://host:port or file:///path; the command line reader has resolved env://. NULL:
     * a job of this process alone. */
    const char *init_method;
    uint64_t plan_hash;
    int local_rank; // -1: not given
    /* What a server offers: shards data endpoints, bound already
     * ("tcp://10.0.0.1:40123"). In a wildcard one (host 0.0.0.0, [::] or an asterisk)
     * the host is replaced by this process's address, which is known
     * only after joining: the simple way is to bind to "tcp://0.0.0.0:*". */
    const char *const *endpoints;
    int n_endpoints;
} ps_member_options;

typedef struct ps_joining {
    ps_member_options o; // borrows what the options borrow; read while joining
    void *zmq_context;   // borrowed
    // What it ends with:
    int rank;
    ps_roster roster;
    ps_secret secret;                           // this process's own
    char address[PS_ADDRESS_MAX];               // this process's, on the network chosen
    char coordinator_endpoint[PS_ENDPOINT_MAX]; // of its door
    char members_endpoint[PS_ENDPOINT_MAX];     // of its ROUTER for members
    void *dealer, *monitor;      // the connection there, and what tells of its loss
    ps_coordinator *coordinator; // NULL: another process's
    // On the way:
    ps_init_method init;
    uint64_t file_nonce; // of the file that this process's coordinator wrote
    uint64_t nonce;      // of the job: as its file says, or its admission; 0: any
    bool joined;
    ps_deadline deadline; // of joining
    ps_deadline silence;  // without an answer until then: the address is looked up again
    ps_control_id door_id;
    void *door; // the connection to the door; NULL once admitted
    char waiting_for[PS_CONTROL_TEXT_MAX]; // who has not joined
} ps_joining;

/* This process's address that other members can reach: interface's (net.interface) where
 * it is not empty, else that of the way to the coordinator, else of the default route
 * (a file, a host that leads to this host alone, NULL: no init method). A host that does
 * not resolve yet is awaited until the deadline. ARG, NET, TIMEOUT, INTERRUPTED. */
ps_err ps_joining_address(const char *interface, const char *init_method,
                          ps_deadline deadline, char out[PS_ADDRESS_MAX]);

/* Joins before net.join_timeout_ms have passed. ARG, NET, TIMEOUT or PEER, as
 * ps_member_join says. To be closed and then ended (fini) in every case. */
ps_err ps_joining_run(ps_joining *j, const ps_member_options *options, void *zmq_context);
/* How connections to the coordinator are watched. */
ps_zsock_pulse ps_joining_pulse(const ps_joining *j);
/* Closes the connection; what was not sent yet has linger_ms, until the context ends. */
void ps_joining_close(ps_joining *j, int linger_ms);
/* Ends the coordinator, where it is this process's, and takes its file away; reason (may
 * be NULL): why, where the job is not over. Both are safe on a zeroed one. */
void ps_joining_fini(ps_joining *j, const char *reason);

#endif
