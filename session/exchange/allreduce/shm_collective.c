#include "shm_collective.h"

#include <stdlib.h>
#include <string.h>

#include "interrupt.h"
#include "ordered_sum.h"
#include "shm_board.h"
#include "shm_peers.h"

/* A model this small is exchanged faster than another thread is woken for it. */
enum { SMALL_BYTES = 1 << 20 };

/* A piece of memory of one rank's. */
typedef struct span {
    char *at;
    uint64_t bytes;
} span;

typedef struct shm_collective {
    ps_collective base;
    ps_exchange_options at;
    int rank, world_size;
    ps_shm_peers *peers;
    ps_shm_board **boards; // (world_size)
    ps_collective_layout layout;
    const float **from; // (world_size) what is summed now
    span *spans;        // (world_size, n_arrays) of the layout's arrays
    uint64_t summed;    // the index of the next bucket to be summed, since the start
    uint64_t *gathered; // (n_buckets) how often
    uint64_t rounds;
    uint64_t spin_ns;
    _Atomic bool aborted;

    /* The wait that goes on. */
    ps_deadline deadline;
    int peer;
    const char *what;
} shm_collective;

static shm_collective *shm_collective_of(const ps_collective *c)
{
    return (shm_collective *)(uintptr_t)c;
}

/* ------------------------------------------------------------------------- waiting */

static ps_err shm_collective_check(void *ctx)
{
    const shm_collective *c = ctx;
    if (atomic_load(&c->aborted)) return ps_err_set(PS_ERR_NET, "the exchange was ended");
    PS_TRY(ps_member_check(c->at.member));
    PS_TRY(ps_interrupt_ask_hook());
    if (!ps_deadline_passed(c->deadline)) return PS_OK;
    return ps_err_set(PS_ERR_TIMEOUT,
                      "worker %d gave no %s for %lld ms (net.step_timeout_ms)", c->peer,
                      c->what, (long long)c->at.settings.step_timeout_ms);
}

static ps_err shm_collective_wait_for(shm_collective *c, int peer,
                                      const _Atomic uint64_t *count, uint64_t target,
                                      const char *what)
{
    if (atomic_load(count) >= target) return PS_OK;
    c->deadline = ps_deadline_in_ms(c->at.settings.step_timeout_ms);
    c->peer = peer;
    c->what = what;
    return ps_shm_board_wait(&c->boards[c->rank]->bell, peer, count, target, c->spin_ns,
                             shm_collective_check, c);
}

static void shm_collective_post(shm_collective *c, _Atomic uint64_t *count)
{
    ps_shm_board_post(c->boards, c->world_size, c->rank, count);
}

/* ------------------------------------------------------------------ sums and weights */

static void shm_collective_offer(ps_collective *base)
{
    shm_collective *c = shm_collective_of(base);
    shm_collective_post(c, &c->boards[c->rank]->offered);
}

/* Ranks without a part of a bucket do not sum it. */
static uint64_t shm_collective_next_of(uint64_t summed, int bucket, int n_buckets)
{
    const uint64_t n = (uint64_t)n_buckets;
    return summed + ((uint64_t)bucket + n - summed % n) % n;
}

static ps_err shm_collective_sum(ps_collective *base, int bucket, uint64_t i)
{
    shm_collective *c = shm_collective_of(base);
    const ps_scatter *scatter = c->layout.scatter;
    const ps_chunk s = ps_scatter_segment(scatter, bucket, c->rank, i);
    float *own = c->layout.grads + s.offset;
    c->summed = shm_collective_next_of(c->summed, bucket, scatter->n_buckets) + 1;
    for (int r = 0; r < c->world_size; r++) {
        c->from[r] = own;
        if (r == c->rank) continue;
        PS_TRY(shm_collective_wait_for(c, r, &c->boards[r]->offered, c->summed,
                                       "gradients"));
        c->from[r] = ps_shm_peers_grads(c->peers, r) + s.offset;
    }
    ps_ordered_sum(own, c->from, c->world_size, 0, s.count);
    base->shm_bytes += s.count * sizeof(float) * (uint64_t)(c->world_size - 1);
    return PS_OK;
}

