#include "check.h"
#include "cuda_index.h"
#include "cuda_kernels.h"

static void assert_divides(uint32_t n, uint32_t by)
{
    ps_divided d = ps_divide(n, ps_divisor_of(by));
    if (d.q != n / by || d.r != n % by)
        fail_msg("%u / %u gave %u, rest %u", n, by, d.q, d.r);
}

/* Tests around every multiple near the ends: there a rounded reciprocal fails first. */
static void assert_divides_all(uint32_t by)
{
    const uint32_t max = PS_INDEX_MAX, last = max / by * by;
    for (uint32_t k = 0; k < 3; k++) {
        const uint32_t near[] = {k * by, last - (last >= k * by ? k * by : last)};
        for (int i = 0; i < 2; i++) {
            if (k > 0 && near[0] / k != by) continue;
            if (near[i] > 0) assert_divides(near[i] - 1, by);
            if (near[i] <= max) assert_divides(near[i], by);
            if (near[i] < max) assert_divides(near[i] + 1, by);
        }
    }
    assert_divides(max, by);
}

TEST(test_divide)
{
    uint64_t noise = 1;
    for (uint32_t by = 1; by < 70000; by++)
        assert_divides_all(by);
    for (int shift = 0; shift < 31; shift++) {
        for (int64_t off = -2; off <= 2; off++) {
            int64_t by = ((int64_t)1 << shift) + off;
            if (by > 0) assert_divides_all((uint32_t)by);
        }
    }
    assert_divides_all(PS_INDEX_MAX);
    for (int i = 0; i < 2000000; i++) {
        noise = noise * 6364136223846793005ull + 1442695040888963407ull;
        uint32_t n = (uint32_t)(noise >> 33), by = (uint32_t)(noise & 0x7fffffff);
        assert_divides(n, by >> (i % 31) ? by >> (i % 31) : 1);
    }
}

/* Every window that holds a position, found by trying all. */
TEST(test_reach)
{
    for (int32_t kernel = 1; kernel <= 5; kernel++)
        for (int32_t stride = 1; stride <= 4; stride++)
            for (int32_t padding = 0; padding <= kernel / 2; padding++)
                for (int32_t size = kernel; size < 14; size++) {
                    int32_t n = (size + 2 * padding - kernel) / stride + 1;
                    ps_divisor by = ps_divisor_of(stride);
                    for (int32_t at = 0; at < size; at++) {
                        ps_reach r = ps_reach_of(at, kernel, by, padding, n);
                        for (int32_t o = 0; o < n; o++) {
                            int32_t first = o * stride - padding;
                            bool holds = at >= first && at < first + kernel;
                            assert_int_equal(holds, o >= r.begin && o < r.end);
                        }
                    }
                }
}

/* The parts of a row cover it, once, and none is empty. */
TEST(test_rows)
{
    enum { PART = PS_ROW_PART, MOST = PS_ROW_PART * PS_ROW_PARTS_MAX };
    const int64_t lengths[] = {1,          31,       256,  PART - 1, PART,
                               PART + 1,   MOST - 1, MOST, MOST + 1, (1 << 20) + 7,
                               131072 * 33};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        ps_rows rows = ps_rows_of(1, 2, lengths[i]);
        uint32_t end = 0;
        assert_true(rows.parts.by <= PS_ROW_PARTS_MAX);
        assert_true(rows.parts.by <= (lengths[i] + PART - 1) / PART); // as many have room
        for (uint32_t b = 0; b < rows.parts.by; b++) {
            ps_row_part p = ps_row_part_of(&rows, rows.parts.by + b); // of row 1
            assert_int_equal(p.row, 1);
            assert_int_equal(p.begin, end);
            assert_int_equal(p.begin % rows.width, 0);
            assert_true(p.end > p.begin);
            end = p.end;
        }
        assert_int_equal(end, lengths[i]);
    }
}
