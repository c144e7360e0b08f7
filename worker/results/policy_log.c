#include "policy_log.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mem.h"
#include "regular_file.h"

enum { NAME_BYTES = 48, HEAD_BYTES = 512, FILE_BYTES_MAX = 60 << 20 };

// They begin lines:
static const char STEPS[] = "steps";
static const char CUTS[] = "cut";

static void policy_log_write_head(const ps_sync_rules *r, char head[HEAD_BYTES])
{
    snprintf(head, HEAD_BYTES,
             "{\"policy\":\"%s\",\"workers\":%u,\"first\":%" PRIu64 ",\"total\":%" PRIu64
             ",\"stretch\":%" PRIu64 "}\n",
             ps_word_name(ps_policy_words, (int)r->kind), r->n_workers, r->first,
             r->total, r->stretch);
}

/* The text and its end, or nothing. */
static ps_err policy_log_write_text(const ps_run_dir *dir, uint64_t first,
                                    const char *mode, const char *text, size_t bytes,
                                    const char *end)
{
    char path[PATH_MAX], name[NAME_BYTES] = "policy.log", *whole;
    if (first > 0) snprintf(name, sizeof name, "policy-%" PRIu64 ".log", first);
    PS_TRY(ps_run_dir_path(dir, name, path));
    FILE *file;
    PS_TRY(ps_regular_file_stream(path, mode, &file));
    ps_err err = ps_mem_zalloc(&whole, bytes + strlen(end) + 1, 1, "the record");
    if (err == PS_OK) {
        if (bytes > 0) memcpy(whole, text, bytes);
        strcpy(whole + bytes, end);
        err = ps_regular_file_append(file, whole, bytes + strlen(end));
    }
    if (err == PS_OK && fsync(fileno(file)) != 0)
        err = ps_err_errno(PS_ERR_IO, "cannot write");
    free(whole);
    fclose(file); // all is written
    return err == PS_OK ? PS_OK : ps_err_prefix(err, "%s", path);
}

ps_err ps_policy_log_begin(const ps_run_dir *dir, uint64_t first,
                           const ps_sync_rules *rules)
{
    char head[HEAD_BYTES];
    policy_log_write_head(rules, head);
    return policy_log_write_text(dir, first, "w", head, strlen(head), "");
}

ps_err ps_policy_log_add_rest(const ps_run_dir *dir, uint64_t first,
                              const ps_sync_rest *rest, bool last)
{
    return policy_log_write_text(dir, first, "a", rest->lines.at, rest->lines.n,
                                 ps_sync_rest_word(rest->over || last));
}

ps_err ps_policy_log_add_steps(const ps_run_dir *dir, uint64_t first,
                               const int64_t *steps, int n)
{
    char line[sizeof STEPS + 1 + 20 * PS_MAX_RANKS] = "";
    size_t used = (size_t)snprintf(line, sizeof line, "%s", STEPS);
    for (int r = 0; r < n; r++)
        used += (size_t)snprintf(line + used, sizeof line - used, " %" PRId64, steps[r]);
    return policy_log_write_text(dir, first, "a", line, used, "\n");
}

ps_err ps_policy_log_add_cuts(const ps_run_dir *dir, uint64_t first, uint64_t rest,
                              const ps_round_cut *cuts, int n)
{
    char line[sizeof CUTS + 24 + 44 * PS_MAX_RANKS] = "";
    size_t used = (size_t)snprintf(line, sizeof line, "%s %" PRIu64, CUTS, rest);
    for (int r = 0; r < n; r++)
        used += (size_t)snprintf(line + used, sizeof line - used, " %" PRIu64 ":%" PRIu64,
                                 cuts[r].round, cuts[r].steps);
    return policy_log_write_text(dir, first, "a", line, used, "\n");
}

