/* Kernels (cuda_kernels.h) that add up rows and columns: gradients of biases. */
#ifndef PS_CUDA_SUM_KERNELS_H
#define PS_CUDA_SUM_KERNELS_H

#include "cuda_values.h"

enum { PS_SUM_LANES = 256 };

typedef struct ps_sums {
    double a, b;
} ps_sums;

/* A row is one channel of a batch's images (n, rows, plane): n * plane values. Rows are
 * cut into parts of one block each, so that few long rows fill the GPU: block = row *
 * parts + part. */
typedef struct ps_rows {
    uint32_t length, part_length; // the last part may be shorter
    uint32_t rows;
    uint32_t width; // values of a row that are read at once: PS_WIDE or 1
    ps_divisor parts, plane;
} ps_rows;

/* Parts are short, so that many blocks wait for the memory at the same time: a lane adds
 * 16 values in float32, in rows of more than 64 parts more. */
enum { PS_ROW_PART = 16 * PS_SUM_LANES, PS_ROW_PARTS_MAX = 64 };

PS_ARITH ps_rows ps_rows_of(int64_t n, int64_t rows, int64_t plane)
{
    ps_rows r;
    int64_t length = n * plane;
    int64_t parts = (length + PS_ROW_PART - 1) / PS_ROW_PART;
    if (parts > PS_ROW_PARTS_MAX) parts = PS_ROW_PARTS_MAX;
    r.length = (uint32_t)length;
    r.width = plane % PS_WIDE == 0 ? PS_WIDE : 1;
    r.part_length = (uint32_t)((length + parts - 1) / parts);
    r.part_length = (r.part_length + PS_WIDE - 1) / PS_WIDE * PS_WIDE;
    // after rounding, the last parts may be empty; drop them
    r.parts = ps_divisor_of((length + r.part_length - 1) / r.part_length);
    r.rows = (uint32_t)rows;
    r.plane = ps_divisor_of(plane);
    return r;
}

/* The index of value i of the row. */
PS_ARITH size_t ps_row_at(const ps_rows *rows, uint32_t row, uint32_t i)
{
    ps_divided at = ps_divide(i, rows->plane);
    return ((size_t)at.q * rows->rows + row) * rows->plane.by + at.r;
}

/* Values i to i + width - 1 of the row; i is a multiple of width. */
PS_ARITH void ps_row_get(ps_values v, const ps_rows *rows, uint32_t row, uint32_t i,
                         float out[PS_WIDE])
{
    const size_t at = ps_row_at(rows, row, i);
    if (rows->width == PS_WIDE)
        ps_get_wide(v, at, out);
    else
        out[0] = ps_get(v, at);
}

typedef struct ps_row_part {
    uint32_t row, begin, end; // within the row
} ps_row_part;

PS_ARITH ps_row_part ps_row_part_of(const ps_rows *rows, uint32_t block)
{
    ps_row_part p;
    ps_divided at = ps_divide(block, rows->parts);
    p.row = at.q;
    p.begin = at.r * rows->part_length;
    p.end = p.begin + rows->part_length;
    if (p.end > rows->length) p.end = rows->length;
    return p;
}

/* What a lane of a sum kernel with a block for each row adds up: one of the row's parts.
 */
PS_ARITH ps_sums ps_parts_lane(const ps_sums *parts, const ps_rows *rows, uint32_t row,
                               uint32_t lane)
{
    const ps_sums none = {0.0, 0.0};
    return lane < rows->parts.by ? parts[row * rows->parts.by + lane] : none;
}

/* parts = sums over x's rows. Blocks: rows * parts. */
typedef struct ps_k_row_sums {
    ps_values x;
    ps_sums *parts;
    ps_rows rows;
} ps_k_row_sums;

PS_ARITH ps_sums ps_k_row_sums_lane(const ps_k_row_sums *k, uint32_t block, uint32_t lane)
{
    ps_row_part p = ps_row_part_of(&k->rows, block);
    const uint32_t width = k->rows.width;
    float sum = 0.0f;
    for (uint32_t i = p.begin + lane * width; i < p.end; i += PS_SUM_LANES * width) {
        float x[PS_WIDE] = {0.0f, 0.0f, 0.0f, 0.0f};
        ps_row_get(k->x, &k->rows, p.row, i, x);
        sum += x[0] + x[1] + x[2] + x[3]; // beyond the width: 0
    }
    ps_sums s = {sum, 0.0};
    return s;
}

PS_ARITH void ps_k_row_sums_done(const ps_k_row_sums *k, uint32_t block, ps_sums s)
{
    k->parts[block] = s;
}

/* y (rows) = or += the rows' sums: the gradient of a convolution's bias. Blocks: rows. */
typedef struct ps_k_row_total {
    const ps_sums *parts;
    float *y;
    ps_rows rows;
    bool add;
} ps_k_row_total;

PS_ARITH ps_sums ps_k_row_total_lane(const ps_k_row_total *k, uint32_t row, uint32_t lane)
{
    return ps_parts_lane(k->parts, &k->rows, row, lane);
}

PS_ARITH void ps_k_row_total_done(const ps_k_row_total *k, uint32_t row, ps_sums s)
{
    ps_store(&k->y[row], (float)s.a, k->add);
}

/* y (columns) = or += the sums of x's (n, columns) columns: the gradient of a linear
 * layer's bias. Row r of a column is added in lane r % PS_COLUMN_LANES; a thread waits
 * for the memory once for as many rows, not for each. More than PS_COLUMN_ROWS rows are
 * added by blocks (cuda_channel_kernels.h). */
enum { PS_COLUMN_LANES = 16, PS_COLUMN_ROWS = 8 * PS_COLUMN_LANES };

typedef struct ps_k_column_total {
    ps_values x;
    float *y;
    uint32_t n, columns;
    bool add;
} ps_k_column_total;

PS_ARITH void ps_k_column_total_at(const ps_k_column_total *k, uint32_t i)
{
    float sums[PS_COLUMN_LANES] = {0.0f}, x[PS_COLUMN_LANES];
    for (uint32_t n = 0; n < k->n; n += PS_COLUMN_LANES) {
        for (uint32_t l = 0; l < PS_COLUMN_LANES; l++)
            x[l] = n + l < k->n ? ps_get(k->x, (size_t)(n + l) * k->columns + i) : 0.0f;
        for (uint32_t l = 0; l < PS_COLUMN_LANES; l++)
            sums[l] += x[l];
    }
    for (uint32_t lanes = PS_COLUMN_LANES / 2; lanes > 0; lanes /= 2)
        for (uint32_t l = 0; l < lanes; l++)
            sums[l] += sums[l + lanes];
    ps_store(&k->y[i], sums[0], k->add);
}

#endif
