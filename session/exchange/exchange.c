#include "exchange.h"

void ps_exchange_settings_init(ps_exchange_settings *s, const ps_config *cfg,
                               const ps_tensor_table *table)
{
    const ps_config_net *net = &cfg->net;
    *s = (ps_exchange_settings){
        .join_timeout_ms = (uint64_t)net->join_timeout_ms,
        .step_timeout_ms = (uint64_t)net->step_timeout_ms,
        .verdict_ms = (uint64_t)(net->dead_after_ms + 2 * net->heartbeat_ms),
        .io_threads = net->io_threads,
        .threads = cfg->train.threads,
        .shm = cfg->exchange.shm,
        .credit = (uint64_t)cfg->exchange.credit,
        .bucket = (uint64_t)cfg->exchange.bucket,
        .coarse = ps_chunk_size_is_coarse(ps_chunk_size_wanted(cfg, false)),
        .drops = cfg->sync.policy == PS_POLICY_BACKUP && cfg->sync.late == PS_LATE_DROP};
    ps_chunk_codec_init(&s->codec, cfg, table);
}

static ps_err exchange_find(ps_exchange_kind kind, const ps_exchange_ops **out);

static ps_err create_allreduce(const ps_exchange_options *options, ps_exchange **out)
{
    const ps_exchange_ops *ops;
    *out = NULL;
    PS_TRY(exchange_find(options->stream ? PS_EXCHANGE_NCCL : PS_EXCHANGE_GLOO, &ops));
    return ops->create(options, out);
}

/* Has only create, which uses nccl on a device's stream, and gloo otherwise. */
static const ps_exchange_ops allreduce_ops = {.name = "allreduce",
                                              .mode = "allreduce",
                                              .peers = true,
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

static ps_err exchange_find(ps_exchange_kind kind, const ps_exchange_ops **out)
{
    *out = exchanges[kind];
    if (*out) return PS_OK;
    return ps_err_set(PS_ERR_UNSUPPORTED,
                      "exchange %s is not in this build: train through servers "
                      "(psrun -s 1), or build with %s=ON",
                      ps_word_name(ps_exchange_words, (int)kind),
                      kind == PS_EXCHANGE_GLOO ? "PS_WITH_GLOO" : "PS_WITH_NCCL");
}

ps_err ps_exchange_find(const ps_config_exchange *settings, const ps_exchange_ops **out)
{
    PS_TRY(exchange_find(settings->name, out));
    if (settings->levels == 2) *out = &ps_exchange_levels_ops;
    return PS_OK;
}

/* --- facets ------------------------------------------------------------------------ */

static ps_err exchange_lacks(const ps_exchange *x, const char *what)
{
    return ps_err_set(PS_ERR_UNSUPPORTED, "the exchange %s has only %s%s", x->ops->name,
                      what,
                      x->ops->peers && x->ops->servers ? " with exchange.levels 2" : "");
}

ps_err ps_exchange_push_chunk(ps_exchange *x, uint32_t chunk, uint64_t step)
{
    if (!x->ops->chunks) return exchange_lacks(x, "whole steps");
    return x->ops->chunks->push(x, chunk, step);
}

ps_err ps_exchange_wait_chunk(ps_exchange *x, uint32_t chunk, uint64_t version)
{
    if (!x->ops->chunks) return exchange_lacks(x, "whole steps");
    return x->ops->chunks->wait(x, chunk, version);
}

ps_err ps_exchange_rest(ps_exchange *x, bool *rests, bool *over)
{
    if (!x->ops->rests) return exchange_lacks(x, "steps of all");
    return x->ops->rests->rest(x, rests, over);
}

ps_err ps_exchange_rows_send(ps_exchange *x, int kind, uint64_t step,
                             const ps_exchange_body *bodies, ps_exchange_body *answers,
                             uint64_t *sent)
{
    if (!x->ops->rows) return exchange_lacks(x, "tensors, no rows");
    return x->ops->rows->send(x, kind, step, bodies, answers, sent);
}

ps_err ps_exchange_rows_wait(ps_exchange *x, uint64_t sent)
{
    if (!x->ops->rows) return exchange_lacks(x, "tensors, no rows");
    return x->ops->rows->wait(x, sent);
}

void *ps_exchange_rows_arena(ps_exchange *x, uint32_t shard)
{
    return x->ops->rows ? x->ops->rows->arena(x, shard) : NULL;
}
