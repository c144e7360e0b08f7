/* A device as slow as a test wants, for LD_PRELOAD: each call of oneDNN that computes
 * takes PS_SLOW_DEVICE_US longer, ten times as much in a process of whose number there is
 * a file in the folder PS_SLOW_DEVICE_SLOWER, and no processor time for it. So a job that
 * a test needs for some seconds does not keep the machine busy. */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void take_time(void)
{
    const char *us = getenv("PS_SLOW_DEVICE_US"),
               *slower = getenv("PS_SLOW_DEVICE_SLOWER");
    if (!us) return;
    char path[256];
    snprintf(path, sizeof path, "%s/%d", slower ? slower : "", (int)getpid());
    bool is_slower = slower && access(path, F_OK) == 0;
    usleep((useconds_t)strtoul(us, NULL, 10) * (is_slower ? 10 : 1));
}

/* As oneDNN has them, without its types. */
int dnnl_primitive_execute(const void *primitive, void *stream, int n, const void *args)
{
    int (*real)(const void *, void *, int, const void *) =
        (int (*)(const void *, void *, int, const void *))dlsym(RTLD_NEXT,
                                                                "dnnl_primitive_execute");
    take_time();
    return real(primitive, stream, n, args);
}

typedef int (*sgemm_fn)(char, char, int64_t, int64_t, int64_t, float, const float *,
                        int64_t, const float *, int64_t, float, float *, int64_t);

int dnnl_sgemm(char ta, char tb, int64_t m, int64_t n, int64_t k, float alpha,
               const float *a, int64_t lda, const float *b, int64_t ldb, float beta,
               float *c, int64_t ldc)
{
    sgemm_fn real = (sgemm_fn)dlsym(RTLD_NEXT, "dnnl_sgemm");
    take_time();
    return real(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
