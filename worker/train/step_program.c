#include "step_program.h"

/* Bytes of the tensors that travel together, and that are one graph of launches on a GPU:
 * about a chunk or a bucket, or all when nothing travels. */
static size_t group_bytes(const ps_session *session, const ps_config *config)
{
    const ps_exchange_ops *ops = ps_session_ops(session);
    if (ops->servers)
        return (size_t)ps_session_plan(session)->max_chunk_count * sizeof(float);
    return ops->alone ? SIZE_MAX : (size_t)config->exchange.bucket;
}

/* Bytes of a layer's rows that go to the servers while its next ones are computed:
 * several chunks, as each block costs sgemm some time. On one host they travel faster
 * than they are computed, and fewer blocks are faster (bench/results/README.md). Buckets
 * hold whole tensors. */
static size_t row_bytes(const ps_session *session, const ps_config *config)
{
    enum { LEAST = 512 << 10, ONE_HOST_LEAST = 8 << 20 };
    if (!ps_session_ops(session)->servers || ps_session_counts(session)) return 0;
    const size_t chunk = group_bytes(session, config);
    const size_t least = ps_session_plan(session)->size.one_host ? ONE_HOST_LEAST : LEAST;
    return chunk > least ? chunk : least;
}

ps_program_options ps_step_program_of(const ps_session *session, const ps_config *config,
                                      const ps_model_spec *spec)
{
    return (ps_program_options){.spec = spec,
                                .training = true,
                                .soft_targets = config->data.mixup > 0,
                                .group_bytes = group_bytes(session, config),
                                .row_bytes = row_bytes(session, config)};
}
