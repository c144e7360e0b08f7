/* A cell of a table: a number; or NaN, whose low bits say which text of its column it is,
 * or that it is missing. */
#ifndef PS_CELL_H
#define PS_CELL_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

typedef double ps_cell;

#define PS_CELL_NAN UINT64_C(0x7ff8000000000000)

enum { PS_CELL_MISSING = -1 };

static inline ps_cell ps_cell_of_text(int64_t text)
{
    const uint64_t bits = PS_CELL_NAN | (uint64_t)(text + 1);
    ps_cell cell;
    memcpy(&cell, &bits, sizeof cell);
    return cell;
}

static inline bool ps_cell_is_number(ps_cell cell)
{
    return !isnan(cell);
}

/* Of a cell that is no number. */
static inline int64_t ps_cell_text(ps_cell cell)
{
    uint64_t bits;
    memcpy(&bits, &cell, sizeof bits);
    return (int64_t)(bits & ~PS_CELL_NAN) - 1;
}

static inline bool ps_cell_is_missing(ps_cell cell)
{
    return !ps_cell_is_number(cell) && ps_cell_text(cell) == PS_CELL_MISSING;
}

#endif
