#include "send_queue.h"

#include <stdlib.h>
#include <string.h>

#include "mem.h"

ps_err ps_send_queue_init(ps_send_queue *q, const ps_scatter *scatter, int rank, int most)
{
    *q = (ps_send_queue){
        .scatter = scatter, .rank = rank, .most = most, .n_peers = scatter->n_ranks - 1};
    const size_t n = (size_t)scatter->n_buckets, peers = (size_t)q->n_peers;
    PS_TRY(PS_NEW(&q->peers, peers, "peers"));
    PS_TRY(PS_NEW(&q->shared, n, "buckets"));
    PS_TRY(PS_NEW(&q->owed, n, "buckets"));
    PS_TRY(PS_NEW(&q->sent, n * peers, "buckets"));
    for (int i = 0; i < q->n_peers; i++) {
        q->peers[i].rank = (rank + 1 + i) % scatter->n_ranks;
        q->peers[i].weights = q->sent + (size_t)i * n;
    }
    return PS_OK;
}

void ps_send_queue_fini(ps_send_queue *q)
{
    free(q->peers);
    free(q->shared);
    free(q->owed);
    free(q->sent);
    *q = (ps_send_queue){0};
}

void ps_send_queue_offer(ps_send_queue *q)
{
    const uint64_t n = (uint64_t)q->scatter->n_buckets;
    if (q->offered++ % n == 0) memcpy(q->owed, q->shared, n * sizeof *q->owed);
}

void ps_send_queue_share(ps_send_queue *q, int bucket)
{
    q->shared[bucket]++;
}

static bool next_gradients(const ps_send_queue *q, ps_send_peer *p, ps_send *send)
{
    const uint64_t n = (uint64_t)q->scatter->n_buckets;
    while (p->bucket < q->offered) {
        const int bucket = (int)(p->bucket % n);
        if (p->segment < ps_scatter_segments(q->scatter, bucket, p->rank)) {
            *send = (ps_send){p->rank, false, bucket, p->segment++};
            return true;
        }
        p->bucket++;
        p->segment = 0;
    }
    return false;
}

/* limits (n_buckets): segments that may go. */
static bool next_weights(const ps_send_queue *q, ps_send_peer *p, const uint64_t *limits,
                         ps_send *send)
{
    for (int b = q->scatter->n_buckets - 1; b >= 0; b--) {
        if (p->weights[b] >= limits[b]) continue;
        const uint64_t i = p->weights[b]++;
        *send =
            (ps_send){p->rank, true, b, i % ps_scatter_segments(q->scatter, b, q->rank)};
        return true;
    }
    return false;
}

bool ps_send_queue_next(ps_send_queue *q, ps_send *send)
{
    for (int i = 0; i < q->n_peers; i++) {
        const int at = (q->turn + i) % q->n_peers;
        ps_send_peer *p = &q->peers[at];
        if (p->on_the_way == q->most) continue;
        if (!next_weights(q, p, q->owed, send) && !next_gradients(q, p, send) &&
            !next_weights(q, p, q->shared, send))
            continue;
        p->on_the_way++;
        q->turn = at + 1;
        return true;
    }
    return false;
}

void ps_send_queue_sent(ps_send_queue *q, int peer)
{
    const int n = q->scatter->n_ranks;
    q->peers[(peer - q->rank - 1 + n) % n].on_the_way--;
}