static ps_err shm_collective_share(ps_collective *base, int bucket, uint64_t i)
{
    shm_collective *c = shm_collective_of(base);
    shm_collective_post(c, &c->boards[c->rank]->shared[bucket]);
    return PS_OK;
}

/* A peer writes its weights again only when the gradients of the next step are summed,
 * for which it waits for this rank. */
static ps_err shm_collective_gather(ps_collective *base, int bucket)
{
    shm_collective *c = shm_collective_of(base);
    const ps_scatter *scatter = c->layout.scatter;
    const uint64_t target = ++c->gathered[bucket];
    for (int k = 1; k < c->world_size; k++) {
        const int r = (c->rank + k) % c->world_size;
        const ps_chunk *part = ps_scatter_part(scatter, bucket, r);
        if (part->count == 0) continue;
        PS_TRY(shm_collective_wait_for(c, r, &c->boards[r]->shared[bucket], target,
                                       "weights"));
        memcpy(c->layout.params + part->offset,
               ps_shm_peers_params(c->peers, r) + part->offset,
               part->count * sizeof(float));
        base->shm_bytes += part->count * sizeof(float);
    }
    return PS_OK;
}

/* -------------------------------------------------------------------------- rounds */

static uint64_t shm_collective_bytes_of(const span *spans, int n)
{
    uint64_t bytes = 0;
    for (int i = 0; i < n; i++)
        bytes += spans[i].bytes;
    return bytes;
}

/* Copies the piece that begins at byte `from` of the spans: into `piece`, or out of it.
 */
static uint64_t copy_piece(const span *spans, int n, uint64_t from, uint8_t *piece,
                           bool into)
{
    uint64_t done = 0;
    for (int i = 0; i < n && done < PS_SHM_BOARD_PIECE; i++) {
        if (from >= spans[i].bytes) {
            from -= spans[i].bytes;
            continue;
        }
        const uint64_t left = spans[i].bytes - from, room = PS_SHM_BOARD_PIECE - done;
        const uint64_t bytes = left < room ? left : room;
        char *at = spans[i].at + from;
        memcpy(into ? (char *)piece + done : at, into ? at : (char *)piece + done, bytes);
        done += bytes;
        from = 0;
    }
    return done;
}

/* Every rank puts its next piece, and takes those of all others. A piece is overwritten
 * two rounds later: for the round between, its readers were waited for. spans
 * (world_size, n): of each rank. */
static ps_err make_round(shm_collective *c, const span *spans, int n, uint64_t from)
{
    const int place = (int)(c->rounds++ % 2);
    ps_shm_board *own = c->boards[c->rank];
    copy_piece(spans + c->rank * n, n, from, own->pieces[place], true);
    shm_collective_post(c, &own->rounds);
    for (int k = 1; k < c->world_size; k++) {
        const int r = (c->rank + k) % c->world_size;
        PS_TRY(shm_collective_wait_for(c, r, &c->boards[r]->rounds, c->rounds, "word"));
        c->base.shm_bytes +=
            copy_piece(spans + r * n, n, from, c->boards[r]->pieces[place], false);
    }
    return PS_OK;
}

/* Every rank's spans become everybody's; of a rank they have the same sizes everywhere.
 */
static ps_err exchange_spans(shm_collective *c, const span *spans, int n)
{
    uint64_t most = 0;
    for (int r = 0; r < c->world_size; r++) {
        const uint64_t bytes = shm_collective_bytes_of(spans + r * n, n);
        if (bytes > most) most = bytes;
    }
    for (uint64_t from = 0; from < most; from += PS_SHM_BOARD_PIECE)
        PS_TRY(make_round(c, spans, n, from));
    return PS_OK;
}

static ps_err shm_collective_all_gather(ps_collective *base)
{
    shm_collective *c = shm_collective_of(base);
    return exchange_spans(c, c->spans, c->layout.n_arrays);
}

