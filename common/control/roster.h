/* The roster: the members of one member epoch and their addresses; its form on the wire;
 * and the text that names missing members.
 *
 * A roster is a snapshot and never changes. Members cannot be exchanged within an epoch:
 * when one joins, leaves or dies, the epoch ends for all of them (ps_member_abort,
 * ps_member_regroup). Each then joins again and gets a new ps_member, with a roster and a
 * nonce of its own. Whatever borrows the roster (session, exchange, shards) is made after
 * joining, and destroyed before the member. So messages of different epochs cannot be
 * confused: their nonces differ.
 *
 *   entry:  [role, rank, host, boot id, net ns, [endpoint, ...]]
 *   roster: [[entry, ...] servers by rank, [entry, ...] workers by rank, secrets]
 *
 * secrets: those of the workers, one after another, the readers', and the one that
 * servers show each other (wire.h), in a server's roster. Empty in a worker's.
 */
#ifndef PS_ROSTER_H
#define PS_ROSTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config.h"
#include "mp.h"
#include "role.h"
#include "secret.h"

enum { PS_ROSTER_ENDPOINTS_MAX = 256 };

typedef struct ps_roster_entry {
    ps_role role;
    int rank;
    char host[64];    // host name
    char boot_id[40]; // with net_ns: tells whether two members share a host
    char net_ns[40];  // "net:[4026531840]", with net.host and "/" and its hash
    char **endpoints; // n_endpoints; of a server, one per shard
    int n_endpoints;
} ps_roster_entry;

typedef struct ps_roster {
    uint64_t nonce; // drawn for this epoch
    uint32_t epoch; // counts epochs of one nonce; always 1 today
    int n_servers, n_workers;
    ps_roster_entry *servers, *workers; // by rank
    ps_secret *secrets; // the workers', by rank, then two more; NULL in a worker's
} ps_roster;

/* In a server's roster: how many it has, and those that are not of workers. */
static inline int ps_roster_n_secrets(const ps_roster *r)
{
    return r->n_workers + 2;
}
static inline ps_secret *ps_roster_readers(const ps_roster *r)
{
    return &r->secrets[r->n_workers];
}
static inline ps_secret *ps_roster_twins(const ps_roster *r)
{
    return &r->secrets[r->n_workers + 1];
}

void ps_roster_entry_write(ps_mp_writer *w, const ps_roster_entry *e);
/* Members with other names for their part of the machine (net.host) share no memory, as
 * if they were in other network namespaces. "": the whole machine. Called once. */
void ps_roster_entry_set_part(ps_roster_entry *e, const char *part);
/* The entry owns its endpoints; call fini in every case. PROTOCOL or NOMEM. */
ps_err ps_roster_entry_read(ps_mp_reader *r, ps_roster_entry *e);
void ps_roster_entry_fini(ps_roster_entry *e);
/* Whether both can share memory and abstract sockets: same boot, same namespace. */
bool ps_roster_same_host(const ps_roster_entry *a, const ps_roster_entry *b);
/* Whether all of the job's processes are known to be on one host. */
bool ps_roster_one_host(const ps_roster *r);

/* The lowest rank among the workers of the rank's host: with exchange.levels 2 it sums
 * their gradients and alone talks with the servers. */
int ps_roster_leader(const ps_roster *r, int rank);

/* How long a member of the host of `here` may look for what it waits for before it
 * sleeps, in ns. Looking is faster than being woken, but only where every thread of the
 * job's members on the host has a core of its own; else 0. threads: of a worker; 0: one
 * per core. A shard has one. */
uint64_t ps_roster_spin_ns(const ps_roster *r, const ps_roster_entry *here,
                           int64_t threads);

/* A zeroed roster of that many members. fini is safe after a failure. */
ps_err ps_roster_init(ps_roster *r, int n_servers, int n_workers);
void ps_roster_fini(ps_roster *r);
void ps_roster_write(ps_mp_writer *w, const ps_roster *r);
/* Every entry must be at the place of its role and rank. PROTOCOL or NOMEM. */
ps_err ps_roster_read(ps_roster *r, const void *bytes, size_t n);

/* "1, 3-5" for the ranks of [0, n) that are not present, or "" if none is missing. */
void ps_roster_missing_ranks(const bool *present, int n, char *out, size_t cap);

#endif
