#include "cpu_linear_rows.h"

#include <stdlib.h>
#include <string.h>

#include "mem.h"

/* sgemm's kernels work on this many rows at a time, or on divisors: with AVX-512, and
 * with AVX2. */
static const int64_t units[] = {16, 48};

/* The end of a block that begins at a row. */
static int64_t block_end(const ps_cpu_linear *l, int64_t first, int64_t rows)
{
    return first + rows < l->out ? first + rows : l->out;
}

static uint64_t linear_rows_element(const ps_cpu_linear *l, const ps_cpu_linear_range *p,
                                    int64_t row)
{
    return row < l->out ? p->weight + (uint64_t)(row * l->in) : p->end;
}

ps_err ps_cpu_linear_rows_forward(const ps_cpu_linear *l, const ps_pass_hooks *hooks,
                                  const ps_cpu_linear_range *place, const float *x,
                                  const float *weight, const float *bias, float *y,
                                  bool relu)
{
    for (int64_t row = 0, end; row < l->out; row = end) {
        end = block_end(l, row, l->forward_rows);
        PS_TRY(hooks->params_needed(hooks->ctx, linear_rows_element(l, place, row),
                                    linear_rows_element(l, place, end)));
        PS_TRY(ps_cpu_linear_forward_rows(l, x, weight, row, end - row, y));
    }
    ps_cpu_linear_forward_end(l, bias, y, relu);
    return PS_OK;
}

ps_err ps_cpu_linear_rows_backward(const ps_cpu_linear *l, const ps_pass_hooks *hooks,
                                   const ps_cpu_linear_range *place, const float *x,
                                   const float *dy, float *dweight, float *dbias,
                                   bool accumulate)
{
    const int64_t rows = l->backward_rows;
    if (dbias) ps_cpu_linear_backward_bias(l, dy, dbias, accumulate);
    for (int64_t row = 0; row < l->out; row += rows) {
        const int64_t end = block_end(l, row, rows);
        PS_TRY(
            ps_cpu_linear_backward_rows(l, x, dy, row, end - row, dweight, accumulate));
        PS_TRY(hooks->grads_ready(hooks->ctx, linear_rows_element(l, place, row),
                                  linear_rows_element(l, place, end)));
    }
    return PS_OK;
}

/* What a layer is tried with. */
typedef struct trial {
    float *x, *dy;         // (n, in), (n, out)
    float *weight;         // (out, in); then dW of the whole layer
    float *block;          // (rows, in)
    float *whole, *pieces; // (n, out)
    float *turned;         // NULL where the layer has none
} trial;

static void trial_fini(trial *t)
{
    float *const all[] = {t->x,     t->dy,     t->weight, t->block,
                          t->whole, t->pieces, t->turned};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

/* Numbers from -0.5 to 0.5 whose sums depend on the order of addition. */
static void linear_rows_fill(float *x, int64_t n)
{
    uint32_t state = 1;
    for (int64_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        x[i] = (float)(state >> 8) * 0x1p-24f - 0.5f;
    }
}

static ps_err trial_init(trial *t, const ps_cpu_linear *l, int64_t rows)
{
    const size_t turned = ps_cpu_linear_turned_bytes(l);
    const struct {
        float **at;
        int64_t count;
    } arrays[] = {{&t->x, l->n * l->in},        {&t->dy, l->n * l->out},
                  {&t->weight, l->out * l->in}, {&t->block, rows * l->in},
                  {&t->whole, l->n * l->out},   {&t->pieces, l->n * l->out}};
    *t = (trial){0};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        const size_t bytes = (size_t)arrays[i].count * sizeof(float);
        PS_TRY(ps_mem_zalloc_aligned(arrays[i].at, bytes, l->name));
    }
    if (turned) PS_TRY(ps_mem_zalloc_aligned(&t->turned, turned, l->name));
    linear_rows_fill(t->x, l->n * l->in);
    linear_rows_fill(t->dy, l->n * l->out);
    linear_rows_fill(t->weight, l->out * l->in);
    return PS_OK;
}

static ps_err try_forward(const ps_cpu_linear *l, const trial *t, int64_t rows,
                          bool *same)
{
    PS_TRY(ps_cpu_linear_forward(l, t->x, t->weight, NULL, t->whole, false));
    for (int64_t row = 0, end; row < l->out; row = end) {
        end = block_end(l, row, rows);
        PS_TRY(ps_cpu_linear_forward_rows(l, t->x, t->weight, row, end - row, t->pieces));
    }
    ps_cpu_linear_forward_end(l, NULL, t->pieces, false);
    *same = memcmp(t->whole, t->pieces, (size_t)(l->n * l->out) * sizeof *t->whole) == 0;
    return PS_OK;
}

/* Computes the gradient `times` times, all but the first added. */
static ps_err try_backward(const ps_cpu_linear *l, const trial *t, int64_t rows,
                           int times, bool *same)
{
    for (int i = 0; i < times; i++)
        PS_TRY(ps_cpu_linear_backward_rows(l, t->x, t->dy, 0, l->out, t->weight, i > 0));
    *same = true;
    for (int64_t row = 0, end; row < l->out && *same; row = end) {
        end = block_end(l, row, rows);
        const float *dy = t->dy + row; // the block's first column, as if it were row 0's
        for (int i = 0; i < times; i++)
            PS_TRY(
                ps_cpu_linear_backward_rows(l, t->x, dy, 0, end - row, t->block, i > 0));
        *same = memcmp(t->block, t->weight + row * l->in,
                       (size_t)((end - row) * l->in) * sizeof *t->block) == 0;
    }
    return PS_OK;
}

static ps_err try_rows(ps_cpu_linear *l, trial *t, int64_t rows)
{
    ps_cpu_linear with = *l;
    bool same, added;
    with.turned = t->turned;
    PS_TRY(try_forward(&with, t, rows, &same));
    if (same && !l->forward_rows) l->forward_rows = rows;
    PS_TRY(try_backward(&with, t, rows, 1, &same));
    PS_TRY(try_backward(&with, t, rows, 2, &added));
    if (same && added && !l->backward_rows) l->backward_rows = rows;
    return PS_OK;
}

/* Tries blocks of a multiple of `unit` rows, for the passes that have none yet. */
static ps_err try_unit(ps_cpu_linear *l, int64_t bytes, int64_t unit)
{
    const int64_t unit_bytes = l->in * (int64_t)sizeof(float) * unit;
    const int64_t rows = (bytes + unit_bytes - 1) / unit_bytes * unit;
    if (rows >= l->out || (l->forward_rows && l->backward_rows)) return PS_OK;
    trial t;
    ps_err err = trial_init(&t, l, rows);
    if (err == PS_OK) err = try_rows(l, &t, rows);
    trial_fini(&t);
    return err;
}

ps_err ps_cpu_linear_rows_choose(ps_cpu_linear *l, size_t bytes)
{
    if (bytes == 0 || bytes > INT64_MAX / 2) return PS_OK;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        PS_TRY(try_unit(l, (int64_t)bytes, units[i]));
    return PS_OK;
}
