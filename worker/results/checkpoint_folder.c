#include "checkpoint_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fault_point.h"
#include "mem.h"
#include "new_file.h"
#include "parse_text.h"
#include "regular_file.h"

static const char TEMPORARY[] = ".tmp", BEST[] = "best";

static void checkpoint_folder_name(const ps_checkpoint_folder *f, uint64_t step,
                                   const char *ending, char out[PATH_MAX])
{
    int n = snprintf(out, PATH_MAX, "%s/step-%" PRIu64 "%s", f->path, step, ending);
    if (n >= PATH_MAX) out[0] = '\0'; // opening it fails
}

void ps_checkpoint_folder_step(const ps_checkpoint_folder *f, uint64_t step,
                               char out[PATH_MAX])
{
    checkpoint_folder_name(f, step, "", out);
}

/* "step-N" + ending; nothing else. */
static bool checkpoint_folder_read_name(const char *name, const char *ending,
                                        uint64_t *step)
{
    char digits[24];
    const size_t n = strncmp(name, "step-", 5) == 0 ? strspn(name + 5, "0123456789") : 0;
    int64_t number;
    if (n == 0 || n >= sizeof digits || strcmp(name + 5 + n, ending) != 0) return false;
    memcpy(digits, name + 5, n);
    digits[n] = '\0';
    if (!ps_parse_int(digits, &number)) return false;
    *step = (uint64_t)number;
    return true;
}

static int newest_first(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

static ps_err checkpoint_folder_list(const ps_checkpoint_folder *f, const char *ending,
                                     uint64_t **steps, size_t *n)
{
    DIR *dir = opendir(f->path);
    *steps = NULL;
    *n = 0;
    if (!dir && errno == ENOENT) return PS_OK;
    if (!dir)
        return ps_err_errno(
            PS_ERR_IO, "cannot list the checkpoints in %s (checkpoint.path)", f->path);
    ps_err err = PS_OK;
    uint32_t room = 0;
    for (struct dirent *e; err == PS_OK && (e = readdir(dir));) {
        uint64_t step;
        if (!checkpoint_folder_read_name(e->d_name, ending, &step)) continue;
        err = ps_mem_room(steps, (uint32_t)*n, &room, sizeof **steps, f->path);
        if (err == PS_OK) (*steps)[(*n)++] = step;
    }
    closedir(dir);
    if (*n > 0) qsort(*steps, *n, sizeof **steps, newest_first);
    return err;
}

ps_err ps_checkpoint_folder_list(const ps_checkpoint_folder *f, uint64_t **steps,
                                 size_t *n)
{
    return checkpoint_folder_list(f, "", steps, n);
}

bool ps_checkpoint_folder_holds(const ps_checkpoint_folder *f, const char *file)
{
    char path[PATH_MAX]; // FOLDER/step-N/NAME, also where the way to it is a link: best
    uint64_t step;
    if (!realpath(file, path)) return false;
    *strrchr(path, '/') = '\0';
    char *slash = strrchr(path, '/');
    if (!slash || !checkpoint_folder_read_name(slash + 1, "", &step)) return false;
    *slash = '\0';
    return ps_regular_file_is_same(path, f->path);
}

/* A folder of files alone, as ours are. */
static void checkpoint_folder_remove_files(const char *path)
{
    DIR *dir = opendir(path);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        char name[2 * PATH_MAX];
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        snprintf(name, sizeof name, "%s/%s", path, e->d_name);
        unlink(name);
    }
    if (dir) closedir(dir);
    rmdir(path);
}

static void remove_temporary(const ps_checkpoint_folder *f)
{
    uint64_t *steps;
    size_t n;
    char path[PATH_MAX];
    if (checkpoint_folder_list(f, TEMPORARY, &steps, &n) != PS_OK) n = 0;
    for (size_t i = 0; i < n; i++) {
        checkpoint_folder_name(f, steps[i], TEMPORARY, path);
        checkpoint_folder_remove_files(path);
    }
    free(steps);
}

ps_err ps_checkpoint_folder_begin(const ps_checkpoint_folder *f, uint64_t step,
                                  char out[PATH_MAX])
{
    PS_TRY(ps_new_file_folders(f->path, NULL));
    remove_temporary(f);
    checkpoint_folder_name(f, step, TEMPORARY, out);
    if (mkdir(out, 0777) == 0) return PS_OK;
    return ps_err_errno(PS_ERR_IO, "cannot make the folder %s", out);
}

