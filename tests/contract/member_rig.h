/* A job whose members are threads of the test, with real sockets on the loopback. */
#ifndef PS_TEST_MEMBER_RIG_H
#define PS_TEST_MEMBER_RIG_H

#include <pthread.h>

#include "member.h"

enum { RIG_MEMBERS_MAX = 8 };

typedef struct rig_job {
    ps_config config;
    char init[128];
    int n_servers, n_workers;
    int min_workers; // 0: the number of workers is fixed
} rig_job;

typedef struct rig_part rig_part;
typedef void (*rig_body)(rig_part *p);

struct rig_part {
    rig_job *job;
    ps_role role;
    int rank;
    int expected_workers; // of an elastic job
    bool late;            // joins after the others
    rig_body run;
    ps_member *member;
    ps_err err;
    char message[1024];
    pthread_t thread;
};

/* A part that is late waits for it before it joins. The test initialises it. */
extern pthread_barrier_t rig_others_have_joined;

void rig_open(rig_job *j, int n_servers, int n_workers);
/* Checks that the coordinator has removed its file, too. */
void rig_close(rig_job *j);

/* Runs every member on a thread and waits for all. The parts are the servers, then the
 * workers. */
void rig_run(rig_job *j, rig_part *parts, rig_body server, rig_body worker);
void rig_assert_well(const rig_job *j, const rig_part *parts);
/* A whole job that has to go well: opens, runs, checks and closes it. */
void rig_run_well(int n_servers, int n_workers, rig_body server, rig_body worker);
/* One part's thread, for tests that make the parts themselves: joins, runs the body when
 * that went well, and destroys the member. arg is the part. */
void *rig_run_part(void *arg);

/* ---- in a part's thread ---- */

/* The deadline of everything that is to go well. */
ps_deadline rig_soon(void);
ps_err rig_join(rig_part *p);
/* Keeps the part's first error and its message. */
void rig_note(rig_part *p, ps_err err);
/* A check for other threads: cmocka's checks may fail only in the main thread. */
void rig_expect(rig_part *p, bool holds, const char *what);
/* The body of a server: waits until all workers have left. */
void rig_serve(rig_part *p);

#endif
