/* Tables of tensors: how many elements they may have. */
#include "tensor_table.h"

#include "check.h"

static ps_err add(ps_tensor_table *table, bool buffer, ps_dims dims)
{
    int i;
    return buffer ? ps_tensor_table_add_buffer(table, "b", dims, PS_TENSOR_BUFFER, &i)
                  : ps_tensor_table_add(table, "w", dims, PS_TENSOR_WEIGHT, 1, &i);
}

TEST(an_arena_has_2_to_the_40_elements_at_most)
{
    const int64_t half = INT64_C(1) << 39, big = INT64_C(1) << 32;
    ps_tensor_table table = {0};
    for (int buffer = 0; buffer < 2; buffer++) {
        assert_ok(add(&table, buffer, (ps_dims){1, {half}}));
        assert_error(add(&table, buffer, (ps_dims){1, {half + 1}}), PS_ERR_CONFIG,
                     "(549755813889): too many elements");
        assert_error(add(&table, buffer, (ps_dims){2, {big, big}}), PS_ERR_CONFIG,
                     "too many elements"); // 2^64 of them
    }
    assert_ok(add(&table, false, (ps_dims){1, {half}}));
    assert_error(add(&table, false, (ps_dims){0, {0}}), PS_ERR_CONFIG, "w ()");
    assert_int_equal(table.n_tensors, 2);
    assert_int_equal(table.n_buffers, 1);
    assert_true(table.arena_count == UINT64_C(1) << 40);
    ps_tensor_table_fini(&table);
}
