#include "trace_of_job.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>

#include "log.h"
#include "trace.h"

static ps_err job_trace_make_folder(const char *path)
{
    if (mkdir(path, 0777) == 0 || errno == EEXIST) return PS_OK;
    return ps_err_errno(PS_ERR_IO, "cannot make the folder %s", path);
}

static ps_err job_trace_start(const ps_config *config, const char *folder,
                              int incarnation, ps_role role, int rank)
{
    char parent[PATH_MAX], path[PATH_MAX + 64], again[16] = "";
    const char *who = role == PS_ROLE_SERVER ? "server" : "worker";
    if (incarnation > 0) snprintf(again, sizeof again, ".%d", incarnation);
    int n = snprintf(parent, sizeof parent, "%s/trace", folder);
    if (n < 0 || (size_t)n >= sizeof parent)
        return ps_err_set(PS_ERR_ARG, "%s is too long a path", folder);
    PS_TRY(job_trace_make_folder(folder));
    PS_TRY(job_trace_make_folder(parent));
    snprintf(path, sizeof path, "%s/%s-%d%s.trace", parent, who, rank, again);
    const ps_trace_options options = {.path = path,
                                      .role = who,
                                      .rank = rank,
                                      .own_pace = ps_config_own_pace(config),
                                      .first = (uint64_t)config->trace.first,
                                      .steps = (uint64_t)config->trace.steps,
                                      .limit = (uint64_t)config->trace.limit};
    return ps_trace_start(&options);
}

ps_err ps_trace_of_job(const ps_config *config, const char *folder, int incarnation,
                       ps_role role, int rank, const ps_member *member)
{
    if (!config->train.trace || !folder || folder[0] == '\0') return PS_OK;
    PS_TRY(job_trace_start(config, folder, incarnation, role, rank));
    ps_trace_job(member ? ps_member_roster(member)->nonce : 0);
    return PS_OK;
}

void ps_trace_of_job_ended(void)
{
    if (ps_trace_stop() != PS_OK) PS_WARN("trace", "error=\"%s\"", ps_err_message());
}
