#include "snapshot.h"

#include <stdlib.h>
#include <string.h>

#include "chunk_codec.h"
#include "rank_pieces.h"

ps_snapshot_shape ps_snapshot_shape_of(const ps_config *cfg, const ps_tensor_table *table,
                                       const ps_optimizer *optimizer, int n_ranks)
{
    const bool ps = cfg->exchange.name == PS_EXCHANGE_PS;
    ps_chunk_codec codec = {0};
    const bool coded = ps && ps_chunk_codec_init(&codec, cfg, table) == PS_OK &&
                       codec.codec != PS_CODEC_NONE;
    return (ps_snapshot_shape){.table = table,
                               .optimizer = optimizer,
                               .n_ranks = n_ranks,
                               .told = coded,
                               .feedback = coded && ps_codec_feeds_back(codec.codec)};
}

static ps_err arena(const ps_snapshot_shape *shape, float **out)
{
    return ps_mem_zalloc_large(out, shape->table->arena_count * sizeof(float),
                               "a checkpoint");
}

static ps_err init_feedback(ps_snapshot *s, const ps_snapshot_shape *shape, int rank)
{
    PS_TRY(ps_mem_zalloc(&s->feedback, (size_t)shape->n_ranks, sizeof *s->feedback,
                         "a checkpoint"));
    for (int r = 0; r < shape->n_ranks; r++)
        if (rank == 0 || r == rank) PS_TRY(arena(shape, &s->feedback[r]));
    s->exchange.feedback = s->feedback[rank];
    return PS_OK;
}

ps_err ps_snapshot_init(ps_snapshot *s, const ps_snapshot_shape *shape, int rank)
{
    *s = (ps_snapshot){.n_ranks = shape->n_ranks};
    if (shape->feedback) PS_TRY(init_feedback(s, shape, rank));
    if (rank != 0) return PS_OK;
    PS_TRY(arena(shape, &s->params));
    PS_TRY(ps_mem_zalloc(&s->buffers, shape->table->buffer_bytes + 1, 1, "a checkpoint"));
    for (int i = 0; i < shape->optimizer->n_states; i++)
        PS_TRY(arena(shape, &s->exchange.states[i]));
    return shape->told ? arena(shape, &s->exchange.weights) : PS_OK;
}

void ps_snapshot_drop_arrays(ps_snapshot *s)
{
    for (int r = 0; s->feedback && r < s->n_ranks; r++)
        free(s->feedback[r]);
    free(s->feedback);
    for (int i = 0; i < PS_OPTIMIZER_MAX_STATES; i++)
        free(s->exchange.states[i]);
    free(s->exchange.weights);
    free(s->params);
    free(s->buffers);
    *s = (ps_snapshot){.trainer = s->trainer};
}

void ps_snapshot_fini(ps_snapshot *s)
{
    ps_snapshot_drop_arrays(s);
    ps_trainer_snapshot_fini(&s->trainer);
}

ps_err ps_snapshot_fold_feedback(const ps_snapshot *s, const ps_snapshot_shape *shape,
                                 ps_snapshot *out)
{
    *out = (ps_snapshot){.n_ranks = shape->n_ranks};
    if (!shape->feedback) return PS_OK;
    PS_TRY(init_feedback(out, shape, 0));
    for (int r = 0; r < s->n_ranks; r++) {
        float *to = out->feedback[r % out->n_ranks];
        const float *from = s->feedback[r];
        for (size_t i = 0; i < shape->table->arena_count; i++)
            to[i] = r < out->n_ranks ? from[i] : to[i] + from[i];
    }
    return PS_OK;
}

typedef ps_err (*transfer)(const ps_rank_pieces *p);

static ps_err move_feedback(const ps_snapshot *s, const ps_snapshot_shape *shape,
                            ps_member *member, int rank, uint64_t timeout_ms, transfer fn)
{
    size_t *bytes;
    if (!shape->feedback) return PS_OK;
    PS_TRY(ps_mem_zalloc(&bytes, (size_t)s->n_ranks, sizeof *bytes, "a checkpoint"));
    for (int r = 0; r < s->n_ranks; r++)
        bytes[r] = shape->table->arena_count * sizeof(float);
    const ps_rank_pieces pieces = {.member = member,
                                   .rank = rank,
                                   .world_size = s->n_ranks,
                                   .timeout_ms = timeout_ms,
                                   .bytes = bytes,
                                   .memory = (void *const *)s->feedback};
    ps_err err = fn(&pieces);
    free(bytes);
    return err;
}

ps_err ps_snapshot_gather_feedback(ps_snapshot *s, const ps_snapshot_shape *shape,
                                   ps_member *member, int rank, uint64_t timeout_ms)
{
    return move_feedback(s, shape, member, rank, timeout_ms, ps_rank_pieces_gather);
}

ps_err ps_snapshot_scatter_feedback(const ps_snapshot *s, const ps_snapshot_shape *shape,
                                    ps_member *member, int rank, uint64_t timeout_ms)
{
    return move_feedback(s, shape, member, rank, timeout_ms, ps_rank_pieces_scatter);
}
