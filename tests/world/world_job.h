/* Jobs of the world, and their judges. Each returns 0, or does not return (world_wrong).
 */
#ifndef WORLD_JOB_H
#define WORLD_JOB_H

#include "world.h"

/* Programs on libpstrain whose gradients are a pure function of rank, step and element,
 * and servers (the whole ps-server). A member that dies ends the job. */
bool world_job_has_no_closed_form(uint64_t seed);
int world_job_run(const world_options *options, bool disturbed, uint64_t *weights);

/* The whole ps-worker and ps-server, with a small model, and what psrun does when a part
 * dies. The weights in the end are those of the run in which nothing goes wrong: *weights
 * is their hash; 0: not known yet. disturbed: whether anything goes wrong. Where workers
 * go on at their own pace they are those of its replay (replay: that run's policy.log).
 */
bool world_train_is_own_pace(uint64_t kind); // its weights depend on what happens when
int world_train_run(const world_options *options, const char *folder, bool disturbed,
                    const char *replay, uint64_t *weights);

#endif
