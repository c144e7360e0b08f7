#include "device.h"

#include "cpu_device.h"
#include "cuda_device.h"
#include "log.h"

/* "auto" opens the first of these that the machine has. */
static const ps_device_ops *const backends[] = {
#if PS_WITH_CUDA
    &ps_cuda_device_ops,
#endif
    &ps_cpu_device_ops,
};
enum { N_BACKENDS = sizeof backends / sizeof *backends };

static ps_err open_auto(const ps_device_options *options, ps_device **out)
{
    ps_err err = PS_ERR_UNSUPPORTED;
    for (int i = 0; i < N_BACKENDS && err == PS_ERR_UNSUPPORTED; i++) {
        err = backends[i]->open(options, out);
        if (err == PS_ERR_UNSUPPORTED && i + 1 < N_BACKENDS)
            PS_INFO("device", "auto takes %s: %s", backends[i + 1]->name,
                    ps_err_message());
    }
    return err;
}

/* Others wait for this worker for net.step_timeout_ms: its error, which says more, comes
 * before. Where the GPU itself waits for others, theirs come before. */
static uint64_t device_wait_ms(const ps_config *config)
{
    const ps_exchange_kind kind = config->exchange.name;
    const uint64_t step_ms = (uint64_t)config->net.step_timeout_ms;
    const bool peers = kind == PS_EXCHANGE_NCCL || kind == PS_EXCHANGE_ALLREDUCE;
    return peers ? step_ms + 2000 : step_ms - step_ms / 4;
}

ps_device_options ps_device_options_of(const ps_config *config, int local_rank,
                                       int threads)
{
    const ps_config_train *train = &config->train;
    return (ps_device_options){.index = train->device.index,
                               .local_rank = local_rank,
                               .threads = threads,
                               .precision = train->precision,
                               .tf32 = train->tf32,
                               .cudnn = train->cudnn,
                               .channels_last = train->channels_last,
                               .no_graphs = !train->graphs,
                               .wait_ms = device_wait_ms(config),
                               .winograd = train->winograd};
}

ps_err ps_device_open(ps_device_kind kind, const ps_device_options *options,
                      ps_device **out)
{
    const ps_device_choice asked = {kind, options->index};
    *out = NULL;
    if (kind == PS_DEVICE_AUTO) return open_auto(options, out);
    for (int i = 0; i < N_BACKENDS; i++)
        if (backends[i]->kind == kind) return backends[i]->open(options, out);
    return ps_err_set(
        PS_ERR_UNSUPPORTED,
        "train.device: %s was asked for, but this build has no CUDA "
        "(configure with -DPS_WITH_CUDA=ON, or cmake --preset cuda); use cpu",
        ps_device_choice_text(asked, (char[PS_DEVICE_TEXT]){0}));
}
