#include "membership_log.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "log.h"
#include "regular_file.h"
#include "run_dir.h"
#include "tell.h"

enum { LINE_BYTES = 256 };

/* Copies the lines of steps before `step` to out, unless it is NULL. *generation: of the
 * last line. A file that is not there has no lines. */
static ps_err read_lines(const char *path, uint64_t step, FILE *out, uint64_t *generation)
{
    char line[LINE_BYTES];
    FILE *file;
    *generation = 0;
    ps_err err = ps_regular_file_stream(path, "r", &file);
    if (err != PS_OK) return errno == ENOENT ? PS_OK : err;
    while (err == PS_OK && fgets(line, sizeof line, file)) {
        json_t *json = json_loads(line, 0, NULL), *at = json_object_get(json, "step");
        if (!json_is_integer(at))
            err =
                ps_err_set(PS_ERR_FORMAT, "%s: a line without a step: %.80s", path, line);
        else if (out && (uint64_t)json_integer_value(at) < step)
            fputs(line, out);
        *generation = (uint64_t)json_integer_value(json_object_get(json, "generation"));
        json_decref(json);
    }
    fclose(file);
    return err;
}

static ps_err write_lines(const ps_out_file *out, const ps_membership *m)
{
    uint64_t generation;
    PS_TRY(read_lines(out->path, m->step, out->file, &generation));
    char job[24];
    snprintf(job, sizeof job, "%016" PRIx64, m->nonce);
    json_t *line =
        json_pack("{s:I, s:I, s:I, s:i, s:I, s:s}", "step", (json_int_t)m->step, "epoch",
                  (json_int_t)m->epoch, "position", (json_int_t)m->position, "workers",
                  m->workers, "generation", (json_int_t)m->generation, "job", job);
    const bool bad = !line || json_dumpf(line, out->file, JSON_COMPACT) != 0 ||
                     fputc('\n', out->file) == EOF;
    json_decref(line);
    return bad ? ps_err_errno(PS_ERR_IO, "cannot write %s", out->path) : PS_OK;
}

ps_err ps_membership_log_add(const char *path, const ps_membership *m)
{
    ps_out_file out;
    PS_TRY(ps_out_file_begin(&out, path));
    ps_err err = write_lines(&out, m);
    if (err == PS_OK) return ps_out_file_keep(&out);
    ps_out_file_drop(&out);
    return err;
}

int ps_membership_rank(const ps_config *config, int rank, int started_with)
{
    if (!ps_config_elastic(config) || rank <= 0) return rank;
    return started_with >= 0 ? started_with : PS_MAX_RANKS - 1 - rank;
}

static ps_err membership_path(const char *folder, char path[PATH_MAX])
{
    return snprintf(path, PATH_MAX, "%s/membership.jsonl", folder) < PATH_MAX
               ? PS_OK
               : ps_err_set(PS_ERR_IO, "%s is too long a path", folder);
}

ps_err ps_membership_note(const ps_config *config, const char *folder,
                          const ps_membership *m)
{
    char path[PATH_MAX];
    if (!ps_config_elastic(config)) return PS_OK;
    PS_TRY(membership_path(folder, path));
    return ps_membership_log_add(path, m);
}

ps_err ps_membership_generation(const ps_config *config, const char *folder,
                                uint64_t *out)
{
    char path[PATH_MAX];
    *out = 0;
    if (!ps_config_elastic(config)) return PS_OK;
    PS_TRY(membership_path(folder, path));
    return read_lines(path, 0, NULL, out);
}

void ps_membership_announce(const ps_config *config, int workers, uint64_t step)
{
    if (!ps_config_elastic(config)) return;
    ps_tell("workers", "{s:i}", "n", workers);
    PS_INFO("workers", "n=%d step=%" PRIu64, workers, step);
}
