#include "snapshot.h"

#include <stdlib.h>
#include <string.h>

#include "local_steps.h"
#include "rank_pieces.h"

ps_snapshot_shape ps_snapshot_shape_of(const ps_config *cfg, const ps_tensor_table *table,
                                       const ps_optimizer *optimizer, int n_ranks)
{
    const bool ps = cfg->exchange.name == PS_EXCHANGE_PS;
    const ps_codec codec = ps ? cfg->exchange.codec : PS_CODEC_NONE;
    const bool coded = codec != PS_CODEC_NONE;
    ps_snapshot_shape shape = {.table = table,
                               .optimizer = optimizer,
                               .n_ranks = n_ranks,
                               .told = coded,
                               .feedback = ps_codec_feeds_back(codec),
                               .local = ps_local_steps_on(cfg),
                               .fragments = (uint32_t)cfg->sync.fragments};
    shape.own_stays = ps_config_quorum(cfg);
    if (shape.local) ps_optimizer_init(&shape.inner, cfg);
    return shape;
}

static size_t arena_bytes(const ps_snapshot_shape *shape)
{
    return shape->table->arena_count * sizeof(float);
}

static ps_err snapshot_arena(const ps_snapshot_shape *shape, float **out)
{
    return ps_mem_zalloc_large(out, arena_bytes(shape), "a checkpoint");
}

static size_t local_bytes(const ps_snapshot_shape *shape)
{
    return ps_local_memory_bytes(shape->table, &shape->inner);
}

/* Memory of all ranks, or of this one alone. */
static ps_err init_ranks(const ps_snapshot_shape *shape, int rank, bool all, size_t bytes,
                         void ***out)
{
    PS_TRY(PS_NEW(out, (size_t)shape->n_ranks, "a checkpoint"));
    for (int r = 0; r < shape->n_ranks; r++)
        if (all || r == rank)
            PS_TRY(ps_mem_zalloc_large(&(*out)[r], bytes, "a checkpoint"));
    return PS_OK;
}

static void free_ranks(void **of, int n_ranks)
{
    for (int r = 0; of && r < n_ranks; r++)
        free(of[r]);
    free(of);
}

static ps_err init_own(ps_snapshot *s, const ps_snapshot_shape *shape, int rank, bool all)
{
    *s = (ps_snapshot){.n_ranks = shape->n_ranks};
    if (shape->feedback) {
        PS_TRY(init_ranks(shape, rank, all, arena_bytes(shape), &s->feedback));
        s->exchange.feedback = s->feedback[rank];
    }
    if (shape->local) {
        PS_TRY(init_ranks(shape, rank, all, local_bytes(shape), &s->local));
        s->exchange.local = s->local[rank];
    }
    return PS_OK;
}

ps_err ps_snapshot_init(ps_snapshot *s, const ps_snapshot_shape *shape, int rank,
                        bool all)
{
    PS_TRY(init_own(s, shape, rank, all));
    if (!all) return PS_OK;
    PS_TRY(snapshot_arena(shape, &s->params));
    PS_TRY(ps_mem_zalloc(&s->buffers, shape->table->buffer_bytes + 1, 1, "a checkpoint"));
    for (int i = 0; i < shape->optimizer->n_states; i++)
        PS_TRY(snapshot_arena(shape, &s->exchange.states[i]));
    return shape->told ? snapshot_arena(shape, &s->exchange.weights) : PS_OK;
}

void ps_snapshot_drop_arrays(ps_snapshot *s)
{
    free_ranks(s->feedback, s->n_ranks);
    free_ranks(s->local, s->n_ranks);
    for (int i = 0; i < PS_OPTIMIZER_MAX_STATES; i++)
        free(s->exchange.states[i]);
    free(s->exchange.weights);
    free(s->params);
    free(s->buffers);
    free(s->rows);
    free(s->rows_folder);
    *s = (ps_snapshot){.trainer = s->trainer};
}

void ps_snapshot_fini(ps_snapshot *s)
{
    ps_snapshot_drop_arrays(s);
    ps_trainer_snapshot_fini(&s->trainer);
}

static void fold_feedback(const ps_snapshot *s, const ps_snapshot_shape *shape,
                          ps_snapshot *out)
{
    for (int r = 0; r < s->n_ranks; r++) {
        float *to = out->feedback[r % out->n_ranks];
        const float *from = s->feedback[r];
        for (size_t i = 0; i < shape->table->arena_count; i++)
            to[i] = r < out->n_ranks ? from[i] : to[i] + from[i];
    }
}

