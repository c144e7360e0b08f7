/* Moves a reducer's optimizer states to rank 0's arenas, or back. Every rank has its own
 * parts of them. */
#ifndef PS_REDUCER_SNAPSHOT_H
#define PS_REDUCER_SNAPSHOT_H

#include "reducer.h"

/* ps_exchange_ops's save and load, while nothing is being reduced. */
ps_err ps_reducer_save(ps_reducer *r, ps_exchange_state *out);
ps_err ps_reducer_load(ps_reducer *r, const ps_exchange_state *in);

#endif
