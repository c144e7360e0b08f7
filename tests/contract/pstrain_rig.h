/* Jobs of libpstrain: servers without a model and workers, all threads of the test. The
 * workers use the shared library; the servers are the program's own code. */
#ifndef PSTRAIN_RIG_H
#define PSTRAIN_RIG_H

#include <pthread.h>

#include "pstrain.h"
#include "test_job.h"

enum { RIG_WORKERS_MAX = 4 };

typedef struct rig_worker {
    struct rig *rig;
    int rank;
    pstrain_session *s;
    pthread_t thread;
    int status; // what run returned
    char text[1024];
} rig_worker;

typedef struct rig {
    int servers, workers;
    const char *const *settings; // of every worker, besides the rig's
    int n_settings;
    int (*run)(rig_worker *w); // of a member that has joined; returns a pstrain_status
    void *ctx;                 // for run
    bool fails;                // the test expects failures: run's text is kept either way
    test_job job;
    rig_worker worker[RIG_WORKERS_MAX];
} rig;

/* Runs the job to its end. Every worker and server must end well, unless the test expects
 * failures. */
void rig_run(rig *r);
/* The same of these servers and workers; after them, more fields of the rig. */
#define rig_job(n_servers, n_workers, body, ...)                                         \
    rig_run(&(rig){                                                                      \
        .servers = (n_servers), .workers = (n_workers), .run = (body), __VA_ARGS__})

/* A worker's options, for sessions that a test makes itself. */
pstrain_options rig_options(const rig *r, int rank, const char **settings);

/* n tensors of a list; after them, more fields of the table. */
#define RIG_TABLE(list, n, ...)                                                          \
    ((pstrain_table){.struct_size = sizeof(pstrain_table),                               \
                     .tensors = (list),                                                  \
                     .n_tensors = (n),                                                   \
                     .tensor_size = sizeof *(list),                                      \
                     __VA_ARGS__})

/* Returns from the calling function with the status, when that is not 0. */
#define RIG_TRY(call)                                                                    \
    do {                                                                                 \
        int rig_status_ = (call);                                                        \
        if (rig_status_) return rig_status_;                                             \
    } while (0)

/* Fails the test unless the call gave the status and its message has the text. */
#define rig_refused(call, wanted, text)                                                  \
    rig_assert_refused((call), (wanted), (text), #call, __LINE__)
void rig_assert_refused(int status, int wanted, const char *text, const char *call,
                        int line);

#endif
