/* The life of a session: what may be called when. A program's session (library/) and the
 * one below it share theirs. */
#ifndef PS_LIFE_H
#define PS_LIFE_H

#include <pthread.h>
#include <stdatomic.h>

#include "err.h"

typedef enum ps_stage {
    PS_STAGE_CREATED,
    PS_STAGE_JOINED, // a member of the job, or alone
    PS_STAGE_OPEN,   // knows where the job begins, and has arenas
    PS_STAGE_STARTED,
    PS_STAGE_STOPPED,
    PS_STAGE_CLOSED,
    PS_STAGE_FAILED
} ps_stage;

enum {
    PS_IN_CREATED = 1 << PS_STAGE_CREATED,
    PS_IN_JOINED = 1 << PS_STAGE_JOINED,
    PS_IN_OPEN = 1 << PS_STAGE_OPEN,
    PS_IN_STARTED = 1 << PS_STAGE_STARTED,
    PS_IN_STOPPED = 1 << PS_STAGE_STOPPED,
    PS_IN_MEMBER = PS_IN_JOINED | PS_IN_OPEN | PS_IN_STARTED
};

typedef struct ps_life {
    _Atomic int stage;    // changed by one thread; read, and failed, by any
    ps_err_saved failure; // of PS_STAGE_FAILED; written before the stage
    pthread_mutex_t lock; // of changes
} ps_life;

void ps_life_init(ps_life *l);
void ps_life_fini(ps_life *l);

static inline ps_stage ps_life_stage(const ps_life *l)
{
    return (ps_stage)atomic_load(&l->stage);
}
/* Checks that the call comes in one of the stages, a bit set of PS_IN_...: else ARG,
 * which says what is to be called first, or what has happened. */
ps_err ps_life_expect(const ps_life *l, unsigned stages, const char *call);
/* Nothing after a failure. */
void ps_life_reach(ps_life *l, ps_stage stage);
/* With the present error message; the first failure counts. */
void ps_life_fail(ps_life *l, ps_err err);

#endif
