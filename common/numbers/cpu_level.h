/* Which vector instructions this processor has, and functions that are built once for
 * each such level.
 *
 * A program for any x86-64 processor may use SSE2 alone, and takes a third more time for
 * a step than one that was built for the machine it runs on. So the files with the long
 * loops (ps_per_level in CMake, levels.cmake) are compiled several times, and each of
 * their public functions is written as
 *
 *   PS_PER_LEVEL(bool, ps_finite_all, (const float *x, uint64_t n), (x, n))
 *   {
 *       ...
 *   }
 *
 * Every build of the file has its own ps_finite_all_<level>; the first one also has
 * ps_finite_all, which calls the one of the level in use. Where a file is built once
 * (other processors, PS_NATIVE), this is a plain function.
 *
 * All levels give the same bits: -ffp-contract=off, ps_fused where a fused multiply-add
 * is meant, and sums over lanes of our own. test_cpu_level compares them.
 *
 * target_clones was rejected: the bodies of `omp parallel` loops would stay at the lowest
 * level, an #ifdef of the instructions would not see the level, and ifunc's resolvers run
 * before sanitizers and the environment are there.
 */
#ifndef PS_CPU_LEVEL_H
#define PS_CPU_LEVEL_H

#include "err.h"

typedef enum ps_cpu_level {
    PS_CPU_PLAIN = 1, // what the compiler may use everywhere; 0: not looked up yet
    PS_CPU_AVX2,
    PS_CPU_AVX512,
} ps_cpu_level;

/* The level in use: the best that processor and build have, or what was asked for. */
ps_cpu_level ps_cpu_level_find(void);

/* Sets the level of all threads: "auto", or a level's name (plain, avx2, avx512). For
 * tests and measurements; programs take it from PS_CPU_LEVEL. ARG for an unknown name,
 * UNSUPPORTED when processor or build has no such level. */
ps_err ps_cpu_level_use(const char *name);

#define PS_LEVEL_GLUE(name, level)  name##_##level
#define PS_LEVEL_NAMED(name, level) PS_LEVEL_GLUE(name, level)

/* The name that a symbol has in this build of the file. */
#ifdef PS_LEVEL
#define PS_AT_LEVEL(name) PS_LEVEL_NAMED(name, PS_LEVEL)
#else
#define PS_AT_LEVEL(name) name
#endif

#ifdef PS_LEVEL_IS_FIRST
#define PS_LEVEL_CHOICE(type, name, params, args)                                        \
    type name##_avx2 params;                                                             \
    type name##_avx512 params;                                                           \
    type name params                                                                     \
    {                                                                                    \
        switch (ps_cpu_level_find()) {                                                   \
        case PS_CPU_AVX512:                                                              \
            return name##_avx512 args;                                                   \
        case PS_CPU_AVX2:                                                                \
            return name##_avx2 args;                                                     \
        default:                                                                         \
            return name##_plain args;                                                    \
        }                                                                                \
    }
#else
#define PS_LEVEL_CHOICE(type, name, params, args)
#endif

/* Begins a function's definition. args: the parameters' names, to pass them on. */
#ifdef PS_LEVEL
#define PS_PER_LEVEL(type, name, params, args)                                           \
    type PS_AT_LEVEL(name) params;                                                       \
    PS_LEVEL_CHOICE(type, name, params, args)                                            \
    type PS_AT_LEVEL(name) params
#else
#define PS_PER_LEVEL(type, name, params, args) type name params
#endif

#endif
