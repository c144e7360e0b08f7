/* Whether two tables hold the same rows. */
#ifndef ROW_LISTS_H
#define ROW_LISTS_H

#include "check.h"
#include "row_table.h"

/* Fails unless both have the same ids in the partition, with the same rows, states,
 * versions and counts. Returns how many. */
static inline uint64_t assert_same_rows(const ps_row_table *a, const ps_row_table *b,
                                        uint32_t partition)
{
    ps_row_view *x, *y;
    uint64_t n, m;
    assert_ok(ps_row_table_list(a, partition, partition + 1, 0, &x, &n));
    assert_ok(ps_row_table_list(b, partition, partition + 1, 0, &y, &m));
    assert_int_equal(n, m);
    for (uint64_t i = 0; i < n; i++) {
        assert_int_equal(x[i].id, y[i].id);
        assert_int_equal(x[i].version, y[i].version);
        assert_int_equal(x[i].count, y[i].count);
        assert_int_equal(x[i].row != NULL, y[i].row != NULL);
        if (x[i].row)
            assert_memory_equal(x[i].row, y[i].row,
                                ps_row_spec_width(&a->spec) * sizeof *x[i].row);
    }
    free(x);
    free(y);
    return n;
}

#endif
