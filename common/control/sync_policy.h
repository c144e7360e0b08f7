/* The policies in which workers go on at their own pace (sync.policy: backup, ssp, asp),
 * as data: a pure state machine without sockets and threads. The coordinator keeps one
 * for the job, and tells it when a whole push of a worker has reached all shards. It says
 * which pushes are applied together, and which workers get the new weights. All shards
 * obey the same orders in the same sequence, so every push counts in the same version in
 * every chunk, and every worker computes on the weights of one version.
 *
 *   backup  A version needs the pushes of N - b workers. A push that was computed on an
 *           older version is late. It is dropped and its worker goes on with the present
 *           weights (Chen et al. 2016), or it counts in the next version like any other
 *           (`add`; K-async SGD, Dutta et al. 2018). With a grace a version that could be
 *           made waits for the others until these are in, or the grace is over.
 *   ssp     A worker goes on if it has made at most s more pushes than the slowest one
 *           (Ho et al. 2013). All pushes that are in are applied when the next worker
 *           goes on: nobody sees weights in between. With s = 0 this is bsp.
 *   asp     ssp without a bound: a push is applied when it arrives, and its worker goes
 *           on at once.
 *
 * Corrections of stale pushes: `lr` divides the learning rate of a push by its staleness
 * in versions (Zhang et al. 2016, "Staleness-aware async-SGD"); `delay` adds the first
 * term of the change that the gradient itself has made since then, with g * g for the
 * Hessian's diagonal (Zheng et al. 2017, "Asynchronous stochastic gradient descent with
 * delay compensation", DC-ASGD-c).
 *
 * A stretch is an epoch of the job, or a part of it. At its end all workers rest: they
 * have the same weights, and no push is on its way, as between two steps in bsp. There
 * checkpoints are taken, so the job can be given steps at which a stretch ends within the
 * epoch. A stretch of n steps has n versions with backup, and n * N pushes with ssp and
 * asp, by any workers. One that is told to end before has the steps that are whole.
 *
 * Every push of a worker has one answer. The record of an order is a line of text:
 *
 *   APPLIED ANSWERED [rest|end]     "0,2-3 0,2-3", "- 1", "1 0-3 rest"; the lists are
 *                                   ranks; end: rest, and the job is over
 *
 * A worker that is answered without having been applied had its push dropped. From the
 * lines follows on which version each worker computed.
 *
 * Where workers come back, one that dies within a stretch is missed by nobody: to the
 * others it is a slow worker until a process takes its place.
 * That one's first push is empty. It is dropped, so the process gets the present weights,
 * of one version. The record then has the line
 *
 *   back RANK                       from here on the run cannot be repeated */
#ifndef PS_SYNC_POLICY_H
#define PS_SYNC_POLICY_H

#include "config.h"

enum { PS_SYNC_BINS = 32 };  // of the histogram; the last one also has what is above
#define PS_SYNC_BACK "back " // begins a line of the record

typedef struct ps_sync_rules {
    ps_policy_kind kind; // BACKUP, SSP or ASP
    uint32_t n_workers;
    uint32_t backups;   // b < n_workers
    bool add;           // late pushes count in the next version
    bool come_back;     // workers do (backup that adds)
    bool cuts;          // what comes too late for a stretch may be cut short (backup)
    uint64_t grace_ms;  // how long a version that could be made waits; 0: not
    uint64_t staleness; // s
    ps_correction correction;
    double delay_strength; // of the correction delay
    uint64_t first;        // step at which the job begins, or goes on
    uint64_t number;       // of each worker's first push; each later one has one more
    uint64_t version;      // updates before it
    uint64_t total;        // steps of the job, above first
    uint64_t stretch;      // steps of an epoch; the first one begins at 0
    uint64_t pause;        // workers also rest at multiples of this step; 0: not
    uint64_t stop;         // and at this step; 0: not
    const char *script;    // lines to repeat first, borrowed; NULL: none
} ps_sync_rules;

typedef enum ps_sync_phase {
    PS_SYNC_COMPUTES, // has weights, has not pushed
    PS_SYNC_GIVEN,    // its push is in
    PS_SYNC_APPLIED   // and was applied; it waits for weights
} ps_sync_phase;