static void *snapshot_end_of(const ps_snapshot *s, const ps_snapshot_shape *shape,
                             int rank)
{
    return ps_local_memory_end(shape->table, &shape->inner, s->local[rank]);
}

void ps_snapshot_even_shares(ps_snapshot *s, const ps_snapshot_shape *shape)
{
    ps_local_end end;
    uint64_t all[PS_MAX_FRAGMENTS] = {0};
    for (int r = 0; shape->local && r < s->n_ranks; r++) {
        memcpy(&end, snapshot_end_of(s, shape, r), sizeof end);
        for (uint32_t f = 0; f < shape->fragments; f++)
            all[f] += end.parts[f].samples;
    }
    for (int r = 0; shape->local && r < s->n_ranks; r++) {
        memcpy(&end, snapshot_end_of(s, shape, r), sizeof end);
        for (uint32_t f = 0; f < shape->fragments; f++)
            end.parts[f].all_samples = all[f];
        memcpy(snapshot_end_of(s, shape, r), &end, sizeof end);
    }
}

void ps_snapshot_renew_others(ps_snapshot *s, const ps_snapshot_shape *shape, int rank)
{
    const ps_local_end end = {.n_parts = shape->fragments};
    for (int r = 0; s->own_alone && r < s->n_ranks; r++) {
        if (r == rank) continue;
        if (shape->feedback) memset(s->feedback[r], 0, arena_bytes(shape));
        if (!shape->local) continue;
        memset(s->local[r], 0, local_bytes(shape));
        memcpy(ps_local_memory_arena(shape->table, s->local[r], 0), s->params,
               arena_bytes(shape));
        memcpy(snapshot_end_of(s, shape, r), &end, sizeof end);
    }
    s->own_alone = false;
}

ps_err ps_snapshot_fold(const ps_snapshot *s, const ps_snapshot_shape *shape,
                        ps_snapshot *out)
{
    PS_TRY(init_own(out, shape, 0, true));
    if (shape->feedback) fold_feedback(s, shape, out);
    for (int r = 0; shape->local && r < out->n_ranks; r++)
        memcpy(out->local[r], s->local[r % s->n_ranks], local_bytes(shape));
    ps_snapshot_even_shares(out, shape);
    return PS_OK;
}

/* ---- between ranks ---- */

typedef ps_err (*transfer)(const ps_rank_pieces *p);

static ps_rank_pieces snapshot_pieces_of(const ps_snapshot_ranks *ranks,
                                         const size_t *bytes, void *const *memory)
{
    return (ps_rank_pieces){.member = ranks->member,
                            .rank = ranks->rank,
                            .world_size = ranks->world_size,
                            .holder = ranks->holder,
                            .timeout_ms = ranks->timeout_ms,
                            .bytes = bytes,
                            .memory = memory};
}

/* A piece of every rank's memory after the other. */
static ps_err move_ranks(const ps_snapshot_ranks *ranks, size_t each, void *const *memory,
                         transfer fn)
{
    size_t *bytes;
    if (!memory) return PS_OK;
    PS_TRY(PS_NEW(&bytes, (size_t)ranks->world_size, "a checkpoint"));
    for (int r = 0; r < ranks->world_size; r++)
        bytes[r] = each;
    const ps_rank_pieces pieces = snapshot_pieces_of(ranks, bytes, memory);
    ps_err err = fn(&pieces);
    free(bytes);
    return err;
}

static ps_err move_own(const ps_snapshot *s, const ps_snapshot_shape *shape,
                       const ps_snapshot_ranks *ranks, transfer fn)
{
    PS_TRY(move_ranks(ranks, arena_bytes(shape), s->feedback, fn));
    return move_ranks(ranks, shape->local ? local_bytes(shape) : 0, s->local, fn);
}

ps_err ps_snapshot_gather(ps_snapshot *s, const ps_snapshot_shape *shape,
                          const ps_snapshot_ranks *ranks)
{
    return move_own(s, shape, ranks, ps_rank_pieces_gather);
}

ps_err ps_snapshot_scatter(const ps_snapshot *s, const ps_snapshot_shape *shape,
                           const ps_snapshot_ranks *ranks)
{
    return move_own(s, shape, ranks, ps_rank_pieces_scatter);
}

