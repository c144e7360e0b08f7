/* What the coordinator keeps for the members: sums that wait for all workers (barriers
 * are sums of nothing), a key-value store, gradient norms, and
 * orders (coord_orders.h). It has no socket and no
 * thread: the owner passes requests in, calls ps_coord_board_expire in time, and gets the
 * answers through a function. */
#ifndef PS_COORD_BOARD_H
#define PS_COORD_BOARD_H

#include "control.h"
#include "coord_norms.h"
#include "coord_orders.h"
#include "roster.h"

typedef struct ps_coord_board ps_coord_board;

/* The sender of a request: a member. */
typedef struct ps_coord_asker {
    ps_control_id id;
    ps_role role;
    int rank;
} ps_coord_asker;

ps_err ps_coord_board_create(int n_workers, ps_coord_answer answer, void *owner,
                             ps_coord_board **out);
/* Before the first request: the job has fewer workers than it was made for. */
void ps_coord_board_set_workers(ps_coord_board *b, int n_workers);
void ps_coord_board_destroy(ps_coord_board **board);

/* Takes a GATHER of a worker, a PUT or DROP (of a key that the sender may set), a GET, or
 * a NORM or PUSHED of a server. Every failure is answered, and nothing that a member
 * sends is an error of the board. A request that is repeated because a connection was
 * lost counts once and is answered again. It is recognised by its sender's request
 * number, a NORM by its step. */
void ps_coord_board_request(ps_coord_board *b, const ps_coord_asker *from,
                            const ps_control *c);

/* Notes that a worker has left. Requests that wait for it fail. */
void ps_coord_board_worker_left(ps_coord_board *b, int rank);
/* Forgets the waiting requests of a member that is gone. */
void ps_coord_board_forget(ps_coord_board *b, const ps_secret *member);

/* The same, of a worker whose place another process takes. */
void ps_coord_board_renew(ps_coord_board *b, const ps_secret *member, int rank);
/* NULL: not with this policy, or no push has come yet. */
ps_coord_orders *ps_coord_board_orders(ps_coord_board *b);

/* Answers the requests whose deadline has passed, naming the members that they waited
 * for. Its error is that of an order which nobody has asked for, and which is lost: the
 * job cannot go on. */
ps_err ps_coord_board_expire(ps_coord_board *b);
/* The earliest deadline of the waiting requests. */
ps_deadline ps_coord_board_next_deadline(const ps_coord_board *b);

#endif
