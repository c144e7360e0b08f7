/* The coordinator's part in the norm of a gradient: gathers the parts of the shards
 * (gradnorm_sum.h), and answers all of them. For coord_board.c. */
#ifndef PS_COORD_NORMS_H
#define PS_COORD_NORMS_H

#include "control.h"
#include "gradnorm_sum.h"

/* Called with each answer; value is borrowed during the call. */
typedef void (*ps_coord_answer)(void *owner, const ps_control_id *to,
                                const ps_control *answer);

/* In flight, up to two of a step; older ones are dropped. */
enum { PS_COORD_NORMS = 8 };

typedef struct ps_coord_norms {
    ps_coord_answer answer;
    void *owner;
    ps_gradnorm_sum sums[PS_COORD_NORMS];  // by key modulo PS_COORD_NORMS
    ps_control_id *askers[PS_COORD_NORMS]; // the senders of parts: n_parts of each
    ps_control answers[PS_COORD_NORMS];    // the last ones; kind 0: none yet
    double *wanted_sums[PS_COORD_NORMS];   // their values
} ps_coord_norms;

void ps_coord_norms_fini(ps_coord_norms *n);
/* Takes a NORM of a server. A repeated one is recognised by its step. */
ps_err ps_coord_norms_request(ps_coord_norms *n, const ps_control_id *from,
                              const ps_control *c);

/* FAIL with this thread's last error. */
void ps_coord_answer_fail(ps_coord_answer answer, void *owner, const ps_control_id *to,
                          uint64_t request, ps_err code);

#endif
