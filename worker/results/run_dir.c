#include "run_dir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "checkpoint_folder.h"
#include "new_file.h"
#include "regular_file.h"

/* Rank 0's files. METRICS exists as long as the run does. The other workers' traces are
 * not among them. */
static const char METRICS[] = "metrics.jsonl", CHECKPOINTS[] = "checkpoints",
                  MEMBERSHIP[] = "membership.jsonl";
static const char *const results[] = {"summary.json",
                                      "model.safetensors",
                                      "best.safetensors",
                                      "ema.safetensors",
                                      "model.rows.safetensors",
                                      "best.rows.safetensors",
                                      "trace.json",
                                      MEMBERSHIP,
                                      "evaluation.json",
                                      "evaluation.svg",
                                      "config.json",
                                      "classes.txt",
                                      "curves.svg"};

ps_err ps_run_dir_init(ps_run_dir *dir, const char *given, const char *job)
{
    int n;
    *dir = (ps_run_dir){.claim_fd = -1};
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
    PS_TRY(ps_new_file_folders(dir->path, &dir->made));
    struct stat st;
    if (stat(dir->path, &st) == 0 && S_ISDIR(st.st_mode)) return PS_OK;
    return ps_err_set(PS_ERR_IO, "%s is not a folder", dir->path);
}

static bool run_dir_exists(const ps_run_dir *dir, const char *name)
{
    char path[PATH_MAX + NAME_MAX];
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", dir->path, name);
    return lstat(path, &st) == 0;
}

static ps_err holds_a_run(const ps_run_dir *dir, const char *name)
{
    return ps_err_set(PS_ERR_IO,
                      "%s holds a run already (%s): give another folder with --out, or "
                      "replace it with --overwrite",
                      dir->path, name);
}

static ps_err refuse_results(const ps_run_dir *dir)
{
    for (size_t i = 0; i < sizeof results / sizeof *results; i++)
        if (run_dir_exists(dir, results[i])) return holds_a_run(dir, results[i]);
    return run_dir_exists(dir, CHECKPOINTS) ? holds_a_run(dir, CHECKPOINTS) : PS_OK;
}

/* Ours in checkpoints/: step-N.safetensors, the rows of embedding tables beside it, and
 * the ".tmp" of one that was not finished. */
static bool is_checkpoint(const char *name)
{
    static const char rows[] = ".rows";
    size_t digits = strncmp(name, "step-", 5) == 0 ? strspn(name + 5, "0123456789") : 0;
    const char *end = name + 5 + digits;
    if (digits > 0 && strncmp(end, rows, strlen(rows)) == 0) end += strlen(rows);
    return digits > 0 &&
           (strcmp(end, ".safetensors") == 0 || strcmp(end, ".safetensors.tmp") == 0);
}

static ps_err remove_file(const char *path)
{
    if (unlink(path) == 0 || errno == ENOENT) return PS_OK;
    return ps_err_errno(PS_ERR_IO, "cannot remove %s", path);
}

/* TensorBoard's (event_file.h): each start of the job has made one. */
static bool is_event_file(const char *name)
{
    return strncmp(name, "events.out.tfevents.", 20) == 0;
}

/* policy_log.h's: each start of the job has made one. */
static bool is_policy_log(const char *name)
{
    if (strncmp(name, "policy", 6) != 0) return false;
    const size_t digits = name[6] == '-' ? strspn(name + 7, "0123456789") : 0;
    return strcmp(name + (digits > 0 ? 7 + digits : 6), ".log") == 0;
}

/* The files of a folder whose names are ours. */
static ps_err run_dir_remove_files(const char *folder, bool (*is_ours)(const char *name))
{
    char path[PATH_MAX + 32 + NAME_MAX];
    DIR *d = opendir(folder);
    if (!d) return PS_OK; // there are none
    ps_err err = PS_OK;
    for (struct dirent *e; err == PS_OK && (e = readdir(d));) {
        if (!is_ours(e->d_name)) continue;
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        err = remove_file(path);
    }
    closedir(d);
    return err;
}

static ps_err remove_checkpoints(const ps_run_dir *dir)
{
    char folder[PATH_MAX];
    PS_TRY(ps_run_dir_path(dir, CHECKPOINTS, folder));
    ps_err err = run_dir_remove_files(folder, is_checkpoint);
    ps_checkpoint_folder whole;
    snprintf(whole.path, sizeof whole.path, "%s", folder);
    ps_checkpoint_folder_remove(&whole); // and the folder, where it is empty now
    return err;
}

static ps_err remove_results(const ps_run_dir *dir, bool old)
{
    char path[PATH_MAX + 32];
    for (size_t i = 0; i < sizeof results / sizeof *results; i++) {
        if (old && results[i] == MEMBERSHIP) continue;
        snprintf(path, sizeof path, "%s/%s", dir->path, results[i]);
        PS_TRY(remove_file(path));
    }
    PS_TRY(run_dir_remove_files(dir->path, is_event_file));
    PS_TRY(run_dir_remove_files(dir->path, is_policy_log));
    return remove_checkpoints(dir);
}

