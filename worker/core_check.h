/* Whether the workers of a host have a core for each of their threads. */
#ifndef PS_CORE_CHECK_H
#define PS_CORE_CHECK_H

#include "member.h"

/* Warns where they do not; of a host's workers the first one does. member NULL: a worker
 * alone. threads: of arithmetic, of each worker. */
void ps_core_check(const ps_member *member, int rank, int threads);

#endif
