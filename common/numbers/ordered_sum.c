#include "ordered_sum.h"

#include "floats.h"

void ps_ordered_sum(float *out, const float *const *from, int n_from, uint64_t begin,
                    uint64_t n)
{
    enum { BLOCK = 2048 }; // stays in the first cache
    float partial[BLOCK];
    for (uint64_t at = 0; at < n; at += BLOCK) {
        const uint64_t count = n - at < BLOCK ? n - at : BLOCK;
        const float *a = from[0] + begin + at;
        for (int r = 1; r < n_from; r++) {
            float *to = r + 1 == n_from ? out + at : partial;
            ps_floats_sum(to, a, from[r] + begin + at, count);
            a = to;
        }
    }
}
