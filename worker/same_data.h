/* Whether all workers of a job have read the same data: each takes its samples by their
 * places, so that with other files it would train on others than worker 0 believes. */
#ifndef PS_SAME_DATA_H
#define PS_SAME_DATA_H

#include "data_sets.h"
#include "member.h"

/* All ranks, once they have joined. preprocessing: that of a table, as JSON; NULL: none.
 * CONFIG where this rank has other samples than worker 0: another number, other answers
 * (ps_dataset_mark), or another preprocessing. Errors of ps_member_put and _get. */
ps_err ps_same_data(ps_member *member, int rank, const ps_config *config,
                    const ps_data_sets *data, const char *preprocessing);

#endif
