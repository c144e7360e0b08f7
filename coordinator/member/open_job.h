/* Jobs whose servers were started without a model. The workers' program has the tensors
 * and chooses the optimizer (library); servers and workers join with settings that
 * are alike for all such jobs, and learn the rest from worker 0:
 *
 *   worker 0      PUT "job/tensors": this message
 *   each worker   GET, compares with its own
 *   each server   GET, makes its plan, compares the plan's hash
 *
 * The message is a msgpack array:
 *
 *   [version, plan hash, [setting, ...], mean, number of groups,
 *    numbers (bin) of the first step,
 *    [[name, role, group, dimension, ...], ...] parameters, the same of buffers,
 *    [settings (bin, ps_row_spec_write), ...] embedding tables]
 *
 * A setting is "key=value"; those of scope LOCAL are ignored by everybody else. numbers:
 * ps_group_numbers of each group, or nothing. mean: the servers multiply gradients by
 * 1 / workers.
 */
#ifndef PS_OPEN_JOB_H
#define PS_OPEN_JOB_H

#include "member.h"
#include "param_groups.h"
#include "row_spec.h"
#include "tensor_table.h"

/* The plan hash with which members of such a job join. */
enum { PS_OPEN_JOB_PLAN = 0 };

typedef struct ps_open_job {
    uint64_t plan_hash;
    char **settings; // owned
    int n_settings;
    bool mean;
    int n_groups;
    ps_group_numbers *numbers; // owned: n_groups of them, or NULL
    ps_tensor_table table;     // owned
    ps_row_spec *rows;         // owned: n_rows embedding tables
    int n_rows;
} ps_open_job;

void ps_open_job_fini(ps_open_job *job); // safe for a zeroed one

/* Tells each tensor which optimizer it belongs to. Must be called before a plan is made
 * of the table. */
void ps_open_job_set_owners(ps_open_job *job);

/* The settings with which members join: local's own values of what may differ between
 * members, the defaults of all else, for a job of that size. A view (ps_config_view) of
 * local and *defaults, on which the caller must call fini afterwards. */
ps_err ps_open_job_config(const ps_config *local, ps_config *defaults, ps_config *view);

/* Worker 0. */
ps_err ps_open_job_put(ps_member *member, const ps_open_job *job, ps_deadline deadline);
/* Waits for it. *found is false when the deadline has passed; out is then zeroed. out is
 * owned by the caller. PROTOCOL. */
ps_err ps_open_job_get(ps_member *member, ps_deadline deadline, ps_open_job *out,
                       bool *found);

/* PEER where worker `rank` has something else than worker 0: says what. */
ps_err ps_open_job_compare(const ps_open_job *of_0, const ps_open_job *own, int rank);

/* The message's bytes and back; for put and get, and tests. */
ps_err ps_open_job_write(const ps_open_job *job, ps_mp_writer *w);
ps_err ps_open_job_read(const void *bytes, size_t n, ps_open_job *out);

#endif
