#include "conv_library.h"

ps_err ps_conv_library_open(const ps_conv_library_options *options, ps_conv_library **out)
{
    *out = NULL;
    return ps_err_set(PS_ERR_UNSUPPORTED,
                      "train.cudnn: this build has no cuDNN (configure where cudnn.h is, "
                      "with -DPS_WITH_CUDNN=ON)");
}

/* The functions below are never called, as no library can be opened. */

void ps_conv_library_close(ps_conv_library **library)
{
}

void ps_conv_library_describe(const ps_conv_library *library, char *out, size_t bytes)
{
    if (bytes > 0) *out = '\0';
}

bool ps_conv_library_exact(const ps_conv_library *library)
{
    return true;
}

ps_err ps_conv_plan_create(ps_conv_library *library, const ps_conv_shape *shape,
                           size_t most_bytes, ps_conv_plan **out)
{
    *out = NULL;
    return PS_OK;
}

void ps_conv_plan_destroy(ps_conv_plan **plan)
{
}

size_t ps_conv_plan_bytes(const ps_conv_plan *plan)
{
    return 0;
}

void ps_conv_plan_describe(const ps_conv_plan *plan, char *out, size_t bytes)
{
    if (bytes > 0) *out = '\0';
}

ps_err ps_conv_plan_run(ps_conv_plan *plan, void *x, void *w, void *y, void *scratch,
                        const char *who)
{
    return ps_err_set(PS_ERR_INTERNAL, "%s: no library of convolutions", who);
}
