/* The coordinator's part in the policies in which workers go on at their own pace: it
 * gathers from the shards which pushes are in, lets sync_policy.h decide, and gives all
 * shards the same orders. No socket and no thread: it belongs to the board (coord_board),
 * which passes messages in and sends what comes out.
 *
 *   worker 0 -> PUT "job/policy"    the rules (sync_codec.h, as all that follows)
 *   shard    -> PUSHED              all chunks of a worker's push are here
 *            <- ORDER               to every shard, once all shards have the push that
 *                                   have chunks of its fragment
 *   workers  <- CLOSE               the stretch has all its versions: a round that is not
 *                                   over may end now
 *   worker   -> PUT "policy/end"    the workers are to rest soon
 *   worker 0 -> PUT "job/policy_batches"   at rest, or before the first push: the samples
 *                                   of each worker's pushes from here on
 *   worker 0 -> PUT "job/place/<n>" after n rests, and all that is agreed on there: a
 *                                   worker that dies from here on may come back
 *   worker 0 -> GET "policy/<n>"    set when the workers rest for the n-th time; a long
 *                                   record goes on in "policy/<n>/<k>" (rest_record.h)
 */
#ifndef PS_COORD_ORDERS_H
#define PS_COORD_ORDERS_H

#include "clock.h"
#include "control.h"
#include "sync_fragments.h"

typedef struct ps_coord_orders ps_coord_orders;

typedef struct ps_coord_orders_hooks {
    void *owner;
    /* Sends a message; it is borrowed during the call. */
    void (*send)(void *owner, const ps_control_id *to, const ps_control *message);
    /* Sets a key of the board. */
    ps_err (*store)(void *owner, const char *key, const void *value, size_t bytes);
} ps_coord_orders_hooks;

/* value: of "job/policy". PROTOCOL, ARG: no such rules. */
ps_err ps_coord_orders_create(const ps_coord_orders_hooks *hooks, const void *value,
                              size_t bytes, ps_coord_orders **out);
void ps_coord_orders_destroy(ps_coord_orders **orders);

/* Takes a PUSHED of a shard. PROTOCOL, or FORMAT of a script. */
ps_err ps_coord_orders_pushed(ps_coord_orders *orders, const ps_control_id *from,
                              const ps_control *c);
/* A worker has set a key of the board, one of the above or any other. PROTOCOL, ARG. */
ps_err ps_coord_orders_set(ps_coord_orders *orders, const char *key, const void *value,
                           size_t bytes);

/* When ps_coord_orders_expire has to be called; at_ns UINT64_MAX: not at all. */
ps_deadline ps_coord_orders_deadline(const ps_coord_orders *orders);
/* Decides what waited until now. */
ps_err ps_coord_orders_expire(ps_coord_orders *orders);

/* Whether the others can go on when the worker dies now; false for NULL. */
bool ps_coord_orders_may_lose(const ps_coord_orders *orders, int rank);
/* Whether the workers were told to rest soon, and to end; false for NULL. */
bool ps_coord_orders_end(const ps_coord_orders *orders);
/* It is dead, and they go on. NOMEM. */
ps_err ps_coord_orders_lose(ps_coord_orders *orders, int rank);

/* How many stretches have all their versions, so that rounds which are not over need not
 * go on; 0 for NULL, and where a record is repeated. */
uint64_t ps_coord_orders_closed(const ps_coord_orders *orders);

/* Where a process begins that takes the place of a dead worker. */
typedef struct ps_coord_orders_reentry {
    uint64_t push;     // number of its first push; 0: it is no such process
    uint64_t stretch;  // how often the workers have rested
    uint64_t made;     // rounds of its rank since the last rest
    uint64_t fragment; // that it pushes first, after an empty push of each
} ps_coord_orders_reentry;

ps_coord_orders_reentry ps_coord_orders_reentry_of(const ps_coord_orders *orders,
                                                   int rank);

#endif
