#include "cpu_level.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

static const char *const names[] = {"auto", "plain", "avx2", "avx512"};

/* Whether processor and operating system support what levels.cmake allows the compiler.
 */
static bool cpu_level_has(ps_cpu_level level)
{
#ifdef PS_HAS_LEVELS
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                      __builtin_cpu_supports("popcnt");
    const bool avx512 =
        avx2 && __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl");
    if (level == PS_CPU_AVX512) return avx512;
    if (level == PS_CPU_AVX2) return avx2;
#endif
    return level == PS_CPU_PLAIN;
}

static ps_cpu_level cpu_level_best(void)
{
    ps_cpu_level level = PS_CPU_AVX512;
    while (!cpu_level_has(level))
        level--;
    return level;
}

/* One level for the whole process. The first caller looks it up; two at once find the
 * same. */
static _Atomic ps_cpu_level in_use;

ps_cpu_level ps_cpu_level_find(void)
{
    ps_cpu_level level = atomic_load_explicit(&in_use, memory_order_relaxed);
    if (level != 0) return level;
    level = cpu_level_best();
    atomic_store_explicit(&in_use, level, memory_order_relaxed);
    return level;
}

ps_err ps_cpu_level_use(const char *name)
{
    int level = 0;
    while (level <= PS_CPU_AVX512 && strcmp(names[level], name) != 0)
        level++;
    if (level > PS_CPU_AVX512)
        return ps_err_set(PS_ERR_ARG,
                          "PS_CPU_LEVEL: '%.40s' is not one of auto, plain, avx2, avx512",
                          name);
    if (level != 0 && !cpu_level_has((ps_cpu_level)level))
        return ps_err_set(PS_ERR_UNSUPPORTED,
                          "PS_CPU_LEVEL: this processor, or this build, has no %s "
                          "vectors; auto takes the best that it has",
                          name);
    atomic_store_explicit(&in_use, level != 0 ? (ps_cpu_level)level : cpu_level_best(),
                          memory_order_relaxed);
    return PS_OK;
}
