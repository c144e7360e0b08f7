#include "cpu_concat.h"

#include <string.h>

#include "cpu_level.h"

/* Where a channel of a sample begins; its positions are `lanes` apart. */
static int64_t channel_at(const ps_cpu_shape *s, int64_t n, int64_t c)
{
    return (n * s->blocks + c / s->lanes) * s->h * s->w * s->lanes + c % s->lanes;
}

/* Elements of that many blocks of one sample. */
static size_t elements_of(const ps_cpu_shape *s, int64_t blocks)
{
    return (size_t)(blocks * s->h * s->w * s->lanes);
}

/* Whether the part's channels, which begin at `first`, are whole blocks of the whole. */
static bool are_blocks(const ps_cpu_shape *part, const ps_cpu_shape *whole, int64_t first)
{
    const bool last = first + part->c == whole->c;
    return part->lanes == whole->lanes && first % whole->lanes == 0 &&
           (last || part->c % whole->lanes == 0);
}

static void copy_elements(size_t n, const float *restrict x, float *restrict y, bool add)
{
    if (!add) {
        memcpy(y, x, n * sizeof *y);
        return;
    }
#pragma omp simd
    for (size_t i = 0; i < n; i++)
        y[i] += x[i];
}

/* One channel after the other: rare, and so simple rather than fast. */
static void copy_channels(const ps_cpu_shape *from, int64_t from_first, const float *x,
                          const ps_cpu_shape *to, int64_t to_first, float *y, int64_t n,
                          int64_t channels, bool add)
{
    for (int64_t c = 0; c < channels; c++) {
        const float *source = x + channel_at(from, n, from_first + c);
        float *target = y + channel_at(to, n, to_first + c);
        for (int64_t p = 0; p < from->h * from->w; p++) {
            const float old = add ? target[p * to->lanes] : 0.0f;
            target[p * to->lanes] = old + source[p * from->lanes];
        }
    }
}

PS_PER_LEVEL(int64_t, ps_cpu_concat_lanes, (const ps_cpu_shape *a), (a))
{
    const bool blocked = a->lanes == 8 || a->lanes == 16;
    return blocked && a->c % a->lanes == 0 ? a->lanes : 1;
}

PS_PER_LEVEL(void, ps_cpu_concat_forward,
             (const ps_cpu_shape *from, const float *x, const ps_cpu_shape *to,
              int64_t first, float *y),
             (from, x, to, first, y))
{
    const bool blocks = are_blocks(from, to, first);
    const bool last = first + from->c == to->c;
#pragma omp parallel for
    for (int64_t n = 0; n < from->n; n++) {
        if (blocks) {
            copy_elements(elements_of(from, from->blocks), x + channel_at(from, n, 0),
                          y + channel_at(to, n, first), false);
            continue;
        }
        if (last && to->lanes > 1) // the padding is zero
            memset(y + channel_at(to, n, first), 0,
                   elements_of(to, to->blocks - first / to->lanes) * sizeof *y);
        copy_channels(from, 0, x, to, first, y, n, from->c, false);
    }
}

PS_PER_LEVEL(void, ps_cpu_concat_backward,
             (const ps_cpu_shape *from, int64_t first, const float *dy,
              const ps_cpu_shape *to, float *dx, bool add),
             (from, first, dy, to, dx, add))
{
    const bool blocks = are_blocks(to, from, first);
    const size_t whole = elements_of(to, to->blocks);
#pragma omp parallel for
    for (int64_t n = 0; n < to->n; n++) {
        float *target = dx + channel_at(to, n, 0);
        if (blocks) {
            copy_elements(whole, dy + channel_at(from, n, first), target, add);
            continue;
        }
        if (!add && to->c % to->lanes != 0) memset(target, 0, whole * sizeof *dx);
        copy_channels(from, first, dy, to, 0, dx, n, to->c, add);
    }
}
