/* The whole way of rows, unique ids, pooling, gradients, optimizers, against PyTorch. */
#include <math.h>

#include "../support/python.h"
#include "check.h"
#include "floats.h"
#include "row_pool.h"
#include "row_table.h"

/* As in rows_vectors.py. */
enum { N_STEP_CASES = 8, N_BAG_CASES = 8, MAX_ROWS = 64, MAX_DIM = 64, MAX_LOOKUPS = 96 };
enum { N_RANKS = 3, N_SHARDS = 3 };

static FILE *in;

static void get(void *out, size_t size, size_t n)
{
    assert_int_equal(fread(out, size, n, in), n);
}

static uint64_t id_of(uint64_t row)
{
    return ps_row_mix(row);
}

static void get_ids(uint64_t *ids, uint64_t n)
{
    get(ids, sizeof *ids, n);
    for (uint64_t i = 0; i < n; i++)
        ids[i] = id_of(ids[i]);
}

/* The error in units in the last place of the reference, or of what went into it. */
static double distance(float got, float wanted, float before)
{
    const float size = fmaxf(fmaxf(fabsf(wanted), fabsf(before)), fabsf(wanted - before));
    return fabs((double)got - (double)wanted) /
           ((double)nextafterf(size, INFINITY) - (double)size);
}

typedef struct step_case {
    ps_row_spec spec;
    uint32_t n_ranks, n_lookups, n_rows, steps;
} step_case;

static step_case get_case(void)
{
    double r[12];
    get(r, sizeof *r, 12);
    step_case c = {.spec = ps_row_spec_default((ps_row_optimizer)r[0]),
                   .n_ranks = (uint32_t)r[8],
                   .n_lookups = (uint32_t)r[9],
                   .n_rows = (uint32_t)r[10],
                   .steps = (uint32_t)r[11]};
    c.spec.lr = r[1], c.spec.eps = r[2], c.spec.beta1 = r[3], c.spec.beta2 = r[4];
    c.spec.lr_decay = r[5], c.spec.initial_accumulator = r[6];
    c.spec.dim = (uint32_t)r[7];
    snprintf(c.spec.name, sizeof c.spec.name, "item");
    assert_ok(ps_row_spec_check(&c.spec));
    return c;
}

/* A rank's look-ups and their gradients, as a worker makes a PULL and a PUSH of them; all
 * shards are one here. */
static void push(const step_case *c, ps_row_step *step, uint32_t rank, float *grads)
{
    static uint64_t ids[MAX_LOOKUPS];
    static float by_lookup[MAX_LOOKUPS * MAX_DIM];
    float share;
    ps_row_batch batch;
    get(&share, sizeof share, 1);
    get_ids(ids, c->n_lookups);
    get(by_lookup, sizeof *by_lookup, c->n_lookups * c->spec.dim);
    ps_row_batch_init(&batch);
    assert_ok(
        ps_row_batch_split(&batch, c->spec.number, N_SHARDS, c->n_lookups, ids, NULL));
    const ps_row_bags bags = {.dim = c->spec.dim,
                              .n_lookups = c->n_lookups,
                              .n_bags = c->n_lookups,
                              .row = batch.row};
    assert_ok(ps_row_bags_check(&bags));
    ps_row_pool_backward(&bags, by_lookup, batch.place, grads);
    ps_floats_scale(grads, share, (uint64_t)batch.n_rows * c->spec.dim);
    assert_ok(ps_row_step_pull(step, rank, batch.n_rows, batch.ids));
    ps_row_batch_fini(&batch);
}

static void put_rows(ps_row_table *t, const step_case *c, const float *rows)
{
    for (uint32_t i = 0; i < c->n_rows; i++) {
        const ps_row_view view = {.id = id_of(i),
                                  .row = rows + i * ps_row_spec_width(&c->spec)};
        assert_ok(ps_row_table_put(t, &view));
    }
}

static void compare(const ps_row_table *t, const step_case *c, const float *wanted,
                    const float *before, double most)
{
    const uint32_t width = ps_row_spec_width(&c->spec);
    ps_row_view *views;
    uint64_t n;
    assert_ok(ps_row_table_list(t, 0, PS_ROW_PARTITIONS, 0, &views, &n));
    assert_int_equal(n, c->n_rows);
    for (uint64_t k = 0; k < n; k++) {
        uint32_t i = 0;
        while (id_of(i) != views[k].id)
            i++;
        for (uint32_t d = 0; d < width; d++)
            if (!(distance(views[k].row[d], wanted[i * width + d],
                           before[i * width + d]) <= most))
                fail_msg("%s, row %u, %u: %.9g, PyTorch %.9g",
                         ps_word_name(ps_row_optimizer_words, c->spec.optimizer), i, d,
                         (double)views[k].row[d], (double)wanted[i * width + d]);
    }
    free(views);
}

