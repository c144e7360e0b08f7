#include "test_part.h"

#include <math.h>
#include <stdlib.h>

#include "mem.h"
#include "rng.h"

enum { STREAM = 0x54455354 }; // of these draws

typedef struct drawn_sample {
    uint64_t key, draw;
    int64_t row;
} drawn_sample;

static int by_key(const void *a, const void *b)
{
    const drawn_sample *x = a, *y = b;
    if (x->key != y->key) return x->key < y->key ? -1 : 1;
    if (x->draw != y->draw) return x->draw < y->draw ? -1 : 1;
    return x->row < y->row ? -1 : x->row > y->row;
}

static uint64_t draw_of(uint64_t seed, int64_t row)
{
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    const uint32_t counter[4] = {(uint32_t)row, (uint32_t)((uint64_t)row >> 32), STREAM,
                                 0};
    uint32_t out[4];
    ps_philox4x32(key, counter, out);
    return (uint64_t)out[0] << 32 | out[1];
}

/* Along the samples in the order of their classes, and at random within one, each 1 /
 * share of them gives one: so each class gives its share, and all together do. */
ps_err ps_test_part_random(const uint64_t *keys, int64_t n, double share, uint64_t seed,
                           bool *is_test)
{
    drawn_sample *all;
    double due = 0.5;
    PS_TRY(PS_NEW(&all, (size_t)n, "the test part"));
    for (int64_t i = 0; i < n; i++)
        all[i] = (drawn_sample){keys[i], draw_of(seed, i), i};
    qsort(all, (size_t)n, sizeof *all, by_key);
    for (int64_t i = 0; i < n; i++) {
        const bool single = (i == 0 || all[i - 1].key != all[i].key) &&
                            (i == n - 1 || all[i + 1].key != all[i].key);
        due += share;
        is_test[all[i].row] = due >= 1 && !single;
        due -= is_test[all[i].row];
    }
    free(all);
    return PS_OK;
}

void ps_test_part_last(const int64_t *order, int64_t n, double share, bool *is_test)
{
    const int64_t first = n - (int64_t)llround((double)n * share);
    for (int64_t i = 0; i < n; i++)
        is_test[order[i]] = i >= first;
}

int64_t ps_test_part_rows(const bool *is_test, int64_t n, bool test, int64_t *rows)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < n; i++)
        if (is_test[i] == test) rows[kept++] = i;
    return kept;
}
