#include "ps_comm_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "loss_scale.h"
#include "mem.h"

static ps_err comm_alloc_arrays(ps_comm *c)
{
    size_t n = c->plan->n_chunks;
    // INIT or PULL, then PUSH, of every chunk, BYE and QUIT are the most that is queued.
    PS_TRY(ps_command_queue_init(&c->commands, (uint32_t)(2 * n + 2)));
    c->n_words = (uint32_t)(n + 63) / 64;
    PS_TRY(ps_mem_zalloc(&c->chunks, n, sizeof *c->chunks, "commands"));
    PS_TRY(ps_mem_zalloc(&c->versions, n, sizeof *c->versions, "versions"));
    PS_TRY(ps_mem_zalloc(&c->asked, n, sizeof *c->asked, "versions"));
    PS_TRY(ps_mem_zalloc(&c->links, c->n_links, sizeof *c->links, "links"));
    PS_TRY(ps_mem_zalloc(&c->items, 2 * c->n_links + 2, sizeof *c->items, "links"));
    c->paced.pace.one_host = c->plan->size.one_host;
    PS_TRY(ps_mem_zalloc(&c->paced.figures, ps_pace_of_worker((int)c->n_links),
                         sizeof *c->paced.figures, "steps"));
    PS_TRY(ps_mem_zalloc(&c->paced.n_sent, c->n_links, sizeof *c->paced.n_sent, "steps"));
    for (uint32_t i = 0; i < n; i++)
        atomic_init(&c->versions[i], (int64_t)ps_comm_first_version(c, i) - 1);
    return PS_OK;
}

static ps_err init_codec(ps_comm *c)
{
    uint32_t n = c->plan->n_chunks;
    PS_TRY(ps_chunk_codec_init(&c->codec, c->o.config, c->o.table));
    ps_chunk_codec_end(&c->codec, c->o.total_steps);
    PS_TRY(ps_mem_zalloc(&c->encoded, n, sizeof *c->encoded, "codecs"));
    if (c->codec.codec == PS_CODEC_NONE) return PS_OK;
    for (uint32_t i = 0; i < n; i++) {
        const ps_chunk *chunk = &c->plan->chunks[i];
        if (ps_chunk_codec_of(&c->codec, chunk, PS_CODED_GRADIENT, 0) == PS_CODEC_NONE)
            continue;
        uint64_t bytes = ps_chunk_codec_most_bytes(&c->codec, chunk, PS_CODED_GRADIENT);
        PS_TRY(ps_mem_zalloc_aligned(&c->encoded[i], bytes, "a payload"));
    }
    if (!ps_codec_feeds_back(c->codec.codec)) return PS_OK;
    PS_TRY(ps_mem_zalloc_large(&c->residual, c->o.grads->bytes, "residuals"));
    if (c->o.config->sync.policy != PS_POLICY_BACKUP ||
        c->o.config->sync.late != PS_LATE_DROP)
        return PS_OK;
    return ps_mem_zalloc_large(&c->residual_before, c->o.grads->bytes, "residuals");
}

static void init_scale(ps_comm *c)
{
    const ps_loss_scale *first = &c->o.rule->scale;
    uint32_t bits;
    memcpy(&bits, &first->scale, sizeof bits);
    c->scales = c->codec.overflow = first->on;
    c->scale_version = c->o.first_step;
    atomic_init(&c->scale_bits, bits);
}

ps_err ps_comm_memory_init(ps_comm *c)
{
    c->bell = &c->own_bell;
    ps_wire_frames_open(&c->ring_frames);
    PS_TRY(comm_alloc_arrays(c));
    PS_TRY(init_codec(c));
    init_scale(c);
    return PS_OK;
}

void ps_comm_memory_fini(ps_comm *c)
{
    if (c->bell) ps_wire_frames_close(&c->ring_frames);
    ps_shared_mem_fini(&c->ring_memory);
    ps_command_queue_fini(&c->commands);
    free(c->links);
    free(c->items);
    free(c->chunks);
    free(c->versions);
    free(c->asked);
    for (uint32_t i = 0; c->encoded && i < c->plan->n_chunks; i++)
        free(c->encoded[i]);
    free(c->encoded);
    free(c->residual);
    free(c->residual_before);
    free(c->paced.figures);
    free(c->paced.n_sent);
}

