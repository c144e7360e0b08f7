/* Buckets against what DDP's compute_bucket_assignment_by_size gives. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "bucket.h"

/* BasicNet: conv1, conv2, fc1, fc2, each weight and bias. */
static const uint64_t basicnet[] = {288, 32, 18432, 64, 1179648, 128, 1280, 10};

static void make_spec(ps_model_spec *spec, ps_tensor *tensors, const uint64_t *counts,
                      int n)
{
    *spec = (ps_model_spec){.n_tensors = n, .tensors = tensors};
    uint64_t offset = 0;
    for (int i = 0; i < n; i++) {
        tensors[i] = (ps_tensor){.offset = offset, .count = counts[i]};
        offset += (counts[i] + PS_TENSOR_ALIGN - 1) / PS_TENSOR_ALIGN * PS_TENSOR_ALIGN;
    }
    spec->arena_count = offset;
}

static void test_basicnet_is_cut_where_ddp_cuts(void **state)
{
    ps_tensor tensors[8];
    ps_model_spec spec;
    make_spec(&spec, tensors, basicnet, 8);
    ps_buckets b;
    assert_int_equal(ps_buckets_init(&b, &spec, PS_BUCKET_FIRST_BYTES, 25 << 20), PS_OK);
    /* fc2 and fc1 reach 1 MiB with fc1.weight; the convolutions are the rest. */
    assert_int_equal(b.n, 2);
    assert_int_equal(b.list[0].first_tensor, 4);
    assert_int_equal(b.list[0].n_tensors, 4);
    assert_int_equal(b.list[1].first_tensor, 0);
    assert_int_equal(b.list[1].n_tensors, 4);
    assert_int_equal(b.list[1].offset, 0);
    assert_int_equal(b.list[1].count, tensors[3].offset + 64);
    assert_int_equal(b.list[0].offset, tensors[4].offset);
    assert_int_equal(b.list[0].count, tensors[7].offset + 10 - tensors[4].offset);
    assert_int_equal(b.of_tensor[7], 0);
    assert_int_equal(b.of_tensor[3], 1);
    ps_buckets_fini(&b);
}

static void test_every_tensor_is_in_one_bucket(void **state)
{
    for (uint64_t size = 1; size < 8 << 20; size *= 3) {
        ps_tensor tensors[8];
        ps_model_spec spec;
        make_spec(&spec, tensors, basicnet, 8);
        ps_buckets b;
        assert_int_equal(ps_buckets_init(&b, &spec, size, size), PS_OK);
        int next = spec.n_tensors;
        for (int i = 0; i < b.n; i++) {
            next -= b.list[i].n_tensors;
            assert_int_equal(b.list[i].first_tensor, next);
            for (int k = 0; k < b.list[i].n_tensors; k++)
                assert_int_equal(b.of_tensor[next + k], i);
        }
        assert_int_equal(next, 0);
        ps_buckets_fini(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_basicnet_is_cut_where_ddp_cuts),
        cmocka_unit_test(test_every_tensor_is_in_one_bucket),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
