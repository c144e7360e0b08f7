#include "policy_log.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mem.h"

enum { NAME_BYTES = 48, HEAD_BYTES = 512, FILE_BYTES_MAX = 60 << 20 };

static const char STEPS[] = "steps"; // begins a line of them

static void write_head(const ps_sync_rules *r, char head[HEAD_BYTES])
{
    snprintf(head, HEAD_BYTES,
             "{\"policy\":\"%s\",\"workers\":%u,\"first\":%" PRIu64 ",\"total\":%" PRIu64
             ",\"stretch\":%" PRIu64 "}\n",
             ps_word_name(ps_policy_words, (int)r->kind), r->n_workers, r->first,
             r->total, r->stretch);
}

static ps_err write_text(const ps_run_dir *dir, uint64_t first, const char *mode,
                         const char *text)
{
    char path[PATH_MAX], name[NAME_BYTES] = "policy.log";
    if (first > 0) snprintf(name, sizeof name, "policy-%" PRIu64 ".log", first);
    PS_TRY(ps_run_dir_path(dir, name, path));
    FILE *file = fopen(path, mode);
    if (!file) return ps_err_errno(PS_ERR_IO, "cannot write %s", path);
    const bool bad = fputs(text, file) == EOF;
    if ((fclose(file) != 0) | bad)
        return ps_err_errno(PS_ERR_IO, "cannot write %s", path);
    return PS_OK;
}

ps_err ps_policy_log_begin(const ps_run_dir *dir, uint64_t first,
                           const ps_sync_rules *rules)
{
    char head[HEAD_BYTES];
    write_head(rules, head);
    return write_text(dir, first, "we", head);
}

ps_err ps_policy_log_add(const ps_run_dir *dir, uint64_t first, const char *lines)
{
    return write_text(dir, first, "ae", lines);
}

ps_err ps_policy_log_add_steps(const ps_run_dir *dir, uint64_t first,
                               const int64_t *steps, int n)
{
    char line[sizeof STEPS + 1 + 20 * PS_MAX_RANKS] = "";
    size_t used = (size_t)snprintf(line, sizeof line, "%s", STEPS);
    for (int r = 0; r < n; r++)
        used += (size_t)snprintf(line + used, sizeof line - used, " %" PRId64, steps[r]);
    snprintf(line + used, sizeof line - used, "\n");
    return ps_policy_log_add(dir, first, line);
}

static ps_err read_file(const char *path, char **text)
{
    FILE *file = fopen(path, "re");
    if (!file) return ps_err_errno(PS_ERR_IO, "cannot read %s", path);
    long bytes = -1;
    if (fseek(file, 0, SEEK_END) == 0) bytes = ftell(file);
    ps_err err = PS_OK;
    if (bytes < 0 || bytes > FILE_BYTES_MAX || fseek(file, 0, SEEK_SET) != 0)
        err = ps_err_set(PS_ERR_FORMAT, "%s is not a policy.log", path);
    if (err == PS_OK) err = ps_mem_zalloc(text, (size_t)bytes + 1, 1, "the record");
    if (err == PS_OK && fread(*text, 1, (size_t)bytes, file) != (size_t)bytes)
        err = ps_err_errno(PS_ERR_IO, "cannot read %s", path);
    fclose(file);
    return err;
}

/* Leaves the lines after the first one. The last line may be torn: then it is dropped. */
static ps_err cut_head(const char *path, const ps_sync_rules *rules, char *text)
{
    char head[HEAD_BYTES];
    write_head(rules, head);
    const size_t n = strcspn(text, "\n");
    if (strncmp(text, head, n + 1) != 0) {
        head[strlen(head) - 1] = '\0';
        return ps_err_set(PS_ERR_FORMAT,
                          "%s is of another job: its first line is %.*s, this job's "
                          "would be %s (with another \"first\", go on from the "
                          "checkpoint of that step: --resume RUN sync.replay=LOG)",
                          path, (int)(n < 200 ? n : 200), text, head);
    }
    char *lines = text + n + 1;
    char *end = strrchr(lines, '\n');
    if (end)
        end[1] = '\0';
    else
        *lines = '\0';
    memmove(text, lines, strlen(lines) + 1);
    return PS_OK;
}

/* Moves the lines of steps out of the others. steps has as much room. */
static void part_steps(char *text, char *steps)
{
    char *kept = text;
    for (char *line = text; *line;) {
        char *const end = strchr(line, '\n') + 1;
        const size_t n = (size_t)(end - line);
        if (strncmp(line, STEPS, sizeof STEPS - 1) == 0) {
            memcpy(steps, line, n);
            steps += n;
        } else {
            memmove(kept, line, n);
            kept += n;
        }
        line = end;
    }
    *kept = *steps = '\0';
}

ps_err ps_policy_log_read(const char *path, const ps_sync_rules *rules, char **lines,
                          char **steps)
{
    *lines = *steps = NULL;
    ps_err err = read_file(path, lines);
    if (err == PS_OK) err = cut_head(path, rules, *lines);
    if (err == PS_OK) err = ps_mem_zalloc(steps, strlen(*lines) + 1, 1, "the record");
    if (err == PS_OK) {
        part_steps(*lines, *steps);
        return PS_OK;
    }
    free(*lines);
    *lines = NULL;
    return err;
}

ps_err ps_policy_log_next_steps(const char *lines, size_t *at, int64_t least,
                                int64_t most, int64_t *steps, int n)
{
    const char *line = lines + *at;
    const size_t bytes = strcspn(line, "\n");
    if (bytes == 0) return PS_OK;
    *at += bytes + 1;
    const char *number = line + sizeof STEPS - 1;
    for (int r = 0; r < n && number; r++) {
        char *end;
        steps[r] = strtoll(number, &end, 10);
        number = end == number || steps[r] < least || steps[r] > most ? NULL : end;
    }
    if (number && *number == '\n') return PS_OK;
    return ps_err_set(PS_ERR_FORMAT,
                      "sync.replay: \"%.*s\" does not have %" PRId64 " to %" PRId64
                      " steps (sync.local_steps) for each of %d workers",
                      (int)(bytes < 80 ? bytes : 80), line, least, most, n);
}