static bool is_result(const char *name)
{
    for (size_t i = 0; i < sizeof results / sizeof *results; i++)
        if (strcmp(name, results[i]) == 0) return true;
    return strcmp(name, METRICS) == 0 || is_event_file(name) || is_policy_log(name);
}

bool ps_run_dir_replaces(const ps_run_dir *dir, const char *file)
{
    char folder[PATH_MAX];
    ps_checkpoint_folder whole;
    const int n =
        snprintf(whole.path, sizeof whole.path, "%s/%s", dir->path, CHECKPOINTS);
    if (n < 0 || n >= (int)sizeof whole.path || !realpath(file, folder)) return false;
    char *slash = strrchr(folder, '/');
    *slash = '\0';
    return ps_checkpoint_folder_holds(&whole, file) ||
           (ps_regular_file_is_same(folder, dir->path) && is_result(slash + 1)) ||
           (ps_regular_file_is_same(folder, whole.path) && is_checkpoint(slash + 1));
}

/* flags: O_EXCL when the file must not exist yet. */
static ps_err lock_metrics(ps_run_dir *dir, int flags)
{
    char path[PATH_MAX];
    PS_TRY(ps_run_dir_path(dir, METRICS, path));
    int fd;
    const ps_err err = ps_regular_file_open(path, O_WRONLY | O_CREAT | flags, &fd);
    if (err != PS_OK) return errno == EEXIST ? holds_a_run(dir, METRICS) : err;
    dir->claim_fd = fd;
    // On a file system without locks, the file itself is the claim.
    if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return ps_err_set(
            PS_ERR_IO,
            "%s: another job is writing into it; give another folder with --out",
            dir->path);
    return PS_OK;
}

ps_err ps_run_dir_claim(ps_run_dir *dir, bool overwrite, bool old)
{
    if (!overwrite) PS_TRY(refuse_results(dir));
    PS_TRY(lock_metrics(dir, overwrite ? 0 : O_EXCL));
    if (!overwrite) return PS_OK;
    if (ftruncate(dir->claim_fd, 0) != 0)
        return ps_err_errno(PS_ERR_IO, "cannot write %s/%s", dir->path, METRICS);
    return remove_results(dir, old);
}

ps_err ps_run_dir_claim_again(ps_run_dir *dir)
{
    return lock_metrics(dir, 0);
}

void ps_run_dir_fini(ps_run_dir *dir)
{
    char path[PATH_MAX];
    struct stat st;
    if (dir->claim_fd >= 0) {
        // If another job has the lock, the file is that job's.
        bool ours = flock(dir->claim_fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
        if (ours && fstat(dir->claim_fd, &st) == 0 && st.st_size == 0 &&
            ps_run_dir_path(dir, METRICS, path) == PS_OK)
            unlink(path);
        close(dir->claim_fd);
        dir->claim_fd = -1;
    }
    if (dir->made) rmdir(dir->path); // fails where something is in it
    dir->made = false;
}

ps_err ps_run_dir_path(const ps_run_dir *dir, const char *name, char *out)
{
    int n = snprintf(out, PATH_MAX, "%s/%s", dir->path, name);
    if (n < 0 || n >= PATH_MAX)
        return ps_err_set(PS_ERR_ARG, "%s/%s is too long a path", dir->path, name);
    if (!strchr(name, '/')) return PS_OK;
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(out, '/') - out), out);
    return ps_new_file_folders(folder, NULL);
}

ps_err ps_out_file_begin(ps_out_file *o, const char *path)
{
    *o = (ps_out_file){0};
    if ((size_t)snprintf(o->path, sizeof o->path, "%s", path) >= sizeof o->path ||
        (size_t)snprintf(o->temporary, sizeof o->temporary, "%s.tmp", path) >=
            sizeof o->temporary)
        return ps_err_set(PS_ERR_IO, "%s: the name is too long", path);
    int fd;
    PS_TRY(ps_new_file_open(o->temporary, &fd));
    o->file = fdopen(fd, "wb");
    if (o->file) return PS_OK;
    close(fd);
    return ps_err_errno(PS_ERR_IO, "%s", o->temporary);
}

ps_err ps_out_file_open(ps_out_file *o, const ps_run_dir *dir, const char *name,
                        bool overwrite)
{
    char path[PATH_MAX];
    PS_TRY(ps_run_dir_path(dir, name, path));
    if (!overwrite && access(path, F_OK) == 0)
        return ps_err_set(PS_ERR_IO,
                          "%s is there already: give --overwrite, or another "
                          "--out",
                          path);
    return ps_out_file_begin(o, path);
}

ps_err ps_out_file_keep(ps_out_file *o)
{
    FILE *file = o->file;
    o->file = NULL;
    bool failed = ferror(file) != 0 || fflush(file) != 0 || fsync(fileno(file)) != 0;
    failed |= fclose(file) != 0;
    if (!failed && rename(o->temporary, o->path) == 0) {
        ps_regular_file_keep_name(o->path);
        return PS_OK;
    }
    ps_err err = ps_err_errno(PS_ERR_IO, "writing %s", o->path);
    unlink(o->temporary);
    return err;
}

void ps_out_file_drop(ps_out_file *o)
{
    if (!o->file) return;
    fclose(o->file);
    o->file = NULL;
    unlink(o->temporary);
}
