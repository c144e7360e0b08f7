#include "trainer_state.h"

#include <math.h>

static bool past_warmup(const ps_trainer *t)
{
    return t->step > (uint64_t)t->o.config->train.warmup_steps;
}

void ps_trainer_show_values(const ps_trainer *t, const ps_exchange_stats *e,
                            double seconds)
{
    const ps_trainer_result *r = t->result;
    ps_metric_values *v = t->o.values;
    if (!v) return;
    ps_metric_set(v, PS_METRIC_STEP, (double)(t->step + t->shown));
    ps_metric_set(v, PS_METRIC_STEPS, (double)t->total_steps);
    ps_metric_set(v, PS_METRIC_EPOCH, (double)t->epoch);
    ps_metric_set(v, PS_METRIC_EPOCHS, (double)t->epochs);
    ps_metric_set(v, PS_METRIC_LOSS, t->step_loss);
    ps_metric_set(v, PS_METRIC_SAMPLES_PER_SECOND, t->samples_a_step / t->seconds_a_step);
    ps_metric_set(v, PS_METRIC_SAMPLES, (double)r->samples);
    ps_metric_set(v, PS_METRIC_SKIPPED_STEPS, (double)r->skipped_steps);
    ps_metric_set(v, PS_METRIC_STEP_SECONDS, seconds);
    ps_metric_set(v, PS_METRIC_LOAD_SECONDS, t->loaded);
    // Long steps end with an agreement: the fast ranks wait for the slow ones there.
    ps_metric_set(v, PS_METRIC_WAIT_SECONDS, e->wait_seconds + t->agreed);
    ps_metric_set(v, PS_METRIC_ENCODE_SECONDS, e->encode_seconds);
    ps_metric_set(v, PS_METRIC_SEND_SECONDS, e->send_seconds);
    ps_metric_set(v, PS_METRIC_BYTES_SENT, (double)e->bytes_sent);
    ps_metric_set(v, PS_METRIC_BYTES_RECEIVED, (double)e->bytes_received);
    ps_metric_set(v, PS_METRIC_SHM_BYTES_SENT, (double)e->shm_sent);
    ps_metric_set(v, PS_METRIC_SHM_BYTES_RECEIVED, (double)e->shm_received);
}

double ps_trainer_book_step(ps_trainer *t, double seconds, int64_t group_n)
{
    ps_exchange_stats stats;
    ps_session_stats(t->o.session, &stats);
    double waited = stats.wait_seconds - t->waited;
    t->waited = stats.wait_seconds;
    ps_trainer_result *r = t->result;
    r->steps = t->step;
    r->samples += (uint64_t)group_n;
    r->seconds += seconds;
    ps_trainer_window *w = &t->since_record;
    w->steps++;
    w->global_samples += group_n;
    w->seconds += seconds;
    w->wait_seconds += waited;
    if (past_warmup(t)) {
        ps_duration_add(&r->step_time, seconds);
        ps_duration_add(&r->wait_time, waited);
        t->warm_seconds += seconds;
        t->warm_samples += (uint64_t)group_n;
    }
    // The first step, in which everything warms up, counts only until there is another.
    const uint64_t made = t->step - r->first_step;
    double weight = made < 2 ? 1 : made < 21 ? 1 / (double)(made - 1) : 0.05;
    t->seconds_a_step += weight * (seconds - t->seconds_a_step);
    t->samples_a_step += weight * ((double)group_n - t->samples_a_step);
    ps_trainer_show_values(t, &stats, r->seconds);
    return waited;
}

void ps_trainer_show_progress(ps_trainer *t, double loss, bool now)
{
    char waits_for[64];
    ps_progress_state state = {
        .waits_for =
            ps_straggler_text(&t->result->stragglers.now, waits_for, sizeof waits_for),
        .epoch = t->epoch + 1,
        .epochs = t->epochs,
        .step = t->step + t->shown,
        .steps = t->total_steps,
        .loss = loss,
        .samples_per_second = t->samples_a_step / t->seconds_a_step,
        .seconds_left =
            t->step > 1 ? (double)(t->total_steps - t->step) * t->seconds_a_step : NAN};
    ps_progress_show(t->o.progress, &state, now);
}

static void show_record(const ps_trainer *t, const ps_step_record *r)
{
    ps_metric_set(t->o.values, PS_METRIC_LOSS_MEAN, r->loss_mean);
    ps_metric_set(t->o.values, PS_METRIC_LR, r->lr);
    ps_metric_set(t->o.values, PS_METRIC_LOSS_SCALE, r->loss_scale);
    ps_metric_set(t->o.values, PS_METRIC_STEP_MS, r->step_ms);
    ps_metric_set(t->o.values, PS_METRIC_EXCHANGE_WAIT_MS, r->exchange_wait_ms);
}

ps_step_record ps_trainer_measured(const ps_trainer *t)
{
    const ps_trainer_window *w = &t->since_record;
    return (ps_step_record){.step = t->step,
                            .epoch = t->epoch,
                            .loss = t->step_loss,
                            .loss_mean = NAN,
                            .lr = ps_session_lr(t->o.session, t->step - 1),
                            .loss_scale = t->loss_scale,
                            .samples_per_second = (double)w->global_samples / w->seconds,
                            .step_ms = w->seconds * 1e3 / (double)w->steps,
                            .exchange_wait_ms = w->wait_seconds * 1e3 / (double)w->steps};
}

ps_err ps_trainer_write_record(ps_trainer *t, const ps_step_record *record)
{
    show_record(t, record);
    return ps_metrics_step(t->o.metrics, record);
}

void ps_trainer_book_traffic(ps_trainer *t, const ps_exchange_stats *before)
{
    ps_exchange_stats *now = &t->result->traffic;
    ps_session_stats(t->o.session, now);
    now->bytes_sent -= before->bytes_sent;
    now->bytes_received -= before->bytes_received;
    now->raw_bytes -= before->raw_bytes;
    now->shm_sent -= before->shm_sent;
    now->shm_received -= before->shm_received;
    now->wait_seconds -= before->wait_seconds;
}

void ps_trainer_book_speed(ps_trainer *t)
{
    ps_trainer_result *r = t->result;
    if (t->warm_seconds > 0)
        r->samples_per_second = (double)t->warm_samples / t->warm_seconds;
    else if (r->seconds > 0)
        r->samples_per_second = (double)r->samples / r->seconds;
}
