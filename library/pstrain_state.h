/* What a pstrain_session holds. Only for pstrain.c and its parts:
 *
 *     pstrain_call          entering and leaving a call: order, threads, errors
 *     pstrain               create, join, the end
 *     pstrain_table         opening: tensors, settings, agreement with the others
 *     pstrain_driver        CUDA's driver
 *     pstrain_device        parameters on a GPU
 *     pstrain_steps         steps, sums and state
 *     pstrain_collectives   barrier, broadcast, gather, reduction
 *     pstrain_reduce        the reducer
 *     pstrain_embedding     rows of embedding tables
 *     pstrain_rows_points   points to which they can go back
 *     pstrain_transfers     links, communicators and transfers
 */
#ifndef PSTRAIN_STATE_H
#define PSTRAIN_STATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "links.h"
#include "open_job.h"
#include "pstrain.h"
#include "row_client.h"
#include "rows_points.h"
#include "session.h"

/* Calls of one lane must not overlap. */
typedef enum pstrain_lane {
    PSTRAIN_LANE_MAIN,
    PSTRAIN_LANE_COLLECTIVE,
    PSTRAIN_LANE_REDUCE_BEGIN,
    PSTRAIN_LANE_REDUCE_END,
    PSTRAIN_LANE_CONNECT,
    PSTRAIN_LANES
} pstrain_lane;

struct pstrain_reducing; // pstrain_reduce.c
struct pstrain_device;   // pstrain_device.c

struct pstrain_session {
    pid_t pid; // of the process that made it
    pstrain_interrupted_fn interrupted;
    void *interrupted_ctx;
    atomic_bool busy[PSTRAIN_LANES];
    ps_life life;
    atomic_bool aborted;
    /* Held where opening and closing a table change what calls of other lanes and
     * pstrain_stats_get read: `full`, and whether the session's figures go. */
    pthread_mutex_t lock;
    bool figures_go;

    // From create on
    char **settings; // owned, as ps_config_load takes them: create's, then open's
    int n_settings, n_own_settings;       // these: create's
    ps_config config;                     // by create's settings
    ps_config join_defaults, join_config; // with which the worker joins; borrow config
    char *init_method;                    // NULL: no other process
    int wanted_rank, world_size, servers;

    // From join on
    int rank;
    ps_member *member; // NULL: no other process
    ps_links *links;   // NULL: not connected, or alone

    // From open on
    bool reduces;    // a reducer session
    ps_config *full; // by all settings; owned. NULL: not loaded yet
    ps_open_job own;
    int n_entries;     // of the table
    uint64_t *offsets; // by entry: elements of the arenas, or bytes of the buffers
    ps_param_groups groups;
    ps_group_numbers *numbers; // (groups.n) for the next step
    bool has_numbers, new_numbers;
    int n_optimizers; // the program's
    ps_session *session;
    const pstrain_state *resume; // until start
    struct pstrain_reducing *reducing;
    struct pstrain_device *device; // NULL: parameters are in host memory
    ps_row_client *rows;           // NULL: the job has no embedding tables
    ps_row_lookup *lookups;        // (own.n_rows) scratch
    ps_rows_points *points;        // to which they can go back; NULL: none was set
    char *manifest;                // of the last one

    // Steps
    uint64_t step; // the next, or the one that has begun
    bool begun;
    float scale; // the last loss scale seen
    uint64_t skipped;
    atomic_uint_fast64_t finished;
};

/* Enters a call: checks process, lane and stage, and lets waits ask `interrupted`. ARG
 * then, and nothing has to be left. stages: as ps_life_expect's. */
ps_err pstrain_enter(pstrain_session *s, pstrain_lane lane, unsigned stages,
                     const char *call);
/* Leaves it with its result: after an error other than ARG the session has failed. */
int pstrain_leave(pstrain_session *s, pstrain_lane lane, ps_err err);

/* The end of a call: `enter`, and if there is no error `leave`, whose argument is the
 * call's work. */
#define PSTRAIN_RETURN(enter, leave)                                                     \
    do {                                                                                 \
        const ps_err entered = enter;                                                    \
        return entered == PS_OK ? leave : (int)entered;                                  \
    } while (0)
#define PSTRAIN_CALL(s, lane, stages, work)                                              \
    PSTRAIN_RETURN(pstrain_enter(s, lane, stages, __func__), pstrain_leave(s, lane, work))

/* Memory for state->missed where this rank needs it: owned, zeroed. */
ps_err pstrain_missed_room(const pstrain_session *s, ps_exchange_state *state);

/* Copies count settings to the end of s->settings. CONFIG for keys that are not for
 * programs. */
ps_err pstrain_add_settings(pstrain_session *s, const char *const *settings, int n);
/* Frees all that there is from open on; safe where nothing is. */
void pstrain_forget_table(pstrain_session *s);

/* ps_config_load by all settings, into s->full; checks them against the servers. */
ps_err pstrain_load_settings(pstrain_session *s);
/* Agrees with the others on s->own and makes the session: the common end of opening. */
ps_err pstrain_agree(pstrain_session *s, uint64_t total_steps,
                     const pstrain_state *resume);

/* A group's numbers. A group without a name has the optimizer of s->full. ARG: no
 * optimizer has the group's name. */
ps_err pstrain_numbers_of(const pstrain_session *s, const pstrain_group *g,
                          ps_group_numbers *out);

/* By all settings that there are: create's, then open's too. Other lanes than the main
 * one hold the lock as long as they use it. */
const ps_config *pstrain_config(const pstrain_session *s);
/* Of a step, in any lane. */
ps_deadline pstrain_step_deadline(pstrain_session *s);

/* Takes the table's embedding tables into s->own, once the settings are loaded. ARG,
 * CONFIG. */
ps_err pstrain_rows_declare(pstrain_session *s, const pstrain_table *t);
/* What they need once the plan is known. NOMEM. */
ps_err pstrain_rows_open(pstrain_session *s);
void pstrain_rows_close(pstrain_session *s);
/* As pstrain_enter, of a started session with embedding tables. */
ps_err pstrain_rows_enter(pstrain_session *s, const char *call);
#define PSTRAIN_ROWS_CALL(s, work)                                                       \
    PSTRAIN_RETURN(pstrain_rows_enter(s, __func__),                                      \
                   pstrain_leave(s, PSTRAIN_LANE_MAIN, work))

/* The reducer's part of closing, figures and the end. */
ps_err pstrain_reducing_stop(pstrain_session *s);
void pstrain_reducing_stats(const pstrain_session *s, ps_exchange_stats *out);
void pstrain_reducing_destroy(struct pstrain_reducing **r);

#endif
