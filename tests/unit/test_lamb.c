/* LAMB against the same steps written out in PyTorch, and the same bits however tensors
 * are cut. */
#include "lamb.h"

#include <math.h>

#include "../support/python.h"
#include "check.h"
#include "gradnorm.h"

/* As in lamb_vectors.py. The arena's offsets are multiples of 16. */
enum { N_TENSORS = 5, N_CASES = 4, ARENA = 3 * 16 + 4096 + 4112 + 9008 };
static const uint64_t counts[N_TENSORS] = {3, 4096, 4097, 9000, 10};

enum { WEIGHTS, MEAN, SQUARE, GRADS, N_ARRAYS };

typedef struct arena {
    float x[N_ARRAYS][ARENA];
} arena;

static void make_table(ps_tensor_table *table, ps_tensor tensors[N_TENSORS])
{
    static char name[] = "t";
    *table = (ps_tensor_table){.n_tensors = N_TENSORS, .tensors = tensors};
    for (int i = 0; i < N_TENSORS; i++) {
        tensors[i] = (ps_tensor){.name = name,
                                 .dims = {1, {(int64_t)counts[i]}},
                                 .offset = table->arena_count,
                                 .count = counts[i]};
        table->arena_count += (counts[i] + 15) / 16 * 16;
        table->n_params += counts[i];
    }
    assert_true(table->arena_count <= ARENA);
}

static void read_array(FILE *in, const ps_tensor_table *table, float *out)
{
    for (int i = 0; i < N_TENSORS; i++)
        assert_int_equal(fread(out + table->tensors[i].offset, sizeof *out,
                               table->tensors[i].count, in),
                         table->tensors[i].count);
}

static ps_lamb_part part_of(const ps_tensor_table *table, const ps_optimizer *opt,
                            const ps_chunk *chunk, arena *a)
{
    return (ps_lamb_part){
        .table = table,
        .chunk = chunk,
        .optimizer = opt,
        .weights = a->x[WEIGHTS] + chunk->offset,
        .grads = a->x[GRADS] + chunk->offset,
        .states = {a->x[MEAN] + chunk->offset, a->x[SQUARE] + chunk->offset}};
}

/* Makes a step as a job does: first the sums of all chunks, then the new weights of each.
 */
static void make_step(const ps_tensor_table *table, const ps_optimizer *opt,
                      const ps_optimizer_step *step, uint64_t chunk_bytes, arena *a)
{
    ps_plan plan;
    double *sums = calloc(ps_lamb_sums(table), sizeof *sums);
    assert_non_null(sums);
    assert_ok(ps_plan_init(&plan, table, (ps_chunk_size){.bytes = chunk_bytes}, 1));
    for (uint32_t i = 0; i < plan.n_chunks; i++) {
        uint64_t n;
        const uint64_t first = ps_gradnorm_chunk_blocks(table, &plan.chunks[i], &n);
        const ps_lamb_part part = part_of(table, opt, &plan.chunks[i], a);
        ps_lamb_update(&part, step, sums + first,
                       sums + ps_gradnorm_blocks(table) + first);
    }
    for (uint32_t i = plan.n_chunks; i-- > 0;) {
        const ps_lamb_part part = part_of(table, opt, &plan.chunks[i], a);
        ps_lamb_apply(&part, step, sums);
    }
    ps_plan_fini(&plan);
    free(sums);
}

/* The error in units in the last place. They are those of the largest of three numbers:
 * the reference, its value before the step, and the step. */
static double distance(float got, float wanted, float before)
{
    const float size = fmaxf(fmaxf(fabsf(wanted), fabsf(before)), fabsf(wanted - before));
    return fabs((double)got - (double)wanted) /
           ((double)nextafterf(size, INFINITY) - (double)size);
}

static void compare(const arena *got, const arena *wanted, const arena *before, int c)
{
    for (int k = 0; k < GRADS; k++)
        for (int i = 0; i < ARENA; i++)
            if (!(distance(got->x[k][i], wanted->x[k][i], before->x[k][i]) <= 2))
                fail_msg("case %d, array %d, element %d: %.9g, PyTorch %.9g", c, k, i,
                         (double)got->x[k][i], (double)wanted->x[k][i]);
}

/* Every step begins with PyTorch's state. */
static void follow(FILE *in, int c)
{
    static arena before, wanted, whole, cut;
    double r[8];
    ps_tensor_table table;
    ps_tensor tensors[N_TENSORS];
    make_table(&table, tensors);
    assert_int_equal(fread(r, sizeof r, 1, in), 1);
    const ps_optimizer opt = {.kind = PS_OPTIMIZER_LAMB,
                              .lr = r[0],
                              .weight_decay = r[1],
                              .beta1 = r[2],
                              .beta2 = r[3],
                              .eps = r[4],
                              .decay_bias_norm = true,
                              .n_states = 2};
    memset(&before, 0, sizeof before);
    memset(&wanted, 0, sizeof wanted);
    read_array(in, &table, before.x[WEIGHTS]);
    for (int t = 1; t <= (int)r[7]; t++) {
        const ps_optimizer_step step = {
            .lr = opt.lr, .t = (uint64_t)t, .grad_scale = r[5]};
        read_array(in, &table, before.x[GRADS]);
        for (int k = 0; k < GRADS; k++)
            read_array(in, &table, wanted.x[k]);
        whole = cut = before;
        make_step(&table, &opt, &step, 1 << 30, &whole);
        make_step(&table, &opt, &step, 16384, &cut);
        assert_memory_equal(&whole, &cut, sizeof whole);
        compare(&whole, &wanted, &before, c);
        before = wanted;
    }
}

TEST(steps_are_those_of_pytorch)
{
    FILE *in = python_output("lamb_vectors.py");
    if (!in) skip();
    for (int c = 0; c < N_CASES; c++)
        follow(in, c);
    fclose(in);
}

/* |u| of the first step is about sqrt(n), so that the step's length is lr * |w|. */
TEST(the_first_step_has_the_weights_length)
{
    static arena a, before;
    ps_tensor_table table;
    ps_tensor tensors[N_TENSORS];
    make_table(&table, tensors);
    const ps_optimizer opt = {.kind = PS_OPTIMIZER_LAMB,
                              .weight_decay = 1e-12,
                              .beta1 = 0.9,
                              .beta2 = 0.999,
                              .eps = 1e-8,
                              .decay_bias_norm = true,
                              .n_states = 2};
    const ps_optimizer_step step = {.lr = 0.5, .t = 1, .grad_scale = 1};
    const ps_tensor *t = &tensors[3];
    for (uint64_t i = t->offset; i < t->offset + t->count; i++) {
        a.x[WEIGHTS][i] = 3;
        a.x[GRADS][i] = i % 2 ? 7 : -0.01f;
    }
    before = a;
    make_step(&table, &opt, &step, 16384, &a);
    for (uint64_t i = t->offset; i < t->offset + t->count; i++)
        assert_float_equal(a.x[WEIGHTS][i], (i % 2 ? 1.5 : 4.5), 1e-5);
    assert_true(before.x[WEIGHTS][0] == a.x[WEIGHTS][0]);
}