/* All ranks: n bytes of one rank to rank 0 and the holder. memory: of those three. */
static ps_err move_bytes(const ps_snapshot_ranks *ranks, int from, void *memory, size_t n)
{
    char nothing = 0;
    size_t *bytes = NULL;
    void **all = NULL;
    const size_t n_ranks = (size_t)ranks->world_size;
    if (n == 0) return PS_OK;
    ps_err err = PS_NEW(&bytes, n_ranks, "a checkpoint");
    if (err == PS_OK) err = PS_NEW(&all, n_ranks, "a checkpoint");
    if (err == PS_OK) {
        all[ranks->rank] = &nothing;
        all[from] = memory;
        bytes[from] = n;
        const ps_rank_pieces pieces = snapshot_pieces_of(ranks, bytes, all);
        err = ps_rank_pieces_gather(&pieces);
    }
    free(bytes);
    free(all);
    return err;
}

ps_err ps_snapshot_share_buffers(ps_snapshot *s, const ps_snapshot_shape *shape,
                                 const ps_snapshot_ranks *ranks)
{
    if (!ranks->holder) return PS_OK;
    const ps_tensor_table *table = shape->table;
    return move_bytes(ranks, 0, s->buffers, table->buffer_bytes - table->frozen_bytes);
}

/* What is no array: the trainer's numbers, and the rule's bytes behind their number. */
typedef struct head {
    size_t n_values, bytes;
    double *values;
} head;

static ps_err head_init(head *h, const ps_snapshot_shape *shape)
{
    h->n_values = ps_trainer_snapshot_n_values(shape->n_ranks);
    h->bytes = (h->n_values + 1) * sizeof *h->values + PS_STEP_RULE_STATE_BYTES;
    return ps_mem_zalloc(&h->values, h->bytes, 1, "a checkpoint");
}

static void head_write(head *h, const ps_snapshot *s)
{
    ps_trainer_snapshot_to_values(&s->trainer, h->values);
    h->values[h->n_values] = (double)s->exchange.rule_bytes;
    memcpy(h->values + h->n_values + 1, s->exchange.rule, sizeof s->exchange.rule);
}

static ps_err head_read(const head *h, ps_snapshot *s)
{
    const double bytes = h->values[h->n_values];
    if (!(bytes >= 0 && bytes <= PS_STEP_RULE_STATE_BYTES))
        return ps_err_set(PS_ERR_PROTOCOL, "a snapshot's step rule has %g bytes", bytes);
    PS_TRY(ps_trainer_snapshot_init(&s->trainer, s->n_ranks));
    ps_trainer_snapshot_from_values(h->values, &s->trainer);
    s->exchange.rule_bytes = (size_t)bytes;
    memcpy(s->exchange.rule, h->values + h->n_values + 1, sizeof s->exchange.rule);
    return PS_OK;
}

static ps_err move_head(ps_snapshot *s, const ps_snapshot_shape *shape,
                        const ps_snapshot_ranks *ranks, int from)
{
    head h;
    PS_TRY(head_init(&h, shape));
    if (ranks->rank == from) head_write(&h, s);
    ps_err err = move_bytes(ranks, from, h.values, h.bytes);
    if (err == PS_OK && ranks->rank == 0) err = head_read(&h, s);
    free(h.values);
    return err;
}

ps_err ps_snapshot_move(ps_snapshot *s, const ps_snapshot_shape *shape,
                        const ps_snapshot_ranks *ranks, int from)
{
    const ps_tensor_table *table = shape->table;
    const size_t bytes = arena_bytes(shape);
    PS_TRY(move_head(s, shape, ranks, from));
    PS_TRY(move_bytes(ranks, from, s ? s->params : NULL, bytes));
    PS_TRY(move_bytes(ranks, from, s ? s->buffers : NULL, table->buffer_bytes));
    for (int i = 0; i < shape->optimizer->n_states; i++)
        PS_TRY(move_bytes(ranks, from, s ? s->exchange.states[i] : NULL, bytes));
    if (shape->told)
        PS_TRY(move_bytes(ranks, from, s ? s->exchange.weights : NULL, bytes));
    if (shape->own_stays) return PS_OK;
    for (int r = 0; shape->feedback && r < shape->n_ranks; r++)
        PS_TRY(move_bytes(ranks, from, s ? s->feedback[r] : NULL, bytes));
    for (int r = 0; shape->local && r < shape->n_ranks; r++)
        PS_TRY(move_bytes(ranks, from, s ? s->local[r] : NULL, local_bytes(shape)));
    return PS_OK;
}
