/* Buckets against those of DDP's compute_bucket_assignment_by_size. */
#include "bucket.h"
#include "check.h"

/* BasicNet: conv1, conv2, fc1, fc2, each weight and bias. */
static const uint64_t basicnet[] = {288, 32, 18432, 64, 1179648, 128, 1280, 10};

static void make_spec(ps_tensor_table *table, ps_tensor *tensors, const uint64_t *counts,
                      int n)
{
    *table = (ps_tensor_table){.n_tensors = n, .tensors = tensors};
    uint64_t offset = 0;
    for (int i = 0; i < n; i++) {
        tensors[i] = (ps_tensor){.offset = offset, .count = counts[i]};
        offset += (counts[i] + PS_TENSOR_ALIGN - 1) / PS_TENSOR_ALIGN * PS_TENSOR_ALIGN;
    }
    table->arena_count = offset;
}

TEST(test_basicnet_is_cut_where_ddp_cuts)
{
    ps_tensor tensors[8];
    ps_tensor_table table;
    make_spec(&table, tensors, basicnet, 8);
    ps_buckets b;
    assert_ok(ps_buckets_init(&b, &table, PS_BUCKET_FIRST_BYTES, 25 << 20));
    /* The first bucket, of fc2 and fc1, reaches 1 MiB with fc1.weight. The convolutions
     * are in the second. */
    assert_int_equal(b.n, 2);
    assert_int_equal(b.list[0].first_tensor, 4);
    assert_int_equal(b.list[0].n_tensors, 4);
    assert_int_equal(b.list[1].first_tensor, 0);
    assert_int_equal(b.list[1].n_tensors, 4);
    assert_int_equal(b.list[1].offset, 0);
    assert_int_equal(b.list[1].count, tensors[3].offset + 64);
    assert_int_equal(b.list[0].offset, tensors[4].offset);
    assert_int_equal(b.list[0].count, tensors[7].offset + 10 - tensors[4].offset);
    ps_buckets_fini(&b);
}

TEST(test_every_tensor_is_in_one_bucket)
{
    for (uint64_t size = 1; size < 8 << 20; size *= 3) {
        ps_tensor tensors[8];
        ps_tensor_table table;
        make_spec(&table, tensors, basicnet, 8);
        ps_buckets b;
        assert_ok(ps_buckets_init(&b, &table, size, size));
        int next = table.n_tensors;
        for (int i = 0; i < b.n; i++) {
            next -= b.list[i].n_tensors;
            assert_int_equal(b.list[i].first_tensor, next);
        }
        assert_int_equal(next, 0);
        ps_buckets_fini(&b);
    }
}

/* Parts follow each other, begin where a block of the gradient norm begins, and differ by
 * at most a block. */
static void check_parts(const ps_tensor_table *table, const ps_bucket *b, int n)
{
    ps_chunk parts[8];
    uint64_t at = b->offset;
    ps_bucket_cut(table, b, n, parts);
    for (int p = 0; p < n; p++) {
        const ps_chunk *part = &parts[p];
        assert_int_equal(part->offset, at);
        at += part->count;
        if (part->count == 0) {
            assert_true(part->last_tensor < part->first_tensor);
            continue;
        }
        assert_in_range(part->count, b->count / (uint64_t)n - 4096 - 64,
                        b->count / (uint64_t)n + 4096 + 64);
        const ps_tensor *first = &table->tensors[part->first_tensor];
        const ps_tensor *last = &table->tensors[part->last_tensor];
        assert_in_range(part->offset, first->offset, first->offset + first->count - 1);
        assert_int_equal((part->offset - first->offset) % 4096, 0);
        assert_true(last->offset < at);
        assert_true(part->last_tensor + 1 == b->first_tensor + b->n_tensors ||
                    last[1].offset >= at);
    }
    assert_int_equal(at, b->offset + b->count);
}

TEST(test_buckets_are_cut_into_even_parts)
{
    ps_tensor tensors[8];
    ps_tensor_table table;
    make_spec(&table, tensors, basicnet, 8);
    ps_buckets b;
    assert_ok(ps_buckets_init(&b, &table, PS_BUCKET_FIRST_BYTES, 25 << 20));
    for (int n = 1; n <= 8; n++)
        check_parts(&table, &b.list[0], n);
    for (int n = 1; n <= 4; n++)
        check_parts(&table, &b.list[1], n);
    ps_buckets_fini(&b);
}

/* A bucket smaller than a block belongs to the last rank alone. */
TEST(test_a_small_bucket_is_one_rank_s)
{
    ps_tensor tensors[8];
    ps_tensor_table table;
    make_spec(&table, tensors, basicnet, 8);
    const ps_bucket small = {6, 2, tensors[6].offset,
                             tensors[7].offset + 10 - tensors[6].offset};
    ps_chunk parts[3];
    ps_bucket_cut(&table, &small, 3, parts);
    assert_int_equal(parts[0].count, 0);
    assert_int_equal(parts[1].count, 0);
    assert_int_equal(parts[2].offset, small.offset);
    assert_int_equal(parts[2].count, small.count);
    assert_int_equal(parts[2].first_tensor, 6);
    assert_int_equal(parts[2].last_tensor, 7);
}
