#include "job_start.h"

#include <stdlib.h>
#include <string.h>

#include "job_keys.h"
#include "local_steps.h"

/* u64 total steps; for a resumed job also u64 step and the rule's state. */
enum { NEW_BYTES = 8, HEAD_BYTES = 16 };

ps_err ps_job_start_put(ps_member *m, const ps_job_start *start, ps_deadline deadline)
{
    uint8_t value[HEAD_BYTES + PS_STEP_RULE_STATE_BYTES];
    memcpy(value, &start->total_steps, 8);
    memcpy(value + 8, &start->step, 8);
    memcpy(value + HEAD_BYTES, start->rule, start->rule_bytes);
    size_t bytes = start->step > 0 ? HEAD_BYTES + start->rule_bytes : NEW_BYTES;
    return ps_member_put(m, PS_JOB_KEY_TOTAL_STEPS, value, bytes, deadline);
}

static ps_err job_start_read_value(const uint8_t *value, size_t bytes,
                                   ps_job_start *start)
{
    *start = (ps_job_start){0};
    if (bytes != NEW_BYTES &&
        (bytes < HEAD_BYTES || bytes > HEAD_BYTES + sizeof start->rule))
        return ps_err_set(PS_ERR_PROTOCOL, "%s has %zu bytes", PS_JOB_KEY_TOTAL_STEPS,
                          bytes);
    memcpy(&start->total_steps, value, 8);
    if (bytes == NEW_BYTES) return PS_OK;
    memcpy(&start->step, value + 8, 8);
    start->rule_bytes = bytes - HEAD_BYTES;
    memcpy(start->rule, value + HEAD_BYTES, start->rule_bytes);
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