void ps_comm_progress(ps_comm *c, uint32_t wait_id)
{
    atomic_store_explicit(&c->progress_ns, ps_clock_awake_ns(), memory_order_relaxed);
    uint32_t wanted = atomic_load(&c->bell->wanted);
    if (wanted == wait_id || wanted == PS_COMM_WAIT_ANY) ps_bell_ring(c->bell);
}

void ps_comm_set_version(ps_comm *c, uint32_t chunk, int64_t version)
{
    atomic_store(&c->versions[chunk], version);
    if (c->told) c->told(c->told_ctx, chunk, version);
    ps_comm_progress(c, chunk + 1);
}

ps_wire_header ps_comm_header(const ps_comm *c, int kind)
{
    return (ps_wire_header){
        .version = PS_WIRE_VERSION,
        .kind = (uint8_t)kind,
        .nonce = c->nonce,
        .epoch = c->epoch,
        .rank = (uint32_t)c->o.rank,
    };
}

void ps_comm_pace_given(ps_comm *c, uint32_t shard)
{
    if (ps_member_tells_pace(c->o.member))
        c->paced.figures[1 + shard] = ps_member_time_ns(c->o.member, ps_clock_ns());
}

void ps_comm_pace_sent(ps_comm *c, uint32_t shard, uint64_t step)
{
    const uint32_t n = c->n_links;
    double *sums = c->paced.figures + 1 + 2 * n;
    if (!ps_member_tells_pace(c->o.member)) return;
    if (c->paced.sent_step != step) {
        memset(sums, 0, n * sizeof *sums);
        memset(c->paced.n_sent, 0, n * sizeof *c->paced.n_sent);
    }
    c->paced.sent_step = step;
    c->paced.n_sent[shard]++;
    sums[shard] += ps_member_time_ns(c->o.member, ps_clock_ns());
}

/* All chunks that were sent to a shard have come back from it. */
static void comm_tell_pace(ps_comm *c, uint64_t step)
{
    const uint32_t n = c->n_links;
    double *f = c->paced.figures, *means = f + 1 + 2 * n;
    // How long a program without steps of its own computes is not known.
    if (c->paced.sent_step != step || atomic_load(&c->computed_step) != step + 1) return;
    f[0] = (double)atomic_load(&c->computed_ns);
    for (uint32_t i = 0; i < n; i++) {
        if (c->paced.n_sent[i] == 0) return;
        means[i] /= c->paced.n_sent[i];
        means[n + i] /= c->paced.n_sent[i];
    }
    ps_member_pace(c->o.member, step, 0, f, ps_pace_of_worker((int)n));
    c->paced.sent_step = 0; // the sums are means now
}

void ps_comm_pace_had(ps_comm *c, uint32_t shard, uint64_t step)
{
    const uint32_t n = c->n_links;
    double *last = c->paced.figures + 1 + n, *sums = last + 2 * n;
    if (!ps_member_tells_pace(c->o.member)) return;
    if (c->paced.step != step) {
        c->paced.n_had = 0;
        memset(sums, 0, n * sizeof *sums);
    }
    c->paced.step = step;
    const uint64_t now_ns = ps_clock_ns();
    last[shard] = ps_member_time_ns(c->o.member, now_ns);
    sums[shard] += last[shard];
    if (++c->paced.n_had == c->plan->n_chunks &&
        ps_pace_step(&c->paced.pace, step, now_ns))
        comm_tell_pace(c, step);
}

const char *ps_comm_lost_text(const ps_comm_link *l, char *text, size_t cap)
{
    uint64_t lost_ns = atomic_load(&l->lost_ns);
    text[0] = '\0';
    if (lost_ns)
        snprintf(text, cap, "; there has been no connection to it for %.1f s",
                 (double)(ps_clock_awake_ns() - lost_ns) * 1e-9);
    return text;
}

void ps_comm_fail(ps_comm *c, ps_err err)
{
    if (atomic_exchange(&c->failing, true)) return;
    c->failure = ps_err_save(err);
    atomic_store(&c->failed, true);
    ps_bell_ring(c->bell);
}

ps_err ps_comm_check(const ps_comm *c)
{
    return atomic_load(&c->failed) ? ps_err_restore(&c->failure) : PS_OK;
}
