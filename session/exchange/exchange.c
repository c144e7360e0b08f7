#include "exchange.h"

#include "exchange_gloo.h"
#include "exchange_nccl.h"
#include "exchange_none.h"
#include "exchange_ps.h"

static ps_err create_allreduce(const ps_exchange_options *options, ps_exchange **out)
{
    return ps_exchange_create(options->stream ? PS_EXCHANGE_NCCL : PS_EXCHANGE_GLOO,
                              options, out);
}

/* Has only create, which uses nccl on a device's stream, and gloo otherwise. */
static const ps_exchange_ops allreduce_ops = {.name = "allreduce",
                                              .mode = "allreduce",
                                              .on_device = true,
                                              .create = create_allreduce};

static const ps_exchange_ops *const exchanges[] = {
    [PS_EXCHANGE_PS] = &ps_exchange_ps_ops,     [PS_EXCHANGE_ALLREDUCE] = &allreduce_ops,
#if PS_WITH_GLOO
    [PS_EXCHANGE_GLOO] = &ps_exchange_gloo_ops,
#endif
#if PS_WITH_NCCL
    [PS_EXCHANGE_NCCL] = &ps_exchange_nccl_ops,
#endif
    [PS_EXCHANGE_NONE] = &ps_exchange_none_ops,
};

ps_err ps_exchange_find(ps_exchange_kind kind, const ps_exchange_ops **out)
{
    *out = exchanges[kind];
    if (*out) return PS_OK;
    return ps_err_set(PS_ERR_UNSUPPORTED,
                      "exchange %s is not in this build: build with %s=ON",
                      ps_word_name(ps_exchange_words, (int)kind),
                      kind == PS_EXCHANGE_GLOO ? "PS_WITH_GLOO" : "PS_WITH_NCCL");
}

ps_err ps_exchange_create(ps_exchange_kind kind, const ps_exchange_options *options,
                          ps_exchange **out)
{
    const ps_exchange_ops *ops;
    *out = NULL;
    PS_TRY(ps_exchange_find(kind, &ops));
    return ops->create(options, out);
}
