/* Where a job begins. Only worker 0 knows this, because it has the data and the
 * checkpoint. Every other member asks for it. */
#ifndef PS_JOB_START_H
#define PS_JOB_START_H

#include "member.h"
#include "step_rule.h"

typedef struct ps_job_start {
    uint64_t total_steps; // of the job, those before `step` included
    uint64_t step;        // the first to be made; 0: a new job
    /* Of this worker: as in exchange.h; ps_job_start_put: 0. */
    uint64_t back_at, back_fragment, buffer_pieces;
    uint32_t ahead;    // of an exchange: fragments that have made it; ps_job_start_put: 0
    size_t rule_bytes; // 0: a new job's
    uint8_t rule[PS_STEP_RULE_STATE_BYTES]; // ps_step_rule_save's
} ps_job_start;

/* Sets "job/total_steps". Worker 0 calls it once. */
ps_err ps_job_start_put(ps_member *member, const ps_job_start *start,
                        ps_deadline deadline);
/* Waits until worker 0 has set it. */
ps_err ps_job_start_get(ps_member *member, ps_job_start *start, ps_deadline deadline);

/* The same as the exchange sees it: in rounds, where workers make steps by themselves
 * between two of them (local_steps.h). Its rule has no state: it scales no loss. */
ps_job_start ps_job_start_of_exchange(const ps_job_start *start, const ps_config *cfg);

/* Begins the rule with the job's steps and, where it goes on, its state. */
ps_err ps_job_start_rule(const ps_job_start *start, const ps_config *cfg,
                         ps_step_rule *rule);

#endif
