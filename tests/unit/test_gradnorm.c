/* The gradient norm: closed forms, and the same bits whatever the chunks. */
#include "gradnorm.h"

#include <math.h>

#include "check.h"
#include "rng.h"

enum { N_TENSORS = 5 };
static const uint64_t counts[N_TENSORS] = {3, 4096, 4097, 50000, 10};

typedef struct fixture {
    ps_tensor_table table;
    ps_tensor tensors[N_TENSORS];
    float *grads;
} fixture;

static void make(fixture *f)
{
    static char name[] = "t";
    *f = (fixture){.table = {.n_tensors = N_TENSORS}};
    f->table.tensors = f->tensors;
    for (int i = 0; i < N_TENSORS; i++) {
        f->tensors[i] = (ps_tensor){.name = name,
                                    .dims = {1, {(int64_t)counts[i]}},
                                    .offset = f->table.arena_count,
                                    .count = counts[i]};
        f->table.arena_count += (counts[i] + 15) / 16 * 16;
        f->table.n_params += counts[i];
    }
    f->grads = calloc(f->table.arena_count, sizeof *f->grads);
    assert_non_null(f->grads);
}

/* Computes the norm as a job does: from the sums of each chunk's blocks. */
static double norm_by(const fixture *f, uint64_t chunk_bytes, uint32_t shards)
{
    ps_plan plan;
    assert_ok(
        ps_plan_init(&plan, &f->table, (ps_chunk_size){.bytes = chunk_bytes}, shards));
    uint64_t total = ps_gradnorm_blocks(&f->table), seen = 0;
    double *sums = malloc(total * sizeof *sums);
    for (uint32_t i = 0; i < plan.n_chunks; i++) {
        uint64_t n = 0;
        uint64_t first = ps_gradnorm_chunk_blocks(&f->table, &plan.chunks[i], &n);
        assert_true(first + n <= total);
        ps_gradnorm_chunk(&f->table, &plan.chunks[i], f->grads + plan.chunks[i].offset,
                          sums + first);
        seen += n;
    }
    assert_int_equal(seen, total);
    double norm = ps_gradnorm_total(sums, total);
    free(sums);
    ps_plan_fini(&plan);
    return norm;
}

TEST(blocks_are_counted_within_tensors)
{
    fixture f;
    make(&f);
    assert_int_equal(ps_gradnorm_blocks(&f.table), 1 + 1 + 2 + 13 + 1);
    free(f.grads);
}

/* sqrt(n) for ones, whatever the cut. */
TEST(ones_have_the_root_of_their_number)
{
    fixture f;
    make(&f);
    for (int i = 0; i < N_TENSORS; i++)
        for (uint64_t k = 0; k < counts[i]; k++)
            f.grads[f.tensors[i].offset + k] = -1.0f;
    double wanted = sqrt((double)f.table.n_params);
    assert_true(norm_by(&f, 16384, 1) == wanted);
    assert_true(norm_by(&f, 1 << 20, 3) == wanted);
    free(f.grads);
}

TEST(chunks_and_shards_do_not_change_a_bit)
{
    fixture f;
    ps_mt19937 g;
    make(&f);
    ps_mt19937_seed(&g, 3);
    long double sum = 0;
    for (int i = 0; i < N_TENSORS; i++) {
        float *x = f.grads + f.tensors[i].offset;
        ps_uniform(&g, -1.0f, 1.0f, 0, counts[i], x);
        for (uint64_t k = 0; k < counts[i]; k++)
            sum += (long double)x[k] * x[k];
    }
    double first = norm_by(&f, 0, 1);
    assert_float_equal(first, (double)sqrtl(sum), 1e-12 * first);
    const uint64_t sizes[] = {1, 16384, 40000, 65536, 1 << 20};
    for (int i = 0; i < 5; i++)
        for (uint32_t shards = 1; shards <= 5; shards++)
            assert_true(norm_by(&f, sizes[i], shards) == first);
    free(f.grads);
}

/* torch.nn.utils.clip_grad_norm_ multiplies by min(1, max / (norm + 1e-6)). */
TEST(clipping_is_pytorchs)
{
    assert_float_equal(ps_gradnorm_clip(10.0, 1.0), 1.0 / 10.000001, 1e-16);
    assert_true(ps_gradnorm_clip(0.5, 1.0) == 1.0);
    assert_true(ps_gradnorm_clip(0.0, 1.0) == 1.0);
    assert_true(ps_gradnorm_clip(INFINITY, 1.0) == 0.0);
    assert_true(isnan(ps_gradnorm_clip(NAN, 1.0)));
}