static ps_err policy_log_read_file(const char *path, char **text)
{
    FILE *file;
    PS_TRY(ps_regular_file_stream(path, "r", &file));
    long bytes = -1;
    if (fseek(file, 0, SEEK_END) == 0) bytes = ftell(file);
    ps_err err = PS_OK;
    if (bytes < 0 || fseek(file, 0, SEEK_SET) != 0)
        err = ps_err_set(PS_ERR_FORMAT, "%s is not a policy.log", path);
    else if (bytes > FILE_BYTES_MAX)
        err = ps_err_set(PS_ERR_FORMAT,
                         "%s has %ld bytes: runs can be repeated whose log has at most "
                         "%d",
                         path, bytes, FILE_BYTES_MAX);
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
    policy_log_write_head(rules, head);
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

static bool policy_log_begins_with(const char *line, const char *word, size_t n)
{
    return strncmp(line, word, n) == 0 && (line[n] == ' ' || line[n] == '\n');
}

/* Moves the lines of steps and cuts out of the others. Both have as much room. */
static void part_lines(char *text, char *steps, char *cuts)
{
    char *kept = text;
    for (char *line = text; *line;) {
        char *const end = strchr(line, '\n') + 1;
        const size_t n = (size_t)(end - line);
        char **to = policy_log_begins_with(line, STEPS, sizeof STEPS - 1) ? &steps
                    : policy_log_begins_with(line, CUTS, sizeof CUTS - 1) ? &cuts
                                                                          : &kept;
        memmove(*to, line, n);
        *to += n;
        line = end;
    }
    *kept = *steps = *cuts = '\0';
}

ps_err ps_policy_log_read(const char *path, const ps_sync_rules *rules,
                          ps_policy_lines *out)
{
    *out = (ps_policy_lines){0};
    PS_TRY(policy_log_read_file(path, &out->orders));
    PS_TRY(cut_head(path, rules, out->orders));
    const size_t n = strlen(out->orders) + 1;
    PS_TRY(ps_mem_zalloc(&out->steps, n, 1, "the record"));
    PS_TRY(ps_mem_zalloc(&out->cuts, n, 1, "the record"));
    part_lines(out->orders, out->steps, out->cuts);
    return PS_OK;
}

void ps_policy_lines_fini(ps_policy_lines *lines)
{
    free(lines->orders);
    free(lines->steps);
    free(lines->cuts);
    *lines = (ps_policy_lines){0};
}

/* The next line without its first word, or NULL at the end. *at: becomes the one after
 * it. */
static const char *next_line(const char *lines, size_t *at, size_t word, int *bytes)
{
    const char *line = lines ? lines + *at : "";
    const size_t n = strcspn(line, "\n");
    if (n == 0) return NULL;
    *at += n + 1;
    *bytes = (int)(n < 80 ? n : 80);
    return line + word;
}

ps_err ps_policy_lines_next_steps(ps_policy_lines *lines, int64_t least, int64_t most,
                                  int64_t *steps, int n)
{
    int bytes;
    const char *number =
        next_line(lines->steps, &lines->steps_at, sizeof STEPS - 1, &bytes);
    if (!number) return PS_OK;
    const char *line = number - (sizeof STEPS - 1);
    for (int r = 0; r < n && number; r++) {
        char *end;
        steps[r] = strtoll(number, &end, 10);
        number = end == number || steps[r] < least || steps[r] > most ? NULL : end;
    }
    if (number && *number == '\n') return PS_OK;
    return ps_err_set(PS_ERR_FORMAT,
                      "sync.replay: \"%.*s\" does not have %" PRId64 " to %" PRId64
                      " steps (sync.local_steps) for each of %d workers",
                      bytes, line, least, most, n);
}

/* " ROUND:STEPS", after which *at stands then. */
static bool read_cut(const char **at, ps_round_cut *out)
{
    char *end;
    out->round = strtoull(*at, &end, 10);
    if (end == *at || *end != ':') return false;
    const char *steps = end + 1;
    out->steps = strtoull(steps, &end, 10);
    *at = end;
    return end != steps && (out->round > 0) == (out->steps > 0);
}

ps_err ps_policy_lines_next_cuts(ps_policy_lines *lines, uint64_t rest,
                                 ps_round_cut *cuts, int n)
{
    int bytes;
    const size_t before = lines->cuts_at;
    const char *at = next_line(lines->cuts, &lines->cuts_at, sizeof CUTS - 1, &bytes);
    if (!at) return PS_OK;
    const char *line = at - (sizeof CUTS - 1);
    char *end;
    const uint64_t of = strtoull(at, &end, 10);
    bool good = end != at && of >= rest;
    at = end;
    if (good && of > rest) { // of a later one
        lines->cuts_at = before;
        return PS_OK;
    }
    for (int r = 0; r < n && good; r++)
        good = read_cut(&at, &cuts[r]);
    if (good && *at == '\n') return PS_OK;
    return ps_err_set(PS_ERR_FORMAT,
                      "sync.replay: \"%.*s\" does not have a rest, and ROUND:STEPS for "
                      "each of %d workers",
                      bytes, line, n);
}
