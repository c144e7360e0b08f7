#include "balance.h"

#include <inttypes.h>
#include <stdio.h>

/* What is left goes one by one to the worker that is done first with one sample more;
 * what is too much is taken from the one that is done last. */
static int next_to_change(const double *speeds, int n, int64_t most, const int64_t *sizes,
                          int change)
{
    int best = -1;
    double best_time = 0;
    for (int r = 0; r < n; r++) {
        const int64_t size = sizes[r] + change;
        if (size < 1 || size > most) continue;
        const double time = (double)(change > 0 ? size : sizes[r]) / speeds[r];
        if (best < 0 || (change > 0 ? time < best_time : time > best_time)) {
            best = r;
            best_time = time;
        }
    }
    return best;
}

void ps_balance(const double *speeds, int n, int64_t total, int64_t most, int64_t *out)
{
    double sum = 0;
    int64_t given = 0;
    for (int r = 0; r < n; r++)
        sum += speeds[r];
    for (int r = 0; r < n; r++) {
        const double share = (double)total * speeds[r] / sum;
        out[r] = share < 1 ? 1 : share > (double)most ? most : (int64_t)share;
        given += out[r];
    }
    while (given != total) {
        const int change = given < total ? 1 : -1;
        const int r = next_to_change(speeds, n, most, out, change);
        if (r < 0) return;
        out[r] += change;
        given += change;
    }
}

void ps_balance_rounds(const double *speeds, int n, int64_t most, int64_t *out)
{
    double best = 0;
    for (int r = 0; r < n; r++)
        best = speeds[r] > best ? speeds[r] : best;
    for (int r = 0; r < n; r++) {
        if (!(speeds[r] > 0)) continue;
        const int64_t steps = (int64_t)((double)most * speeds[r] / best + 0.5);
        out[r] = steps < 1 ? 1 : steps;
    }
}

const char *ps_balance_text(const int64_t *numbers, int n,
                            char text[PS_BALANCE_TEXT_BYTES])
{
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < n && used < PS_BALANCE_TEXT_BYTES - 24; i++)
        used += (size_t)snprintf(text + used, PS_BALANCE_TEXT_BYTES - used,
                                 i ? ",%" PRId64 : "%" PRId64, numbers[i]);
    return text;
}
