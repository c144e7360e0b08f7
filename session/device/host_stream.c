#include <stdlib.h>
#include <string.h>

#include "absent.h"
#include "device_stream.h"
#include "finite.h"
#include "floats.h"
#include "gradnorm.h"
#include "lamb.h"
#include "mem.h"

typedef struct host_stream {
    ps_device_stream base;
    ps_host_stream_options at;
    /* Each is as large as the arena; a rank that steps only a part touches only that
     * part's pages. */
    float *states[PS_OPTIMIZER_MAX_STATES];
    /* By tensor, of an optional table; else NULL. A tensor that is stepped in several
     * parts misses the step once. */
    ps_absence *absence;
    uint64_t *last_missed;   // the step's t
    float *anchor, *changes; // borrowed
} host_stream;

static host_stream *host_stream_of(ps_device_stream *s)
{
    return (host_stream *)s;
}

static ps_err host_nothing(ps_device_stream *s)
{
    return PS_OK;
}

static ps_err host_move(ps_device_stream *s, unsigned arenas)
{
    return PS_OK;
}

static ps_err host_done(ps_device_stream *s, bool *done)
{
    *done = true;
    return PS_OK;
}

static ps_err host_check_finite(ps_device_stream *s, uint64_t offset, uint64_t count,
                                bool *finite)
{
    *finite = ps_finite_all(host_stream_of(s)->at.grads + offset, count);
    return PS_OK;
}

static ps_err host_unscale(ps_device_stream *s, uint64_t offset, uint64_t count,
                           float factor, bool *finite)
{
    float *g = host_stream_of(s)->at.grads + offset;
    ps_floats_scale(g, factor, count);
    return host_check_finite(s, offset, count, finite);
}

static ps_err host_norm_sums(ps_device_stream *s, const ps_chunk *chunk, double *sums)
{
    ps_gradnorm_chunk(host_stream_of(s)->at.table, chunk,
                      host_stream_of(s)->at.grads + chunk->offset, sums);
    return PS_OK;
}

/* Copies the missed steps of the tensors in the range. */
static void move_missed(host_stream *s, uint64_t offset, uint64_t count, float *out,
                        const float *from)
{
    const ps_chunk range = {.offset = offset, .count = count};
    for (int i = 0; i < s->at.table->n_tensors; i++) {
        const ps_tensor *t = &s->at.table->tensors[i];
        uint32_t *missed = &s->absence[i].missed;
        uint64_t begin, end;
        if (t->offset >= offset + count) return; // they are in the order of the arena
        ps_chunk_overlap(&range, t, &begin, &end);
        if (begin >= end) continue;
        const uint64_t at = t->offset + begin - offset;
        if (from) memcpy(missed, from + at, sizeof *missed);
        for (uint64_t k = 0; out && k < end - begin; k++)
            memcpy(out + at + k, missed, sizeof *missed);
    }
}

static ps_err host_save_state(ps_device_stream *s, int i, uint64_t offset, uint64_t count,
                              float *out)
{
    if (i == PS_STREAM_MISSED)
        move_missed(host_stream_of(s), offset, count, out, NULL);
    else
        memcpy(out, host_stream_of(s)->states[i] + offset, count * sizeof *out);
    return PS_OK;
}

static ps_err host_load_state(ps_device_stream *s, int i, uint64_t offset, uint64_t count,
                              const float *from)
{
    if (i == PS_STREAM_MISSED)
        move_missed(host_stream_of(s), offset, count, NULL, from);
    else
        memcpy(host_stream_of(s)->states[i] + offset, from, count * sizeof *from);
    return PS_OK;
}

static ps_err host_note_absent(ps_device_stream *base, const ps_chunk *chunk)
{
    host_stream *s = host_stream_of(base);
    for (int i = chunk->first_tensor; i <= chunk->last_tensor; i++) {
        const ps_tensor *t = &s->at.table->tensors[i];
        uint64_t begin, end;
        ps_chunk_overlap(chunk, t, &begin, &end);
        if (begin < end)
            s->absence[i].now = ps_absent_at(s->at.grads + t->offset + begin);
    }
    return PS_OK;
}

/* Whether the tensor is left as it is in the step; counts it once. */
static bool host_stream_misses(host_stream *s, int tensor, const ps_optimizer_step *step)
{
    if (!s->absence || !s->absence[tensor].now) return false;
    s->absence[tensor].missed += s->last_missed[tensor] != step->t;
    s->last_missed[tensor] = step->t;
    return true;
}

static ps_err host_apply(ps_device_stream *base, const ps_optimizer_step *step,
                         const ps_chunk *chunk)
{
    host_stream *s = host_stream_of(base);
    const ps_optimizer *opt = s->at.optimizer;
    for (int i = chunk->first_tensor; i <= chunk->last_tensor; i++) {
        const ps_tensor *t = &s->at.table->tensors[i];
        uint64_t begin, end;
        if (host_stream_misses(s, i, step)) continue;
        ps_optimizer_step now = *step;
        if (s->absence) now.t -= s->absence[i].missed;
        ps_chunk_overlap(chunk, t, &begin, &end);
        uint64_t at = t->offset + begin;
        float *states[PS_OPTIMIZER_MAX_STATES] = {0};
        for (int k = 0; k < opt->n_states; k++)
            states[k] = s->states[k] + at;
        const ps_optimizer_scalars scalars = ps_optimizer_scalars_in(
            opt, &now, t->group, ps_optimizer_decay(opt, t->role));
        ps_optimizer_apply_by(opt, &scalars, end - begin, s->at.params + at,
                              s->at.grads + at, states);
    }
    return PS_OK;
}

