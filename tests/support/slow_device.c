/* A device as slow as a test wants, for LD_PRELOAD: each call of oneDNN takes
 * PS_SLOW_DEVICE_US longer, and no processor time for it. So a job that a test needs for
 * some seconds does not keep the machine busy. */
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

/* As oneDNN has it, without its types. */
int dnnl_primitive_execute(const void *primitive, void *stream, int n, const void *args)
{
    int (*real)(const void *, void *, int, const void *) =
        (int (*)(const void *, void *, int, const void *))dlsym(RTLD_NEXT,
                                                                "dnnl_primitive_execute");
    const char *us = getenv("PS_SLOW_DEVICE_US");
    if (us) usleep((useconds_t)strtoul(us, NULL, 10));
    return real(primitive, stream, n, args);
}
