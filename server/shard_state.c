#include "shard_state.h"

#include <inttypes.h>
#include <stdlib.h>

#include "gradnorm.h"
#include "lamb.h"
#include "mem.h"
#include "nontemporal_copy.h"

static uint32_t shard_count_chunks(const ps_plan *plan, uint32_t shard)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < plan->n_chunks; i++)
        n += plan->chunks[i].shard == shard;
    return n;
}

static void list_senders(ps_shard *s)
{
    const bool leaders = ps_config_two_levels(s->o.config);
    for (int r = 0; r < s->o.n_workers; r++) {
        s->sends[r] = !leaders || ps_roster_leader(ps_member_roster(s->member), r) == r;
        if (s->sends[r]) s->senders[s->n_senders++] = (uint32_t)r;
    }
}

static ps_err shard_alloc_arrays(ps_shard *s)
{
    const ps_plan *plan = s->o.plan;
    size_t workers = (size_t)s->o.n_workers;
    s->bypass_caches =
        ps_nontemporal_copy_pays(s->o.table->arena_count * sizeof(float) * workers);
    s->n_chunks = shard_count_chunks(plan, s->index);
    PS_TRY(PS_NEW(&s->chunks, s->n_chunks, "a shard's chunks"));
    PS_TRY(PS_NEW(&s->chunk_of, plan->n_chunks, "a shard's chunks"));
    PS_TRY(PS_NEW(&s->peers, workers, "a shard's peers"));
    PS_TRY(PS_NEW(&s->senders, workers, "a shard's peers"));
    PS_TRY(PS_NEW(&s->sends, workers, "a shard's peers"));
    list_senders(s);
    PS_TRY(PS_NEW(&s->grads, workers, "a shard's peers"));
    PS_TRY(PS_NEW(&s->copies, workers, "a shard's peers"));
    PS_TRY(PS_NEW(&s->payloads, workers, "a shard's peers"));
    if (s->codec.codec != PS_CODEC_NONE) {
        size_t bytes = plan->max_chunk_count * sizeof(float);
        PS_TRY(ps_mem_zalloc_aligned(&s->sum, bytes, "a decoded chunk"));
        PS_TRY(ps_mem_zalloc_aligned(&s->decoded, bytes, "a decoded chunk"));
    }
    s->paced.pace.one_host = s->o.plan->size.one_host;
    PS_TRY(PS_NEW(&s->paced.figures, ps_pace_of_shard(s->o.n_workers), "steps"));
    return PS_NEW(&s->unsent, s->n_chunks, "answers");
}
/* Where workers have versions of their own: for compensations; and with a codec, so that
 * repeated answers are the same in every chunk. */
static bool notes_known(const ps_shard *s)
{
    return s->pace->by_worker && (s->codec.codec != PS_CODEC_NONE ||
                                  s->o.config->sync.correction == PS_CORRECTION_DELAY);
}

static ps_err init_chunk(ps_shard *s, uint32_t i, uint32_t index, float *slab)
{
    ps_shard_chunk *c = &s->chunks[i];
    c->index = index;
    c->chunk = &s->o.plan->chunks[index];
    s->chunk_of[index] = i;
    ps_policy_chunk_init(&c->policy, s->n_senders);
    c->policy.first = (int64_t)ps_chunk_first_version(c->chunk, s->first_step, s->ahead);
    PS_TRY(ps_aggregate_init(&c->memory, s->o.table, c->chunk, &s->rule.optimizer,
                             s->norm.waits, slab));
    PS_TRY(ps_coded_chunk_init(
        &c->coded, &s->codec, c->chunk, ps_optimizer_adds_up(&s->rule.optimizer),
        s->pace->by_worker ? (uint32_t)s->o.n_workers : 1, notes_known(s)));
    PS_TRY(PS_NEW(&c->pushes, (size_t)s->o.n_workers, "a chunk's pushes"));
    PS_TRY(PS_NEW(&c->early, (size_t)s->o.n_workers, "a chunk's pushes"));
    for (int r = 0; r < s->o.n_workers; r++) {
        zmq_msg_init(&c->pushes[r]);
        zmq_msg_init(&c->early[r]);
    }
    return PS_OK;
}

