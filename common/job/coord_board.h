/* What the coordinator keeps for the members: sums that wait for all workers (barriers
 * are sums of nothing), a key-value store, gradient norms, and
 * orders (coord_orders.h). It has no socket and no
 * thread: the owner passes requests in, calls ps_coord_board_expire in time, and gets the
 * answers through a function. */
#ifndef PS_COORD_BOARD_H
#define PS_COORD_BOARD_H

#include "control.h"
#include "roster.h"

typedef struct ps_coord_board ps_coord_board;

/* The sender of a request: a member. */
typedef struct ps_coord_asker {
    ps_control_id id;
    ps_role role;
    int rank;
} ps_coord_asker;

/* Called with each answer; value is borrowed during the call. */
typedef void (*ps_coord_board_answer)(void *owner, const ps_control_id *to,
                                      const ps_control *answer);

ps_err ps_coord_board_create(int n_workers, ps_coord_board_answer answer, void *owner,
                             ps_coord_board **out);
/* Before the first request: the job has fewer workers than it was made for. */
void ps_coord_board_set_workers(ps_coord_board *b, int n_workers);
void ps_coord_board_destroy(ps_coord_board **board);

/* Takes a GATHER of a worker, a PUT (of a key that the sender may set), a GET, or a NORM
 * or PUSHED of a server. Every failure is answered, and nothing that a member sends is an
 * error of the board. A request that is repeated because a connection was lost counts
 * once and is answered again. It is recognised by its sender's request number, a NORM by
 * its step. */
void ps_coord_board_request(ps_coord_board *b, const ps_coord_asker *from,
                            const ps_control *c);

/* Notes that a worker has left. Requests that wait for it fail. */
void ps_coord_board_worker_left(ps_coord_board *b, int rank);
/* Forgets the waiting requests of a member that is gone. */
void ps_coord_board_forget(ps_coord_board *b, const ps_secret *member);

/* Answers the requests whose deadline has passed, naming the members that they waited
 * for. */
void ps_coord_board_expire(ps_coord_board *b);
/* The earliest deadline of the waiting requests. */
ps_deadline ps_coord_board_next_deadline(const ps_coord_board *b);

#endif
