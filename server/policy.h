/* When a shard applies what it has: pure functions over a chunk's state, without sockets.
 * (Where workers go on at their own pace, the coordinator decides: shard_orders.c.)
 *
 * BSP: version v of a chunk is followed by v + 1 once every worker's push of step v is
 * in.
 *
 *   none --INIT--> 0 --all pushes of step 0--> 1 --all pushes of step 1--> 2 ...
 */
#ifndef PS_POLICY_H
#define PS_POLICY_H

#include <stdbool.h>
#include <stdint.h>

#include "config.h"

enum { PS_POLICY_WORDS = PS_MAX_RANKS / 64 };

typedef struct ps_rank_set {
    uint64_t words[PS_POLICY_WORDS];
} ps_rank_set;

static inline bool ps_rank_set_has(const ps_rank_set *set, uint32_t rank)
{
    return set->words[rank / 64] >> (rank % 64) & 1;
}

static inline void ps_rank_set_add(ps_rank_set *set, uint32_t rank)
{
    set->words[rank / 64] |= UINT64_C(1) << (rank % 64);
}

static inline void ps_rank_set_remove(ps_rank_set *set, uint32_t rank)
{
    set->words[rank / 64] &= ~(UINT64_C(1) << (rank % 64));
}

typedef struct ps_policy_chunk {
    int64_t version; // -1: no weights yet
    int64_t first;   // version of the first weights; above 0 when the job resumes
    uint32_t n_workers, n_arrived, n_early;
    ps_rank_set arrived; // ranks whose push of step `version` is in
    ps_rank_set early;   // ranks whose push of the step after that is in
    ps_rank_set waiting; // ranks that want version + 1 and have not pushed
    uint32_t n_settling;
    ps_rank_set settling; // ranks that want the exact weights of this version
    bool exact_sent;      // they have been sent to every worker
    ps_rank_set exact;    // ranks that have been sent some since their last push
} ps_policy_chunk;

typedef enum ps_verdict {
    PS_VERDICT_TAKE,   // it counts
    PS_VERDICT_KEEP,   // it counts in the step after the present one
    PS_VERDICT_DROP,   // a repetition of one that is pending: not counted again
    PS_VERDICT_ANSWER, // answer with the present weights
    PS_VERDICT_ALL,    // answer everybody
    PS_VERDICT_WAIT,   // answer when the next version is here
    PS_VERDICT_REFUSE  // it violates the protocol
} ps_verdict;

void ps_policy_chunk_init(ps_policy_chunk *c, uint32_t n_workers);

/* rank < n_workers in all of them. */

/* First weights: from rank 0, once. On TAKE, `version` becomes `first`. DROP: a
 * repetition. */
ps_verdict ps_policy_init_weights(ps_policy_chunk *c, uint32_t rank);
/* A gradient of a step. On TAKE the rank is marked as arrived, on KEEP as early. */
ps_verdict ps_policy_push(ps_policy_chunk *c, uint32_t rank, uint64_t step);
/* All pushes of the present step are in. */
bool ps_policy_complete(const ps_policy_chunk *c);
/* The step was applied: the version goes up, early pushes count as arrived, and no rank
 * waits. */
void ps_policy_applied(ps_policy_chunk *c);
/* The same where orders say which pushes those are: a push arrives, and a version is made
 * of some, which stay in `arrived`. */
void ps_policy_arrived(ps_policy_chunk *c, uint32_t rank);
void ps_policy_moved(ps_policy_chunk *c);
/* A request for the weights of a version. On WAIT the rank is marked as waiting. ANSWER
 * also when an old request is repeated after a lost connection. */
ps_verdict ps_policy_pull(ps_policy_chunk *c, uint32_t rank, uint64_t version);
/* A request for the exact weights of the present version, which all workers get together:
 * WAIT until the last one asks, then ALL. ANSWER: a repetition afterwards, also in later
 * versions, which other workers may have made by then. */
ps_verdict ps_policy_exact(ps_policy_chunk *c, uint32_t rank, uint64_t version);

#endif