static ps_err shm_collective_broadcast(ps_collective *base,
                                       const ps_collective_range *ranges, int n)
{
    shm_collective *c = shm_collective_of(base);
    span *spans;
    PS_TRY(PS_NEW(&spans, (size_t)n * (size_t)c->world_size, "a broadcast"));
    for (int i = 0; i < n; i++)
        spans[i] = (span){ranges[i].bytes, ranges[i].n_bytes};
    ps_err err = exchange_spans(c, spans, n);
    free(spans);
    return err;
}

/* --------------------------------------------------------------------- start and end */

static ps_err shm_collective_lay_out(ps_collective *base,
                                     const ps_collective_layout *layout)
{
    shm_collective *c = shm_collective_of(base);
    const size_t n = (size_t)layout->n_arrays;
    c->layout = *layout;
    PS_TRY(PS_NEW(&c->gathered, (size_t)layout->scatter->n_buckets, "buckets"));
    PS_TRY(PS_NEW(&c->spans, n * (size_t)c->world_size, "arrays"));
    for (int r = 0; r < c->world_size; r++)
        for (size_t k = 0; k < n; k++) {
            const ps_collective_parts *a = &layout->arrays[k];
            c->spans[(size_t)r * n + k] =
                (span){(char *)a->base + a->cuts[r] * a->element_bytes,
                       (a->cuts[r + 1] - a->cuts[r]) * a->element_bytes};
        }
    return PS_OK;
}

static void abort_calls(ps_collective *base)
{
    shm_collective *c = shm_collective_of(base);
    atomic_store(&c->aborted, true);
    ps_bell_ring(&c->boards[c->rank]->bell);
}

static void shm_collective_destroy(ps_collective **base)
{
    shm_collective *c = shm_collective_of(*base);
    if (!c) return;
    ps_shm_peers_close(&c->peers);
    free(c->boards);
    free((void *)c->from);
    free(c->spans);
    free(c->gathered);
    free(c);
    *base = NULL;
}

static const ps_collective_ops shm_ops = {
    .lay_out = shm_collective_lay_out,
    .offer = shm_collective_offer,
    .sum = shm_collective_sum,
    .share = shm_collective_share,
    .all_gather = shm_collective_all_gather,
    .gather = shm_collective_gather,
    .broadcast = shm_collective_broadcast,
    .abort = abort_calls,
    .destroy = shm_collective_destroy,
};

static ps_err shm_collective_prepare(shm_collective *c)
{
    const size_t n = (size_t)c->world_size;
    PS_TRY(PS_NEW(&c->boards, n, "boards"));
    PS_TRY(PS_NEW(&c->from, n, "gradients"));
    for (int r = 0; r < c->world_size; r++)
        c->boards[r] = ps_shm_peers_board(c->peers, r);
    c->base.by_caller = c->at.params->bytes <= SMALL_BYTES;
    const ps_roster *roster = ps_member_roster(c->at.member);
    const int64_t threads = c->at.settings.threads;
    c->spin_ns = ps_roster_spin_ns(roster, &roster->workers[c->rank],
                                   threads ? threads + !c->base.by_caller : 0);
    return PS_OK;
}

ps_err ps_shm_collective_open(const ps_exchange_options *options, ps_collective **out)
{
    ps_shm_peers *peers;
    *out = NULL;
    PS_TRY(ps_shm_peers_open(options, ps_shm_board_bytes(options->table->n_tensors),
                             &peers));
    if (!peers) return PS_OK;
    shm_collective *c;
    ps_err err = PS_NEW(&c, 1, "shared memory");
    if (err != PS_OK) {
        ps_shm_peers_close(&peers);
        return err;
    }
    *c = (shm_collective){.base = {.ops = &shm_ops, .segment = UINT64_MAX},
                          .at = *options,
                          .rank = options->rank,
                          .world_size = options->world_size,
                          .peers = peers};
    *out = &c->base;
    return shm_collective_prepare(c);
}
