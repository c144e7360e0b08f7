#include "exchange.h"

#include <string.h>

#include "exchange_gloo.h"
#include "exchange_nccl.h"
#include "exchange_none.h"
#include "exchange_ps.h"

static const ps_exchange_ops *const exchanges[] = {
    &ps_exchange_ps_ops,
    &ps_exchange_none_ops,
#if PS_WITH_GLOO
    &ps_exchange_gloo_ops,
#endif
#if PS_WITH_NCCL
    &ps_exchange_nccl_ops,
#endif
};

static const ps_exchange_ops *find(const char *name)
{
    for (size_t i = 0; i < sizeof exchanges / sizeof exchanges[0]; i++)
        if (strcmp(exchanges[i]->name, name) == 0) return exchanges[i];
    return NULL;
}

ps_err ps_exchange_create(const char *name, const char *device,
                          const ps_exchange_options *options, ps_exchange **out)
{
    *out = NULL;
    const char *wanted = name;
    if (strcmp(name, "allreduce") == 0)
        wanted = strncmp(device, "cuda", 4) == 0 ? "nccl" : "gloo";
    const ps_exchange_ops *ops = find(wanted);
    if (ops) return ops->create(options, out);
    if (strcmp(wanted, "gloo") == 0 || strcmp(wanted, "nccl") == 0)
        return ps_err_set(PS_ERR_UNSUPPORTED,
                          "exchange %s is not in this build: build with %s=ON", wanted,
                          strcmp(wanted, "gloo") == 0 ? "PS_WITH_GLOO" : "PS_WITH_NCCL");
    return ps_err_set(PS_ERR_CONFIG,
                      "no exchange is called %s (ps, allreduce, gloo, nccl, none)", name);
}
