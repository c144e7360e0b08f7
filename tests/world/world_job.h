/* Jobs of the world, and their judges. Each returns 0, or does not return (world_wrong).
 */
#ifndef WORLD_JOB_H
#define WORLD_JOB_H

#include "world.h"

typedef struct world_record { // of a run that is replayed
    const char *path; // policy.log, or membership.jsonl; NULL: nothing is replayed
    int stretch;      // of an elastic job: the part of its steps that is
} world_record;

enum { WORLD_SIZE_MOST = 4 };

typedef struct world_job_options {
    const char *folder; // for files
    bool disturbed;     // whether anything goes wrong
    uint64_t without;   // faults that do not happen (nemesis.h)
    world_record record;
    int size;             // of workers, and of servers; 0: any
    world_memory *memory; // of the run without faults, in which it is noted
} world_job_options;

/* Programs on libpstrain whose gradients are a pure function of rank, step and element,
 * and servers (the whole ps-server). A member that dies ends the job. */
bool world_job_has_no_closed_form(uint64_t seed);
int world_job_run(const world_options *options, const world_job_options *job,
                  uint64_t *weights);

/* The server of a job without a model, to its end. */
int world_run_server(int rank, int servers, int workers, int shards, const char *shm);
extern const char world_init_method[];

/* Other members die that many times: judges the memory of server 0 and worker 0. */
enum { WORLD_DEATHS_MOST = 5900 };
int world_deaths_run(const world_options *options, const char *folder, int deaths);

/* Prints how long things take with n members, of which two are servers. */
enum { WORLD_MEMBERS_LEAST = 3, WORLD_MEMBERS_MOST = 1024 };
int world_scale_run(const world_options *options, int members);

/* The whole ps-worker and ps-server, with a small model, and what psrun does when a part
 * dies. */
typedef enum world_subject {
    WORLD_FIXED,    // the weights are those of the run in which nothing goes wrong
    WORLD_OWN_PACE, // those of its replay: they depend on what happens when
    WORLD_ELASTIC,  // likewise: workers come, leave and die
    WORLD_DEATHS_AT_OWN_PACE // all steps are made; with a quorum nobody waits
} world_subject;
world_subject world_train_subject(uint64_t kind);

/* *weights: the hash of those in the end; not 0: what it has to be. */
int world_train_run(const world_options *options, const world_job_options *job,
                    uint64_t *weights);

/* How many stretches of steps with one number of workers a membership.jsonl has; and of
 * one of them the workers, and the step at which the next one begins (0: none). */
int world_train_stretches(const char *path);
void world_train_stretch(const world_record *record, int *workers, int *next);

#endif
