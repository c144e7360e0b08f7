/* Teams: the lanes that do one row together, so that few long rows fill the GPU. A team
 * is one lane, a warp, or a block. Its code is written for all of its lanes:
 *
 *   double parts[PS_TEAM_KEPT];
 *   PS_TEAM_EACH(team, l)
 *       parts[PS_TEAM_SLOT(l)] = what lane l adds up;
 *   double sum = ps_team_sum(team, parts);  // the same in all lanes
 *
 * Lanes are joined in a fixed order, which only the team's size decides: the upper half
 * of each warp with its lower half, and so on, then the warps in the same way. On a GPU a
 * thread is one lane and has one part; the host goes through the lanes one by one and has
 * all parts. All lanes of a team must come to the same joins. No lane may read in memory
 * what another one wrote. */
#ifndef PS_CUDA_TEAM_H
#define PS_CUDA_TEAM_H

#include "arith.h"

enum { PS_TEAM_WARP = 32, PS_TEAM_BLOCK = 256 };

typedef struct ps_team {
    uint32_t lanes, lane;
} ps_team;

/* How many lanes a row of n values takes. One lane reads its row value by value, but
 * needs no join: that is the faster way for short rows. */
static inline uint32_t ps_team_lanes(int64_t n)
{
    enum { SHORT = 64, LONG = 16 * PS_TEAM_WARP };
    if (n < SHORT) return 1;
    return n <= LONG ? PS_TEAM_WARP : PS_TEAM_BLOCK;
}

PS_ARITH double ps_join_sum(double a, double b)
{
    return a + b;
}
PS_ARITH float ps_join_max(float a, float b)
{
    return ps_max_takes(b, a) ? b : a;
}

#ifdef __CUDACC__

#define PS_TEAM               static __device__ inline
#define PS_TEAM_KEPT          1
#define PS_TEAM_SLOT(l)       0
#define PS_TEAM_EACH(team, l) for (uint32_t l = (team).lane, once = 1; once > 0; once = 0)

/* The value of the lane whose number differs in the bits `other`. Values are of whole
 * words. */
#define PS_TEAM_OTHER(type, own, out, other)                                             \
    do {                                                                                 \
        uint32_t words[sizeof(type) / 4];                                                \
        memcpy(words, &(own), sizeof words);                                             \
        for (unsigned w = 0; w < sizeof words / 4; w++)                                  \
            words[w] = __shfl_xor_sync(0xFFFFFFFFu, words[w], (int)(other));             \
        memcpy(&(out), words, sizeof words);                                             \
    } while (0)

#define PS_TEAM_JOIN(name, type, join)                                                   \
    PS_TEAM type ps_team_##name(ps_team team, const type *parts)                         \
    {                                                                                    \
        __shared__ type warps[PS_TEAM_BLOCK / PS_TEAM_WARP];                             \
        type own = parts[0], far;                                                        \
        if (team.lanes == 1) return own;                                                 \
        for (uint32_t half = PS_TEAM_WARP / 2; half > 0; half /= 2) {                    \
            PS_TEAM_OTHER(type, own, far, half);                                         \
            own = join(own, far);                                                        \
        }                                                                                \
        if (team.lanes == PS_TEAM_WARP) return own;                                      \
        __syncthreads(); /* the last join's values have been read */                     \
        if (team.lane % PS_TEAM_WARP == 0) warps[team.lane / PS_TEAM_WARP] = own;        \
        __syncthreads();                                                                 \
        own = warps[team.lane % (PS_TEAM_BLOCK / PS_TEAM_WARP)];                         \
        for (uint32_t half = PS_TEAM_BLOCK / PS_TEAM_WARP / 2; half > 0; half /= 2) {    \
            PS_TEAM_OTHER(type, own, far, half);                                         \
            own = join(own, far);                                                        \
        }                                                                                \
        return own;                                                                      \
    }

#else

#define PS_TEAM               static inline
#define PS_TEAM_KEPT          PS_TEAM_BLOCK
#define PS_TEAM_SLOT(l)       (l)
#define PS_TEAM_EACH(team, l) for (uint32_t l = 0; l < (team).lanes; l++)

#define PS_TEAM_JOIN(name, type, join)                                                   \
    PS_TEAM type ps_team_##name(ps_team team, type *parts)                               \
    {                                                                                    \
        const uint32_t n = team.lanes, warp = n < PS_TEAM_WARP ? n : PS_TEAM_WARP;       \
        for (uint32_t at = 0; at < n; at += warp)                                        \
            for (uint32_t half = warp / 2; half > 0; half /= 2)                          \
                for (uint32_t l = at; l < at + half; l++)                                \
                    parts[l] = join(parts[l], parts[l + half]);                          \
        for (uint32_t half = n / 2; half >= warp && half > 0; half /= 2)                 \
            for (uint32_t l = 0; l < half; l += warp)                                    \
                parts[l] = join(parts[l], parts[l + half]);                              \
        return parts[0];                                                                 \
    }

#endif

PS_TEAM_JOIN(sum, double, ps_join_sum)
PS_TEAM_JOIN(max, float, ps_join_max)
PS_TEAM_JOIN(largest, ps_largest, ps_largest_of)

/* The elements of a row that lane l does. Neighbours read neighbouring elements. */
PS_ARITH ps_stride ps_team_own(ps_team team, uint32_t l)
{
    const ps_stride own = {l, team.lanes};
    return own;
}

#endif
