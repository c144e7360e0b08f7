#include "pstrain_driver.h"

#include "dynlib.h"

ps_err pstrain_driver_check(const pstrain_driver *d, cuda_result result, const char *call)
{
    const char *name = NULL, *text = NULL;
    if (result == 0) return PS_OK;
    d->name_of_error(result, &name);
    d->text_of_error(result, &text);
    return ps_err_set(PS_ERR_IO, "the GPU, %s: %s (%d), %s", call, name ? name : "?",
                      result, text ? text : "an unknown error");
}

ps_err pstrain_driver_load(pstrain_driver *d, const char *file)
{
    const ps_dynlib library = {.user = "parameters on a GPU",
                               .file = file ? file : "libcuda.so.1",
                               .version = "NVIDIA's driver (525 or newer)"};
    const ps_dynlib_symbol symbols[] = {
#define CUDA_SYMBOL(member, symbol, parameters)                                          \
    {.name = #symbol, .to = (void **)(void *)&d->member},
        CUDA_CALLS(CUDA_SYMBOL)
#undef CUDA_SYMBOL
    };
    PS_TRY(ps_dynlib_open(&library, symbols, sizeof symbols / sizeof *symbols));
    if (pstrain_driver_check(d, d->init(0), "init") == PS_OK) return PS_OK;
    return ps_err_set(PS_ERR_UNSUPPORTED, "%s", ps_err_message());
}
