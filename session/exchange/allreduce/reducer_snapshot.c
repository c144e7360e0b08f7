#include "reducer_snapshot.h"

#include <stdlib.h>
#include <string.h>

#include "rank_pieces.h"

/* The parts of each rank, one after another. */
typedef struct packed {
    size_t *bytes; // by rank, of one state
    void **memory; // by rank; those that this rank has
    int holder;    // gets the parts of all, as rank 0 does; 0: none
} packed;

/* Whether the rank gets the parts of all. */
static bool reducer_snapshot_gathers(const ps_reducer *r, int holder)
{
    return r->at->rank == 0 || (holder && r->at->rank == holder);
}

static int reducer_snapshot_part_of(const ps_reducer *r, int rank)
{
    return r->scatter.n_ranks > 1 ? rank : 0;
}

static size_t part_bytes(const ps_reducer *r, int rank)
{
    return ps_scatter_before(&r->scatter, r->buckets.n,
                             reducer_snapshot_part_of(r, rank)) *
           sizeof(float);
}

static ps_err packed_init(packed *p, const ps_reducer *r)
{
    const size_t n = (size_t)r->at->world_size;
    PS_TRY(ps_mem_zalloc(&p->bytes, n, sizeof *p->bytes, "a checkpoint's parts"));
    PS_TRY(ps_mem_zalloc(&p->memory, n, sizeof *p->memory, "a checkpoint's parts"));
    for (int rank = 0; rank < r->at->world_size; rank++) {
        p->bytes[rank] = part_bytes(r, rank);
        if (reducer_snapshot_gathers(r, p->holder) || r->at->rank == rank)
            PS_TRY(ps_mem_zalloc(&p->memory[rank], p->bytes[rank], 1,
                                 "a checkpoint's parts"));
    }
    return PS_OK;
}

static void packed_fini(packed *p, const ps_reducer *r)
{
    for (int rank = 0; p->memory && rank < r->at->world_size; rank++)
        free(p->memory[rank]);
    free(p->memory);
    free(p->bytes);
}

static ps_rank_pieces reducer_snapshot_pieces_of(const packed *p, const ps_reducer *r)
{
    return (ps_rank_pieces){.member = r->at->member,
                            .rank = r->at->rank,
                            .world_size = r->at->world_size,
                            .holder = p->holder,
                            .timeout_ms = r->at->settings.step_timeout_ms,
                            .bytes = p->bytes,
                            .memory = p->memory};
}

/* What is done with the part [offset, offset + count) of the arena, packed at `at`. */
typedef ps_err (*part_fn)(const ps_reducer *r, int state, uint64_t offset, uint64_t count,
                          float *at, float *arena);

static ps_err for_parts(const ps_reducer *r, const packed *p, int rank, int state,
                        part_fn fn, float *arena)
{
    float *at = p->memory[rank];
    for (int b = 0; b < r->buckets.n; b++) {
        const ps_chunk *part =
            ps_scatter_part(&r->scatter, b, reducer_snapshot_part_of(r, rank));
        PS_TRY(fn(r, state, part->offset, part->count, at, arena));
        at += part->count;
    }
    return PS_OK;
}

static ps_err from_stream(const ps_reducer *r, int state, uint64_t offset, uint64_t count,
                          float *at, float *arena)
{
    return r->stream->ops->save_state(r->stream, state, offset, count, at);
}

static ps_err to_stream(const ps_reducer *r, int state, uint64_t offset, uint64_t count,
                        float *at, float *arena)
{
    return r->stream->ops->load_state(r->stream, state, offset, count, at);
}

static ps_err to_arena(const ps_reducer *r, int state, uint64_t offset, uint64_t count,
                       float *at, float *arena)
{
    memcpy(arena + offset, at, count * sizeof *at);
    return PS_OK;
}

static ps_err from_arena(const ps_reducer *r, int state, uint64_t offset, uint64_t count,
                         float *at, float *arena)
{
    memcpy(at, arena + offset, count * sizeof *at);
    return PS_OK;
}

/* The arena and all that is packed, where both are. */
static ps_err for_all(const ps_reducer *r, const packed *p, part_fn fn, float *arena)
{
    for (int rank = 0; rank < r->at->world_size && reducer_snapshot_gathers(r, p->holder);
         rank++)
        PS_TRY(for_parts(r, p, rank, 0, fn, arena));
    return PS_OK;
}

static ps_err save_state(const ps_reducer *r, const packed *p, int state, float *arena)
{
    const ps_rank_pieces pieces = reducer_snapshot_pieces_of(p, r);
    const bool whole = r->scatter.n_ranks == 1; // then all ranks have the same
    if (whole && !reducer_snapshot_gathers(r, p->holder)) return PS_OK;
    PS_TRY(for_parts(r, p, r->at->rank, state, from_stream, NULL));
    if (whole) return for_parts(r, p, r->at->rank, state, to_arena, arena);
    PS_TRY(ps_rank_pieces_gather(&pieces));
    return for_all(r, p, to_arena, arena);
}

static ps_err load_state(const ps_reducer *r, const packed *p, int state, float *arena)
{
    const ps_rank_pieces pieces = reducer_snapshot_pieces_of(p, r);
    PS_TRY(for_all(r, p, from_arena, arena));
    PS_TRY(ps_rank_pieces_scatter(&pieces));
    return for_parts(r, p, r->at->rank, state, to_stream, NULL);
}

static ps_err for_states(ps_reducer *r, const ps_exchange_state *s, int holder,
                         ps_err (*fn)(const ps_reducer *, const packed *, int, float *))
{
    packed p = {.holder = holder};
    ps_err err = packed_init(&p, r);
    for (int i = 0; i < r->rule.optimizer.n_states && err == PS_OK; i++)
        err = fn(r, &p, i, s->states[i]);
    if (err == PS_OK && r->at->table->optional)
        err = fn(r, &p, PS_STREAM_MISSED, s->missed);
    packed_fini(&p, r);
    return err;
}

ps_err ps_reducer_save(ps_reducer *r, ps_exchange_state *out)
{
    PS_TRY(for_states(r, out, out->holder, save_state));
    return ps_step_rule_save(&r->rule, out->rule, &out->rule_bytes);
}

ps_err ps_reducer_load(ps_reducer *r, const ps_exchange_state *in)
{
    return for_states(r, in, 0, load_state);
}