typedef struct ps_sync_worker {
    ps_sync_phase phase;
    uint64_t batch;            // samples of its pushes
    uint64_t clock;            // pushes in this stretch
    uint64_t base;             // the version that it computes or has computed on
    uint64_t counted, dropped; // pushes of the job
    bool is_new;               // came back: its next push is empty
    bool taken, answered;      // by the order that is being made
} ps_sync_worker;

typedef struct ps_sync_entry {
    uint32_t rank;
    bool applied, answered;
    float factor; // its gradient is multiplied by it
    /* Not 0: before that, the pushed gradient g becomes g + compensation * g * g * d; d
     * is how far the weights have moved since the worker got them. */
    float compensation;
} ps_sync_entry;

typedef struct ps_sync_order {
    uint32_t fragment; // that it concerns, of a model in fragments (sync_fragments.h)
    uint64_t version;  // before the order; it becomes one more if pushes are applied
    uint64_t step;     // of the job, for the learning rate
    bool applies;
    double share; // of a step's samples that the applied pushes stand for; backup: 1
    bool rest;    // the stretch is over: all workers are answered
    bool over;    // and so is the job, or it was told to end
    /* Above 0: the order is not of that kind. The worker of the one entry is dead; what
     * its shards hold of it is void, and the next push of its rank has this number. */
    uint64_t back;
    uint32_t n;             // entries
    ps_sync_entry *entries; // by rank; borrowed until the next order
} ps_sync_order;

typedef struct ps_sync {
    ps_sync_rules rules;
    /* Not NULL: this is the policy of an earlier fragment, and stretches are those of the
     * last one (sync_fragments.h); borrowed. */
    const struct ps_sync *last;
    ps_sync_worker *workers; // owned, by rank
    ps_sync_entry *entries;  // owned
    uint64_t version;        // of the job: updates made
    uint64_t done;           // steps before this stretch
    uint64_t versions;       // in this stretch
    uint64_t counted;        // pushes in this stretch
    uint64_t allowed;        // pushes that workers may make in it, as far as answered
    uint32_t n_computing;
    bool ends;                        // the stretch ends as soon as all pushes are in
    bool graces;                      // a version could be made, and its grace runs
    bool graced;                      // and is over
    uint64_t histogram[PS_SYNC_BINS]; // of counted pushes, by staleness in versions
} ps_sync;

/* batches: (n_workers) samples of each worker's push, above 0. ARG names what is wrong;
 * NOMEM. s is safe for fini in every case. */
ps_err ps_sync_init(ps_sync *s, const ps_sync_rules *rules, const uint64_t *batches);
void ps_sync_fini(ps_sync *s);

/* At rest: what the workers' pushes weigh from here on; as ps_sync_init's. ARG. */
ps_err ps_sync_set_batches(ps_sync *s, const uint64_t *batches);

/* The next push of the worker is in. PROTOCOL when it may not push. */
ps_err ps_sync_push(ps_sync *s, uint32_t rank);
/* Whether the others can go on when the worker dies within this stretch. */
bool ps_sync_may_lose(const ps_sync *s, uint32_t rank);
/* It is dead, and a process takes its place some time. */
void ps_sync_lose(ps_sync *s, uint32_t rank);
/* The workers are to rest soon: nobody goes on before. */
void ps_sync_end(ps_sync *s);
/* Whether the stretch has all its versions, but workers are still in a round: that cannot
 * count any more, so they may end it early, and push at once what they have not. False
 * without rules.cuts. */
bool ps_sync_is_late(const ps_sync *s);
/* Of an earlier fragment, when the last one rests: a stretch begins, at s->version. */
void ps_sync_begin_stretch(ps_sync *s);
/* Whether a grace runs: rules.grace_ms after this became true ps_sync_grace_over is to be
 * called, unless it has become false before. Ask when there is no order. */
static inline bool ps_sync_graces(const ps_sync *s)
{
    return s->graces;
}
void ps_sync_grace_over(ps_sync *s);
/* The next order, if there is one: *any. Call it until there is none. FORMAT when the
 * script's next line is not such a line, or cannot follow. */
ps_err ps_sync_decide(ps_sync *s, ps_sync_order *out, bool *any);

/* Writes the record's line with its newline; *bytes of it, 0 if it does not fit into n.
 */
void ps_sync_line(const ps_sync_order *order, char *text, size_t n, size_t *bytes);
/* How the line of a rest ends. */
static inline const char *ps_sync_rest_word(bool over)
{
    return over ? " end\n" : " rest\n";
}

#endif
