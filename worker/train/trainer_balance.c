#include "trainer_balance.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "balance.h"
#include "log.h"

ps_err ps_trainer_balance_init(ps_trainer *t)
{
    const ps_sampler_options *given = t->o.sampler;
    const size_t n = (size_t)given->world_size;
    if (!ps_config_balances(t->o.config) || n < 2) return PS_OK;
    PS_TRY(ps_mem_zalloc(&t->batches, n, sizeof *t->batches, "the batch sizes"));
    memcpy(t->batches, given->batch, n * sizeof *t->batches);
    t->sampler = *given;
    t->sampler.batch = t->batches;
    t->o.sampler = &t->sampler;
    return PS_OK;
}

static int64_t global_batch(const ps_trainer *t)
{
    int64_t sum = 0;
    for (int r = 0; r < t->o.sampler->world_size; r++)
        sum += t->o.sampler->batch[r];
    return sum;
}

int64_t ps_trainer_balance_most(const ps_trainer *t)
{
    const ps_sampler_options *s = t->o.sampler;
    if (!t->batches) return s->batch[t->rank];
    const int64_t most = PS_BALANCE_MOST * ((global_batch(t) - 1) / s->world_size + 1);
    const int64_t all_but_one_each = global_batch(t) - s->world_size + 1;
    return most < all_but_one_each ? most : all_but_one_each;
}

void ps_trainer_list(const int64_t *numbers, int n, char text[PS_TRAINER_LIST_BYTES])
{
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < n && used < PS_TRAINER_LIST_BYTES - 24; i++)
        used += (size_t)snprintf(text + used, PS_TRAINER_LIST_BYTES - used,
                                 i ? ",%" PRId64 : "%" PRId64, numbers[i]);
}

static void balance_tell(const ps_trainer *t)
{
    char text[PS_TRAINER_LIST_BYTES];
    ps_trainer_list(t->batches, t->sampler.world_size, text);
    PS_INFO("batches", "epoch=%" PRId64 " sizes=%s", t->epoch + 2, text);
}

ps_err ps_trainer_balance(ps_trainer *t)
{
    char name[48];
    double speeds[PS_MAX_RANKS] = {0};
    const int n = t->o.sampler->world_size;
    if (!t->batches) return PS_OK;
    const int64_t own = ps_trainer_samples(t->own_n, 0, t->n_batches);
    speeds[t->rank] = (double)own / (t->busy_seconds > 1e-6 ? t->busy_seconds : 1e-6);
    t->busy_seconds = 0;
    snprintf(name, sizeof name, "balance/%" PRId64, t->epoch);
    PS_TRY(ps_member_reduce(t->member, name, speeds, (size_t)n,
                            ps_trainer_step_deadline(t)));
    // A job that goes on near an epoch's end has measured too little.
    if (2 * t->n_batches >= ps_sampler_n_batches(t->o.sampler))
        ps_balance(speeds, n, global_batch(t), ps_trainer_balance_most(t), t->batches);
    t->sized_for = PS_TRAINER_NOT_SIZED;
    if (t->rank == 0) balance_tell(t);
    return PS_OK;
}