static ps_err alloc_chunks(ps_shard *s)
{
    const ps_plan *plan = s->o.plan;
    uint64_t total = 0;
    for (uint32_t i = 0; i < plan->n_chunks; i++)
        if (plan->chunks[i].shard == s->index)
            total += ps_aggregate_slab_count(&plan->chunks[i], &s->rule.optimizer,
                                             s->norm.waits);
    PS_TRY(ps_mem_zalloc_large(&s->slab, total * sizeof *s->slab,
                               "a shard's weights and optimizer state"));
    float *slab = s->slab;
    uint32_t n = 0;
    for (uint32_t i = 0; i < plan->n_chunks; i++) {
        if (plan->chunks[i].shard != s->index) continue;
        PS_TRY(init_chunk(s, n++, i, slab));
        slab +=
            ps_aggregate_slab_count(&plan->chunks[i], &s->rule.optimizer, s->norm.waits);
    }
    return PS_OK;
}

/* With LAMB the sums of the updates follow those of all weights. */
static ps_err alloc_norm(ps_shard *s)
{
    ps_shard_norm *n = &s->norm;
    const size_t runs = s->n_chunks, times = n->trusts ? 2 : 1;
    const uint64_t blocks = ps_gradnorm_blocks(s->o.table);
    PS_TRY(PS_NEW(&n->run_first, times * runs, "gradient norm runs"));
    PS_TRY(PS_NEW(&n->run_counts, times * runs, "gradient norm runs"));
    for (size_t i = 0; i < runs; i++) {
        n->run_first[i] =
            ps_gradnorm_chunk_blocks(s->o.table, s->chunks[i].chunk, &n->run_counts[i]);
        n->n_blocks += n->run_counts[i];
        if (!n->trusts) continue;
        n->run_first[runs + i] = blocks + n->run_first[i];
        n->run_counts[runs + i] = n->run_counts[i];
    }
    if (n->trusts)
        PS_TRY(PS_NEW(&n->all_sums, ps_lamb_sums(s->o.table), "the sums of all blocks"));
    return PS_NEW(&n->block_sums, n->n_blocks * times, "gradient norm sums");
}

ps_err ps_shard_memory_init(ps_shard *s)
{
    PS_TRY(shard_alloc_arrays(s));
    if (s->pace->open) PS_TRY(s->pace->open(s));
    PS_TRY(alloc_chunks(s));
    return alloc_norm(s);
}

static void free_chunks(ps_shard *s)
{
    for (uint32_t i = 0; s->chunks && i < s->n_chunks; i++) {
        ps_shard_chunk *c = &s->chunks[i];
        for (int r = 0; c->early && r < s->o.n_workers; r++) {
            zmq_msg_close(&c->pushes[r]);
            zmq_msg_close(&c->early[r]);
        }
        free(c->pushes);
        free(c->early);
        ps_coded_chunk_fini(&c->coded);
        ps_aggregate_fini(&c->memory);
    }
    free(s->chunks);
}

void ps_shard_memory_fini(ps_shard *s)
{
    free_chunks(s);
    free(s->chunk_of);
    free(s->peers);
    free(s->senders);
    free(s->sends);
    free(s->grads);
    free(s->copies);
    free(s->unsent);
    free(s->paced.figures);
    free(s->payloads);
    free(s->sum);
    free(s->decoded);
    free(s->slab);
    free(s->norm.run_first);
    free(s->norm.run_counts);
    free(s->norm.block_sums);
    free(s->norm.all_sums);
    if (s->pace && s->pace->close) s->pace->close(s);
    ps_param_groups_fini(&s->groups);
}

ps_err ps_shard_adds_alone(int64_t adds, int64_t other)
{
    return ps_err_set(PS_ERR_ARG,
                      "worker %" PRId64 " adds parameters, and worker %" PRId64
                      " does not: every rank must add the same ones between the same two "
                      "steps (add_param_group, requires_grad_, another Optimizer)",
                      adds, other);
}
