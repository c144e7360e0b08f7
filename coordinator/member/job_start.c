#include "job_start.h"

#include <stdlib.h>
#include <string.h>

#include "job_keys.h"
#include "local_steps.h"
#include "mp_map.h"

typedef struct start_message {
    uint64_t total_steps, step;
    ps_map_bytes rule;
} start_message;

static const ps_map_field start_fields[] = {
    PS_MAP_FIELD(start_message, total_steps, U64, UINT64_MAX),
    PS_MAP_FIELD(start_message, step, U64, UINT64_MAX),
    PS_MAP_FIELD(start_message, rule, BYTES, PS_STEP_RULE_STATE_BYTES),
};
static const ps_map start_map = PS_MAP_OF(start_fields, start_message);

ps_err ps_job_start_put(ps_member *m, const ps_job_start *start, ps_deadline deadline)
{
    const start_message message = {
        start->total_steps, start->step, {start->rule, start->rule_bytes}};
    ps_mp_writer w;
    ps_mp_writer_init(&w);
    ps_map_write(&w, &start_map, &message);
    return ps_member_put_written(m, PS_JOB_KEY_TOTAL_STEPS, &w, deadline);
}

static ps_err job_start_read_value(const void *value, size_t bytes, ps_job_start *start)
{
    start_message m;
    PS_TRY(ps_map_read(value, bytes, &start_map, PS_JOB_KEY_TOTAL_STEPS, &m));
    *start = (ps_job_start){
        .total_steps = m.total_steps, .step = m.step, .rule_bytes = m.rule.n};
    if (m.rule.n > 0) memcpy(start->rule, m.rule.at, m.rule.n);
    return PS_OK;
}

ps_err ps_job_start_get(ps_member *m, ps_job_start *start, ps_deadline deadline)
{
    void *value = NULL;
    size_t bytes = 0;
    ps_err err = ps_member_get(m, PS_JOB_KEY_TOTAL_STEPS, &value, &bytes, deadline);
    if (err == PS_ERR_TIMEOUT)
        ps_err_prefix(err, "waiting for worker 0 to count its steps");
    if (err != PS_OK) return err;
    err = job_start_read_value(value, bytes, start);
    free(value);
    return err;
}

ps_job_start ps_job_start_of_exchange(const ps_job_start *start, const ps_config *cfg)
{
    if (!ps_local_steps_on(cfg)) return *start;
    return (ps_job_start){.total_steps = ps_local_steps_rounds(cfg, start->total_steps),
                          .step = ps_local_steps_round(cfg, start->step),
                          .ahead =
                              ps_local_steps_ahead(cfg, start->step, start->total_steps)};
}

ps_err ps_job_start_rule(const ps_job_start *start, const ps_config *cfg,
                         ps_step_rule *rule)
{
    PS_TRY(ps_step_rule_start(rule, cfg, start->total_steps));
    if (start->rule_bytes == 0) return PS_OK;
    return ps_step_rule_load(rule, start->rule, start->rule_bytes);
}
