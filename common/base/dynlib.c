#include "dynlib.h"

#include <dlfcn.h>

static ps_err find_symbols(const ps_dynlib *lib, void *loaded,
                           const ps_dynlib_symbol *symbols, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        *symbols[i].to = dlsym(loaded, symbols[i].name);
        if (!*symbols[i].to && !symbols[i].optional)
            return ps_err_set(PS_ERR_UNSUPPORTED, "%s: %s has no %s: %s is needed",
                              lib->user, lib->file, symbols[i].name, lib->version);
    }
    return PS_OK;
}

ps_err ps_dynlib_open(const ps_dynlib *lib, const ps_dynlib_symbol *symbols, size_t n)
{
    void *loaded = dlopen(lib->file, RTLD_NOW | RTLD_LOCAL);
    if (!loaded)
        return ps_err_set(PS_ERR_UNSUPPORTED,
                          "%s: %s cannot be loaded (%s); install %s, or put its folder "
                          "into LD_LIBRARY_PATH",
                          lib->user, lib->file, dlerror(), lib->version);
    ps_err err = find_symbols(lib, loaded, symbols, n);
    if (err != PS_OK) dlclose(loaded);
    return err;
}