/* Every step begins with PyTorch's state. sgd has PyTorch's bits. */
static void follow_steps(void)
{
    static float before[MAX_ROWS * MAX_DIM], after[MAX_ROWS * MAX_DIM];
    static float grads[N_RANKS][MAX_LOOKUPS * MAX_DIM];
    const step_case c = get_case();
    const uint64_t n = (uint64_t)c.n_rows * ps_row_spec_width(&c.spec);
    ps_row_memory memory;
    ps_row_table t;
    ps_row_step step;
    ps_row_memory_init(&memory);
    assert_ok(
        ps_row_table_init(&t, &c.spec, PS_ROW_KEY_PLAIN, 0, PS_ROW_PARTITIONS, &memory));
    get(before, sizeof *before, n);
    for (uint32_t s = 0; s < c.steps; s++) {
        const ps_row_update update = {.lr = c.spec.lr, .t = s + 1, .step = s};
        const float *of_ranks[N_RANKS] = {NULL};
        assert_ok(ps_row_step_init(&step, c.n_ranks, PS_ROW_KEY_PLAIN));
        put_rows(&t, &c, before);
        for (uint32_t r = 0; r < c.n_ranks; r++) {
            push(&c, &step, r, grads[r]);
            of_ranks[r] = grads[r];
        }
        assert_ok(ps_row_table_apply(&t, &step, &update, of_ranks));
        get(after, sizeof *after, n);
        compare(&t, &c, after, before, c.spec.optimizer == PS_ROW_SGD ? 0 : 2);
        memcpy(before, after, n * sizeof *after);
        ps_row_step_fini(&step);
    }
    ps_row_table_fini(&t);
    ps_row_memory_fini(&memory);
}

static void near(const char *what, const float *got, const float *wanted, uint64_t n,
                 double most)
{
    for (uint64_t i = 0; i < n; i++)
        if (!(distance(got[i], wanted[i], most > 0 ? 1 : 0) <= most))
            fail_msg("%s %d: %.9g, PyTorch %.9g", what, (int)i, (double)got[i],
                     (double)wanted[i]);
}

static void follow_bags(void)
{
    static float rows[MAX_ROWS * MAX_DIM], of_batch[MAX_ROWS * MAX_DIM],
        sums[MAX_ROWS * MAX_DIM], weights[MAX_LOOKUPS], out[MAX_LOOKUPS * MAX_DIM],
        grad[MAX_LOOKUPS * MAX_DIM], got[MAX_LOOKUPS * MAX_DIM],
        wanted[MAX_ROWS * MAX_DIM], weights_grad[MAX_LOOKUPS];
    static uint64_t ids[MAX_LOOKUPS];
    static int64_t offsets[MAX_LOOKUPS];
    double r[7];
    get(r, sizeof *r, 7);
    const uint32_t dim = (uint32_t)r[0], n_rows = (uint32_t)r[1];
    const uint64_t n = (uint64_t)r[2], n_bags = (uint64_t)r[3];
    const int what = (int)r[4];
    const uint64_t padding = r[5] < 0 ? 0 : (uint64_t)r[5];
    get(rows, sizeof *rows, n_rows * dim);
    get(ids, sizeof *ids, n);
    get(offsets, sizeof *offsets, n_bags);
    get(weights, sizeof *weights, n);
    get(out, sizeof *out, n_bags * dim);
    get(grad, sizeof *grad, n_bags * dim);
    get(sums, sizeof *sums, n_rows * dim);
    get(weights_grad, sizeof *weights_grad, n);
    ps_row_batch b;
    ps_row_batch_init(&b);
    assert_ok(ps_row_batch_split(&b, 1, N_SHARDS, n, ids, r[5] < 0 ? NULL : &padding));
    const ps_row_bags bags = {.mode = what == 1 ? PS_ROW_MEAN : PS_ROW_SUM,
                              .dim = dim,
                              .n_lookups = n,
                              .n_bags = n_bags,
                              .offsets = what == 3 ? NULL : offsets,
                              .row = b.row,
                              .weights = what == 2 ? weights : NULL};
    assert_ok(ps_row_bags_check(&bags));
    for (uint32_t i = 0; i < b.n_rows; i++) {
        memcpy(of_batch + i * dim, rows + b.ids[i] * dim, dim * sizeof *rows);
        memcpy(wanted + i * dim, sums + b.ids[i] * dim, dim * sizeof *rows);
    }
    ps_row_pool_forward(&bags, of_batch, got);
    near("output", got, out, n_bags * dim, r[6] ? 16 : 0);
    ps_row_pool_backward(&bags, grad, b.place, sums);
    near("gradient", sums, wanted, b.n_rows * dim, 0);
    memset(sums, 0, sizeof sums);
    ps_row_pool_backward(&bags, grad, NULL, sums);
    near("gradient", sums, wanted, b.n_rows * dim, 0);
    if (what == 2) {
        ps_row_pool_weights_backward(&bags, of_batch, grad, got);
        near("weight", got, weights_grad, n, 8); // a sum of dim products
    }
    ps_row_batch_fini(&b);
}

TEST(steps_and_bags_are_those_of_pytorch)
{
    in = python_output("rows_vectors.py");
    if (!in) skip();
    for (int c = 0; c < N_STEP_CASES; c++)
        follow_steps();
    for (int c = 0; c < N_BAG_CASES; c++)
        follow_bags();
    assert_int_equal(fgetc(in), EOF);
    fclose(in);
}