static ps_lamb_part host_stream_part_of(const host_stream *s, const ps_chunk *chunk)
{
    const ps_optimizer *opt = s->at.optimizer;
    ps_lamb_part part = {.table = s->at.table,
                         .chunk = chunk,
                         .optimizer = opt,
                         .weights = s->at.params + chunk->offset,
                         .grads = s->at.grads + chunk->offset};
    for (int k = 0; k < opt->n_states; k++)
        part.states[k] = s->states[k] + chunk->offset;
    return part;
}

/* After it a part begins with -0.0 only where the gradient is lacking. */
static void show_absent(host_stream *s, const ps_chunk *chunk)
{
    for (int i = chunk->first_tensor; i <= chunk->last_tensor && s->absence; i++) {
        const ps_tensor *t = &s->at.table->tensors[i];
        uint64_t begin, end;
        ps_chunk_overlap(chunk, t, &begin, &end);
        if (begin < end && !s->absence[i].now)
            ps_absent_not(s->at.grads + t->offset + begin);
    }
}

static ps_err host_lamb_update(ps_device_stream *s, const ps_optimizer_step *step,
                               const ps_chunk *chunk, double *weight_sums,
                               double *update_sums)
{
    const ps_lamb_part part = host_stream_part_of(host_stream_of(s), chunk);
    show_absent(host_stream_of(s), chunk);
    ps_lamb_update(&part, step, weight_sums, update_sums);
    return PS_OK;
}

static ps_err host_lamb_apply(ps_device_stream *s, const ps_optimizer_step *step,
                              const ps_chunk *chunk, const double *sums)
{
    const ps_lamb_part part = host_stream_part_of(host_stream_of(s), chunk);
    ps_lamb_apply(&part, step, sums);
    return PS_OK;
}

static ps_err host_use_anchor(ps_device_stream *s, float *anchor, float *changes)
{
    host_stream_of(s)->anchor = anchor;
    host_stream_of(s)->changes = changes;
    return PS_OK;
}

static ps_err host_take_anchor(ps_device_stream *s, uint64_t offset, uint64_t count,
                               float kept)
{
    const float *anchor = host_stream_of(s)->anchor + offset, taken = 1 - kept;
    float *weights = host_stream_of(s)->at.params + offset;
    if (kept == 0) {
        memcpy(weights, anchor, count * sizeof *weights);
        return PS_OK;
    }
    for (uint64_t i = 0; i < count; i++)
        weights[i] = kept * weights[i] + taken * anchor[i];
    return PS_OK;
}

static ps_err host_change(ps_device_stream *s, uint64_t offset, uint64_t count,
                          float share)
{
    const float *anchor = host_stream_of(s)->anchor + offset;
    const float *weights = host_stream_of(s)->at.params + offset;
    float *change = host_stream_of(s)->changes + offset;
    for (uint64_t i = 0; i < count; i++)
        change[i] = (anchor[i] - weights[i]) * share;
    return PS_OK;
}

static size_t state_bytes(const host_stream *s)
{
    return s->at.table->arena_count * sizeof(float);
}

static void host_destroy(ps_device_stream **base)
{
    host_stream *s = host_stream_of(*base);
    for (int k = 0; k < PS_OPTIMIZER_MAX_STATES; k++)
        if (s->at.whole)
            free(s->states[k]);
        else
            ps_mem_unmap(s->states[k], state_bytes(s));
    free(s->absence);
    free(s->last_missed);
    free(s);
    *base = NULL;
}

static const ps_device_stream_ops host_stream_ops = {
    .from_host = host_move,
    .to_host = host_move,
    .wait_compute = host_nothing,
    .release_compute = host_nothing,
    .mark = host_nothing,
    .done = host_done,
    .check_finite = host_check_finite,
    .unscale = host_unscale,
    .gradnorm_sums = host_norm_sums,
    .save_state = host_save_state,
    .load_state = host_load_state,
    .note_absent = host_note_absent,
    .apply = host_apply,
    .lamb_update = host_lamb_update,
    .lamb_apply = host_lamb_apply,
    .use_anchor = host_use_anchor,
    .take_anchor = host_take_anchor,
    .change = host_change,
    .destroy = host_destroy,
};

static ps_err alloc_absence(host_stream *s)
{
    const size_t n = (size_t)s->at.table->n_tensors;
    if (!s->at.table->optional) return PS_OK;
    PS_TRY(PS_NEW(&s->absence, n, "tensors"));
    return PS_NEW(&s->last_missed, n, "tensors");
}

ps_err ps_host_stream_create(const ps_host_stream_options *options,
                             ps_device_stream **out)
{
    *out = NULL;
    host_stream *s = NULL;
    PS_TRY(PS_NEW(&s, 1, "host stream"));
    s->base = (ps_device_stream){.ops = &host_stream_ops,
                                 .params = options->params,
                                 .grads = options->grads,
                                 .buffers = options->buffers};
    s->at = *options;
    ps_device_stream *base = &s->base;
    for (int k = 0; k < options->optimizer->n_states; k++) {
        ps_err err = (options->whole ? ps_mem_zalloc_large : ps_mem_map_zeroed)(
            &s->states[k], state_bytes(s), "optimizer state");
        if (err != PS_OK) {
            host_destroy(&base);
            return err;
        }
    }
    const ps_err err = alloc_absence(s);
    if (err == PS_OK)
        *out = base;
    else
        host_destroy(&base);
    return err;
}
