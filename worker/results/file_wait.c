#include "file_wait.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "job_keys.h"

enum { FOLDER_TIMEOUT_MS = 1000 }; // it has been there since the start

ps_deadline ps_file_meeting_deadline(const ps_config *config, int rank)
{
    return rank == 0 ? ps_config_step_deadline(config) : ps_config_file_deadline(config);
}

static ps_err put_path(ps_member *m, const char *key, const char *path,
                       ps_deadline deadline)
{
    return m ? ps_member_put(m, key, path, strlen(path), deadline) : PS_OK;
}

static ps_err get_path(ps_member *m, const char *key, char path[PATH_MAX],
                       ps_deadline deadline)
{
    void *value = NULL;
    size_t bytes = 0;
    path[0] = '\0';
    PS_TRY(ps_member_get(m, key, &value, &bytes, deadline));
    snprintf(path, PATH_MAX, "%.*s", (int)bytes, value ? (const char *)value : "");
    free(value);
    return PS_OK;
}

static ps_err timed_out(ps_member *m, const char *done, const char *path,
                        const char *reason)
{
    return ps_err_set(PS_ERR_TIMEOUT,
                      "waiting until worker 0 (host %s) has %s %s "
                      "(train.file_timeout_ms): %s",
                      ps_member_roster(m)->workers[0].host, done, path, reason);
}

ps_err ps_file_announce_folder(ps_member *m, const ps_run_dir *dir, ps_deadline deadline)
{
    return put_path(m, PS_JOB_KEY_FOLDER, dir->path, deadline);
}

/* Names the awaited file in the present error. */
static ps_err name_written(ps_member *m, const char *name)
{
    char folder[PATH_MAX], path[PATH_MAX + NAME_MAX];
    const ps_err_saved failure = ps_err_save(PS_ERR_TIMEOUT);
    ps_err known =
        get_path(m, PS_JOB_KEY_FOLDER, folder, ps_deadline_in_ms(FOLDER_TIMEOUT_MS));
    snprintf(path, sizeof path, "%s%s%s", folder, known == PS_OK ? "/" : "", name);
    return timed_out(m, "written", path, failure.message);
}

ps_err ps_file_wait_written(ps_member *m, const ps_config *config, const char *name)
{
    if (!m) return PS_OK;
    const int rank = ps_member_rank(m);
    ps_err err = ps_member_barrier(m, "written", ps_file_meeting_deadline(config, rank));
    return err == PS_ERR_TIMEOUT && rank != 0 ? name_written(m, name) : err;
}

ps_err ps_file_announce_init(ps_member *m, const char *path, ps_deadline deadline)
{
    return put_path(m, PS_JOB_KEY_INIT, path, deadline);
}

ps_err ps_file_init_is_read(ps_member *m, ps_deadline deadline)
{
    return put_path(m, PS_JOB_KEY_INIT_READ, "", deadline);
}

ps_err ps_file_wait_init(ps_member *m, const ps_config *config)
{
    char path[PATH_MAX], none[PATH_MAX];
    ps_deadline soon = ps_config_step_deadline(config);
    PS_TRY(get_path(m, PS_JOB_KEY_INIT, path, soon));
    if (path[0] == '\0') return PS_OK;
    ps_err err = get_path(m, PS_JOB_KEY_INIT_READ, none, ps_config_file_deadline(config));
    if (err != PS_ERR_TIMEOUT) return err;
    return timed_out(m, "read", path, ps_err_message());
}
