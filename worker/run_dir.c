#include "run_dir.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

/* mkdir -p of everything before the last slash, and of all of it when whole. */
static ps_err make_folders(const char *path, int whole)
{
    char part[PATH_MAX];
    size_t length = strlen(path);
    for (size_t i = 1; i <= length; i++) {
        if (path[i] != '/' && !(whole && i == length)) continue;
        memcpy(part, path, i);
        part[i] = '\0';
        if (mkdir(part, 0777) != 0 && errno != EEXIST)
            return ps_err_errno(PS_ERR_IO, "cannot make the folder %s", part);
    }
    struct stat st;
    if (whole && (stat(path, &st) != 0 || !S_ISDIR(st.st_mode)))
        return ps_err_set(PS_ERR_IO, "%s is no folder", path);
    return PS_OK;
}

ps_err ps_run_dir_init(ps_run_dir *dir, const char *given, const char *job)
{
    int n;
    if (given && given[0] != '\0') {
        n = snprintf(dir->path, sizeof dir->path, "%s", given);
    } else {
        char when[32];
        time_t now = time(NULL);
        struct tm local;
        localtime_r(&now, &local);
        strftime(when, sizeof when, "%Y%m%d-%H%M%S", &local);
        n = snprintf(dir->path, sizeof dir->path, "runs/%s-%s", job, when);
    }
    if (n < 0 || (size_t)n >= sizeof dir->path)
        return ps_err_set(PS_ERR_ARG, "the output folder's name is too long");
    return make_folders(dir->path, 1);
}

ps_err ps_run_dir_path(const ps_run_dir *dir, const char *name, char *out)
{
    int n = snprintf(out, PATH_MAX, "%s/%s", dir->path, name);
    if (n < 0 || n >= PATH_MAX)
        return ps_err_set(PS_ERR_ARG, "%s/%s is too long a path", dir->path, name);
    return strchr(name, '/') ? make_folders(out, 0) : PS_OK;
}
