#include "rejoin.h"

#include "fault_point.h"
#include "log.h"
#include "tell.h"

enum { NEWS_MS = 500 };

bool ps_rejoin_allowed(const ps_config *config, const ps_member *member, ps_err err,
                       int64_t *done)
{
    const int64_t limit = config->recovery.rejoins;
    const bool may = *done < limit;
    if (!member || !(may || ps_config_elastic(config))) return false;
    if (err != PS_ERR_REGROUP && !ps_err_is_passing(err)) return false;
    const ps_err_saved failure = ps_err_save(err);
    const ps_err cause = ps_member_cause(member, ps_deadline_in_ms(NEWS_MS));
    ps_err_restore(&failure);
    if (cause == PS_ERR_REGROUP) {
        PS_INFO("regroup", "workers=%d", ps_member_next_workers(member));
        return true;
    }
    if (!may || (cause != PS_OK && !ps_err_is_passing(cause))) return false;
    PS_FAULT_POINT("rejoin.asked");
    ++*done;
    ps_tell("rejoin", "{}");
    PS_WARN("rejoin", "n=%lld/%lld reason=\"%s\"", (long long)*done, (long long)limit,
            failure.message);
    return true;
}
