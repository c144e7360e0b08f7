/* The policy of a model in fragments that are synchronised in turn (plan.h): one
 * ps_sync for each of them, so each has its own versions, and a version its own quorum.
 * A worker's push is one of a fragment; it pushes the fragments in their order, each once
 * a round.
 *
 * Stretches are those of the last fragment, whose push ends a worker's round. When that
 * one has the stretch's versions, workers go on to the end of their round: there they
 * have pushed every fragment and have been answered for all but the last one (the empty
 * pushes of a new process may come in another order, also after the rest). When all are
 * there, that answer says that they rest. Then all fragments count from one version
 * on, the largest.
 *
 * Nobody waits for ever: Q workers that have made a version together come to the next
 * fragment, where they are enough again. So a process that takes a dead worker's place
 * goes on with the fragment that this one would have pushed next. If it began a round of
 * its own, it would wait for the others at one fragment while they wait for it at
 * another.
 *
 * The record's line of an order begins with "fI " for fragment I, if there are several.
 *
 * Pure, as sync_policy.h. */
#ifndef PS_SYNC_FRAGMENTS_H
#define PS_SYNC_FRAGMENTS_H

#include "sync_policy.h"

typedef struct ps_sync_fragments {
    uint32_t n;
    ps_sync *parts;     // (n) owned
    uint32_t *next;     // (n_workers) the fragment that each pushes next; owned
    const char *script; // what is left of rules.script
} ps_sync_fragments;

/* As ps_sync_init, for n fragments: 1 to PS_MAX_FRAGMENTS, above 1 with BACKUP alone. */
ps_err ps_sync_fragments_init(ps_sync_fragments *f, uint32_t n,
                              const ps_sync_rules *rules, const uint64_t *batches);
void ps_sync_fragments_fini(ps_sync_fragments *f);

/* The one that stretches and the job's steps are counted by. */
static inline ps_sync *ps_sync_fragments_last(const ps_sync_fragments *f)
{
    return &f->parts[f->n - 1];
}

/* The worker's next push of the fragment is in. PROTOCOL when it may not push it. */
ps_err ps_sync_fragments_push(ps_sync_fragments *f, uint32_t fragment, uint32_t rank);
ps_err ps_sync_fragments_set_batches(ps_sync_fragments *f, const uint64_t *batches);
/* As ps_sync's. */
bool ps_sync_fragments_may_lose(const ps_sync_fragments *f, uint32_t rank);
void ps_sync_fragments_lose(ps_sync_fragments *f, uint32_t rank);
/* The next order of any fragment. Orders are carried out in one sequence. */
ps_err ps_sync_fragments_decide(ps_sync_fragments *f, ps_sync_order *out, bool *any);
/* As ps_sync_line. */
void ps_sync_fragments_line(const ps_sync_fragments *f, const ps_sync_order *order,
                            char *text, size_t n, size_t *bytes);

#endif
