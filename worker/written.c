#include "written.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FOLDER_KEY "written/folder"
enum { FOLDER_TIMEOUT_MS = 1000 }; // it has been there since the start

ps_err ps_written_announce(ps_member *m, const ps_run_dir *dir, ps_deadline deadline)
{
    if (!m) return PS_OK;
    return ps_member_put(m, FOLDER_KEY, dir->path, strlen(dir->path), deadline);
}

/* Says of the present error which file was waited for. */
static ps_err name_file(ps_member *m, const char *name)
{
    char reason[PS_CONTROL_TEXT_MAX];
    snprintf(reason, sizeof reason, "%s", ps_err_message());
    void *folder = NULL;
    size_t bytes = 0;
    ps_err known = ps_member_get(m, FOLDER_KEY, &folder, &bytes,
                                 ps_deadline_in_ms(FOLDER_TIMEOUT_MS));
    if (known != PS_OK) bytes = 0;
    ps_err err = ps_err_set(PS_ERR_TIMEOUT,
                            "waiting until worker 0 (host %s) has written %.*s%s%s "
                            "(train.save_timeout_ms): %s",
                            ps_member_roster(m)->workers[0].host, (int)bytes,
                            folder ? (const char *)folder : "", bytes > 0 ? "/" : "",
                            name, reason);
    free(folder);
    return err;
}

ps_err ps_written_wait(ps_member *m, const ps_config *config, const char *name)
{
    if (!m) return PS_OK;
    ps_err err = ps_member_barrier(
        m, "written", ps_deadline_in_ms((uint64_t)config->train.save_timeout_ms));
    return err == PS_ERR_TIMEOUT ? name_file(m, name) : err;
}