static ps_err checkpoint_folder_sync_folder(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return ps_err_errno(PS_ERR_IO, "%s", path);
    ps_err err = fsync(fd) == 0 || errno == EINVAL
                     ? PS_OK
                     : ps_err_errno(PS_ERR_IO, "%s: syncing", path);
    close(fd);
    return err;
}

/* An earlier one of the step stays until this one has its name. */
static int checkpoint_folder_take_place(const char *from, const char *to)
{
    if (rename(from, to) == 0) return 0;
    if (errno != ENOTEMPTY && errno != EEXIST) return -1;
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_EXCHANGE) != 0) {
        checkpoint_folder_remove_files(to); // a file system that cannot exchange names
        return rename(from, to);
    }
    checkpoint_folder_remove_files(from);
    return 0;
}

ps_err ps_checkpoint_folder_commit(const ps_checkpoint_folder *f, uint64_t step)
{
    char from[PATH_MAX], to[PATH_MAX];
    checkpoint_folder_name(f, step, TEMPORARY, from);
    ps_checkpoint_folder_step(f, step, to);
    PS_TRY(checkpoint_folder_sync_folder(from));
    if (checkpoint_folder_take_place(from, to) != 0)
        return ps_err_errno(PS_ERR_IO, "%s", to);
    PS_FAULT_POINT("checkpoint.renamed");
    return checkpoint_folder_sync_folder(f->path);
}

void ps_checkpoint_folder_abandon(const ps_checkpoint_folder *f, uint64_t step)
{
    char path[PATH_MAX];
    checkpoint_folder_name(f, step, TEMPORARY, path);
    checkpoint_folder_remove_files(path);
}

void ps_checkpoint_folder_set_aside(const ps_checkpoint_folder *f, uint64_t step)
{
    char from[PATH_MAX], to[PATH_MAX + 16];
    ps_checkpoint_folder_step(f, step, from);
    snprintf(to, sizeof to, "%s.damaged", from);
    checkpoint_folder_remove_files(to); // of the same step
    rename(from, to);
}

ps_err ps_checkpoint_folder_set_best(const ps_checkpoint_folder *f, uint64_t step)
{
    char link[PATH_MAX + 16], temporary_link[PATH_MAX + 32], target[40];
    snprintf(link, sizeof link, "%s/%s", f->path, BEST);
    snprintf(temporary_link, sizeof temporary_link, "%s%s", link, TEMPORARY);
    snprintf(target, sizeof target, "step-%" PRIu64, step);
    unlink(temporary_link);
    if (symlink(target, temporary_link) != 0 || rename(temporary_link, link) != 0)
        return ps_err_errno(PS_ERR_IO, "%s", link);
    return PS_OK;
}

/* Whether best is that step. */
static bool checkpoint_folder_is_best(const ps_checkpoint_folder *f, uint64_t step)
{
    char link[PATH_MAX + 16], target[64];
    uint64_t best;
    snprintf(link, sizeof link, "%s/%s", f->path, BEST);
    ssize_t n = readlink(link, target, sizeof target - 1);
    if (n < 0) return false;
    target[n] = '\0';
    return checkpoint_folder_read_name(target, "", &best) && best == step;
}

void ps_checkpoint_folder_prune(const ps_checkpoint_folder *f, size_t keep)
{
    uint64_t *steps;
    size_t n;
    char path[PATH_MAX];
    if (ps_checkpoint_folder_list(f, &steps, &n) != PS_OK) n = 0;
    for (size_t i = keep; i < n; i++) {
        if (checkpoint_folder_is_best(f, steps[i])) continue;
        ps_checkpoint_folder_step(f, steps[i], path);
        checkpoint_folder_remove_files(path);
    }
    free(steps);
}

void ps_checkpoint_folder_remove(const ps_checkpoint_folder *f)
{
    char best[PATH_MAX + 16];
    remove_temporary(f);
    snprintf(best, sizeof best, "%s/%s", f->path, BEST);
    unlink(best);
    ps_checkpoint_folder_prune(f, 0);
    rmdir(f->path);
}
