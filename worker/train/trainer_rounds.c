#include "trainer_rounds.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "balance.h"
#include "job_keys.h"
#include "local_steps.h"
#include "log.h"
#include "sync_codec.h"

ps_err ps_trainer_rounds_init(ps_trainer *t)
{
    ps_trainer_own *own = ps_trainer_own_of(t);
    const ps_config_sync *s = &t->o.config->sync;
    const int n = t->o.sampler->world_size;
    if (!s->steps_by_speed || n < 2 || s->local_steps < 2) return PS_OK;
    PS_TRY(ps_mem_zalloc(&own->round_steps, (size_t)n, sizeof *own->round_steps,
                         "the rounds' steps"));
    for (int r = 0; r < n; r++)
        own->round_steps[r] = s->local_steps;
    return PS_OK;
}

/* The steps that all make before they agree for the first time. None waits for an answer
 * before that: of the first round no fragment is sent yet. */
static uint64_t rounds_probe(const ps_trainer *t)
{
    enum { PART = 16, MOST = 4 };
    const ps_config_sync *s = &t->o.config->sync;
    const int64_t n = s->local_steps / PART;
    const int64_t most = s->local_steps / s->fragments - s->overlap - 1;
    const int64_t made = n < 1 ? 1 : n > MOST ? MOST : n;
    return (uint64_t)(made < most ? made : most);
}

/* The least steps of a round of that each fragment has, and more than `made`: those of
 * the present round that are made already. */
static int64_t least_steps(const ps_trainer *t, int64_t made)
{
    const ps_config_sync *s = &t->o.config->sync;
    const int64_t each = made > s->overlap ? made : s->overlap;
    const int64_t least = s->fragments * (each + 1);
    return least < s->local_steps ? least : s->local_steps;
}

void ps_trainer_rounds_book(ps_trainer *t, double seconds)
{
    ps_trainer_own *own = ps_trainer_own_of(t);
    const bool cold = t->clock == own->first_clock && !t->o.place;
    if (cold && rounds_probe(t) > 1) return;
    own->round_seconds += seconds;
    own->round_done++;
}

bool ps_trainer_rounds_are_new(const ps_trainer *t)
{
    const ps_trainer_own *own = ps_trainer_own_of(t);
    return t->clock == own->first_clock + rounds_probe(t) && !t->o.place;
}

/* As measured. A worker that has just come back may have made no step. */
static ps_err rounds_measure(ps_trainer *t, const char *name, int n)
{
    ps_trainer_own *own = ps_trainer_own_of(t);
    double speeds[PS_MAX_RANKS] = {0};
    const double seconds = own->round_seconds > 1e-6 ? own->round_seconds : 1e-6;
    speeds[t->rank] = own->round_done / seconds;
    PS_TRY(ps_member_reduce(t->member, name, speeds, (size_t)n,
                            ps_trainer_step_deadline(t)));
    ps_balance_rounds(speeds, n, t->o.config->sync.local_steps, own->round_steps);
    const bool within = ps_trainer_rounds_are_new(t); // the first round
    const uint64_t begun = ps_local_steps_begun(t->o.config, t->result->first_step);
    const int64_t least = least_steps(t, within ? (int64_t)(begun + rounds_probe(t)) : 0);
    for (int r = 0; r < n; r++)
        if (own->round_steps[r] < least) own->round_steps[r] = least;
    return PS_OK;
}

/* As recorded. After the log's end they stay as they are. */
static ps_err rounds_repeat(ps_trainer *t, const char *name, int n)
{
    ps_trainer_own *own = ps_trainer_own_of(t);
    double steps[PS_MAX_RANKS] = {0};
    if (t->rank == 0)
        PS_TRY(ps_policy_lines_next_steps(&own->replay, least_steps(t, 0),
                                          t->o.config->sync.local_steps, own->round_steps,
                                          n));
    for (int r = 0; r < n && t->rank == 0; r++)
        steps[r] = (double)own->round_steps[r];
    PS_TRY(
        ps_member_reduce(t->member, name, steps, (size_t)n, ps_trainer_step_deadline(t)));
    for (int r = 0; r < n; r++)
        own->round_steps[r] = (int64_t)steps[r];
    return PS_OK;
}

/* Returns what the change of this rank weighs, times its share of a step's samples. */
static double rounds_weigh(const ps_trainer *t, uint64_t *samples, int n)
{
    const ps_trainer_own *own = ps_trainer_own_of(t);
    double batches = 0, all = 0;
    for (int r = 0; r < n; r++) {
        samples[r] = (uint64_t)(t->o.sampler->batch[r] * own->round_steps[r]);
        batches += (double)t->o.sampler->batch[r];
        all += (double)samples[r];
    }
    return (double)own->round_steps[t->rank] * batches / all;
}

static ps_err rounds_tell(const ps_trainer *t, const uint64_t *samples, int n)
{
    const ps_trainer_own *own = ps_trainer_own_of(t);
    char text[PS_BALANCE_TEXT_BYTES];
    PS_INFO("rounds", "after_step=%" PRIu64 " steps=%s", t->step,
            ps_balance_text(own->round_steps, n, text));
    if (t->o.run_dir)
        PS_TRY(ps_policy_log_add_steps(t->o.run_dir, own->log_step, own->round_steps, n));
    ps_mp_writer w;
    ps_mp_writer_init(&w);
    ps_err err = ps_sync_batches_write(&w, samples, (uint32_t)n);
    if (err == PS_OK)
        err = ps_member_put(t->member, PS_JOB_KEY_POLICY_BATCHES, w.base, w.used,
                            ps_trainer_step_deadline(t));
    ps_mp_writer_fini(&w);
    return err;
}

ps_err ps_trainer_rounds(ps_trainer *t)
{
    ps_trainer_own *own = ps_trainer_own_of(t);
    char name[48];
    uint64_t samples[PS_MAX_RANKS];
    const int n = t->o.sampler->world_size;
    if (!own->round_steps) return PS_OK;
    snprintf(name, sizeof name, "rounds/%" PRIu64, own->n_rests);
    PS_TRY(own->repeats ? rounds_repeat(t, name, n) : rounds_measure(t, name, n));
    // A speed is that of several epochs, the newest ones most; the first steps are few.
    const double keep = ps_trainer_rounds_are_new(t) ? 0 : 0.5;
    own->round_seconds *= keep;
    own->round_done *= keep;
    const double weight = rounds_weigh(t, samples, n);
    if (t->rank == 0) PS_TRY(rounds_tell(t, samples, n));
    PS_TRY(ps_member_barrier(t->member, name, ps_trainer_step_deadline(t)));
    ps_exchange_set_round(ps_session_exchange(t->o.session),
                          (uint64_t)own->round_steps[t->rank], weight);
    return PS_OK;
}

ps_err ps_trainer_rounds_take(ps_trainer *t)
{
    const ps_trainer_own *own = ps_trainer_own_of(t);
    uint64_t samples[PS_MAX_RANKS];
    const int n = t->o.sampler->world_size;
    if (!own->round_steps || !t->o.place->round_steps) return PS_OK;
    memcpy(own->round_steps, t->o.place->round_steps,
           (size_t)n * sizeof *own->round_steps);
    const double weight = rounds_weigh(t, samples, n);
    ps_exchange_set_round(ps_session_exchange(t->o.session),
                          (uint64_t)own->round_steps[t->rank], weight);
    return PS_OK;
}
