/* Whether a process whose job has failed joins it again. All members do so after a
 * failure that may be gone the next time. They give up their connections and the state of
 * training, and go on together from the newest checkpoint; a launcher starts a process
 * that has died again. */
#ifndef PS_REJOIN_H
#define PS_REJOIN_H

#include "member.h"

/* err: how the process's part in the job ended. member: NULL when it had not joined.
 * *done: how often the process has joined again after a failure; grows. Waits a moment
 * for news of the cause, since the others may know it better. Logs the decision to join
 * again. */
bool ps_rejoin_allowed(const ps_config *config, const ps_member *member, ps_err err,
                       int64_t *done);

#endif
