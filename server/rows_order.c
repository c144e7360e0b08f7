#include "rows_order.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "log.h"
#include "mem.h"
#include "new_file.h"
#include "regular_file.h"

enum { HEAD_BYTES = 128, TURN_BITS = 2 };

struct ps_rows_order {
    ps_rows_order_of of;
    char path[PATH_MAX]; // of what is written; "": nothing is
    FILE *file;          // NULL: not open yet, or no more
    bool begun;          // the file was opened, once
    bool in_line;        // it has no end yet
    // What is repeated
    char replay[PATH_MAX]; // "": nothing
    uint32_t *turns;       // (n) rank << TURN_BITS | turn
    uint32_t n, room, at;
    uint32_t *begins; // (n_steps) where in `turns` a step's line begins
    uint32_t n_steps, begins_room;
    uint64_t first; // step of the first line
};

/* --- reading ----------------------------------------------------------------------- */

static void order_write_head(const ps_rows_order *o, uint64_t first,
                             char head[HEAD_BYTES])
{
    snprintf(
        head, HEAD_BYTES,
        "{\"rows\":\"asp\",\"workers\":%u,\"shards\":%u,\"shard\":%u,\"first\":%" PRIu64
        "}\n",
        o->of.n_workers, o->of.n_shards, o->of.shard, first);
}

// By turn; PULL has none.
static const char turn_marks[] = " +*!";

static ps_err order_refuse(const char *path, uint64_t line, const char *what)
{
    return ps_err_set(PS_ERR_FORMAT, "%s line %" PRIu64 ": %s", path, line, what);
}

/* Whether `line` is a head of this job; *first: its step. */
static bool order_is_head(const ps_rows_order *o, const char *line, uint64_t *first)
{
    char head[HEAD_BYTES];
    const char *at = strstr(line, "\"first\":");
    if (!at) return false;
    *first = strtoull(at + strlen("\"first\":"), NULL, 10);
    order_write_head(o, *first, head);
    return strcmp(line, head) == 0;
}

static ps_rows_turn order_turn(uint32_t entry)
{
    return (ps_rows_turn)(entry & ((1 << TURN_BITS) - 1));
}

/* What was looked up for that step before its line does not count either. What was asked
 * for ahead was looked up in the step itself then: no job without a death does so. */
static ps_err order_cut(ps_rows_order *o, uint64_t step, uint64_t line)
{
    if (step < o->first || step - o->first > o->n_steps)
        return order_refuse(o->replay, line, "it goes back to a step that is not there");
    const uint32_t steps = (uint32_t)(step - o->first);
    if (steps < o->n_steps) o->n = o->begins[steps];
    o->n_steps = steps;
    if (steps == 0) return PS_OK;
    uint32_t to = o->begins[steps - 1];
    for (uint32_t i = to; i < o->n; i++) {
        const ps_rows_turn turn = order_turn(o->turns[i]);
        if (turn == PS_ROWS_TURN_AHEAD)
            return order_refuse(o->replay, line,
                                "the job went back, for a death, over rows that were "
                                "asked for ahead: such a job cannot be repeated");
        if (turn != PS_ROWS_TURN_NEXT) o->turns[to++] = o->turns[i];
    }
    o->n = to;
    return PS_OK;
}

/* "0 1+ 1!" up to the line's end. */
static ps_err order_read_turns(ps_rows_order *o, const char *text, bool *ok)
{
    *ok = false;
    while (*text == ' ') {
        char *end;
        const unsigned long rank = strtoul(text + 1, &end, 10);
        if (end == text + 1 || rank >= o->of.n_workers) return PS_OK;
        const char *mark = *end ? strchr(turn_marks, *end) : NULL;
        const uint32_t turn = mark ? (uint32_t)(mark - turn_marks) : PS_ROWS_TURN_PULL;
        PS_TRY(
            ps_mem_room(&o->turns, o->n, &o->room, sizeof *o->turns, "a record of rows"));
        o->turns[o->n++] = (uint32_t)rank << TURN_BITS | turn;
        text = turn == PS_ROWS_TURN_PULL ? end : end + 1;
    }
    *ok = strcmp(text, "\n") == 0;
    return PS_OK;
}

static ps_err order_read_line(ps_rows_order *o, const char *text, uint64_t line)
{
    const char *path = o->replay;
    char *end;
    bool ok;
    if (strncmp(text, "point ", 6) == 0) return PS_OK;
    if (strncmp(text, "back ", 5) == 0) {
        const uint64_t step = strtoull(text + 5, &end, 10);
        return strcmp(end, "\n") == 0 ? order_cut(o, step, line)
                                      : order_refuse(path, line, "not a step");
    }
    const uint64_t step = strtoull(text, &end, 10);
    const uint64_t next = o->first + o->n_steps;
    if (end == text || *end != ':' ||
        (step != next && (o->n_steps == 0 || step != next - 1)))
        return order_refuse(path, line, "the next step was expected");
    if (step == next) {
        PS_TRY(ps_mem_room(&o->begins, o->n_steps, &o->begins_room, sizeof *o->begins,
                           "a record of rows"));
        o->begins[o->n_steps++] = o->n;
    }
    PS_TRY(order_read_turns(o, end + 1, &ok));
    return ok ? PS_OK : order_refuse(path, line, "not a list of workers' turns");
}

/* A last line without its end was being written when the server died. */
static ps_err order_read_lines(ps_rows_order *o, FILE *file, char **text)
{
    size_t room = 0;
    ssize_t n = getline(text, &room, file);
    if (n < 0 || !order_is_head(o, *text, &o->first))
        return ps_err_set(PS_ERR_FORMAT,
                          "%s is not the record of a job with %u workers "
                          "and %u shards: take as many servers, workers and "
                          "server.shards as the job had",
                          o->replay, o->of.n_workers, o->of.n_shards);
    for (uint64_t line = 2; (n = getline(text, &room, file)) >= 0; line++) {
        if (strlen(*text) != (size_t)n)
            return order_refuse(o->replay, line, "it has a byte of 0");
        if ((*text)[n - 1] == '\n' && n > 1) PS_TRY(order_read_line(o, *text, line));
    }
    return PS_OK;
}

static ps_err order_path(const ps_rows_order *o, const char *folder, char path[PATH_MAX])
{
    if (snprintf(path, PATH_MAX, "%s/rows-%u.log", folder, o->of.shard) < PATH_MAX)
        return PS_OK;
    return ps_err_set(PS_ERR_CONFIG, "the path %s is too long", folder);
}

static ps_err order_read(ps_rows_order *o)
{
    FILE *file;
    char *text = NULL;
    PS_TRY(ps_regular_file_stream(o->replay, "r", &file));
    ps_err err = order_read_lines(o, file, &text);
    if (err == PS_OK && ferror(file))
        err = ps_err_set(PS_ERR_IO, "cannot read %s", o->replay);
    free(text);
    fclose(file);
    return err;
}

/* --- life -------------------------------------------------------------------------- */

ps_err ps_rows_order_open(const ps_config *config, const ps_rows_order_of *of,
                          ps_rows_order **out)
{
    ps_rows_order *o;
    PS_TRY(PS_NEW(&o, 1, "a record of rows"));
    o->of = *of;
    ps_err err = PS_OK;
    if (*config->server.rows_log) {
        err = ps_new_file_folders(config->server.rows_log, NULL);
        if (err == PS_OK) err = order_path(o, config->server.rows_log, o->path);
        if (err != PS_OK) err = ps_err_prefix(err, "server.rows_log");
    }
    if (err == PS_OK && *config->server.rows_replay) {
        err = order_path(o, config->server.rows_replay, o->replay);
        if (err == PS_OK) err = order_read(o);
        if (err != PS_OK) err = ps_err_prefix(err, "server.rows_replay");
    }
    if (err == PS_OK && *o->path && *o->replay &&
        ps_regular_file_is_same(o->path, o->replay))
        err = ps_err_set(
            PS_ERR_CONFIG,
            "server.rows_log and server.rows_replay are one folder: the record would be "
            "overwritten: give server.rows_log another one");
    if (err != PS_OK) ps_rows_order_close(&o);
    *out = o;
    return err;
}

static void order_end_line(ps_rows_order *o)
{
    if (o->file && o->in_line) fputc('\n', o->file);
    o->in_line = false;
}

/* Nothing is written any more. */
static void order_give_up(ps_rows_order *o)
{
    PS_WARN("rows",
            "path=\"%s\" what=\"cannot write the order of the rows, so the job cannot be "
            "repeated beyond this step\" why=\"%s\"",
            o->path, ps_err_message());
    if (o->file) fclose(o->file);
    o->file = NULL;
    o->path[0] = '\0';
}

static void order_flush(ps_rows_order *o)
{
    if (!o->file || fflush(o->file) == 0) return;
    (void)ps_err_errno(PS_ERR_IO, "cannot write");
    order_give_up(o);
}

void ps_rows_order_close(ps_rows_order **order)
{
    ps_rows_order *o = *order;
    if (!o) return;
    order_end_line(o);
    order_flush(o);
    if (o->file) fclose(o->file);
    free(o->turns);
    free(o->begins);
    free(o);
    *order = NULL;
}

/* --- writing ----------------------------------------------------------------------- */

static void order_write_point(uint64_t step, uint64_t point, char line[HEAD_BYTES])
{
    snprintf(line, HEAD_BYTES, "point %" PRIu64 " %" PRIu64 "\n", step, point);
}

/* Where the line of the point ends, in a record of this job; 0: it has none. */
static off_t order_find_point(const ps_rows_order *o, uint64_t step, uint64_t point)
{
    char wanted[HEAD_BYTES], *line = NULL;
    size_t room = 0;
    uint64_t first;
    FILE *file;
    off_t end = 0;
    if (ps_regular_file_stream(o->path, "r", &file) != PS_OK) return 0;
    order_write_point(step, point, wanted);
    if (getline(&line, &room, file) > 0 && order_is_head(o, line, &first))
        while (end == 0 && getline(&line, &room, file) > 0)
            if (strcmp(line, wanted) == 0) end = ftello(file);
    free(line);
    fclose(file);
    return end;
}

/* Goes on behind the first `kept` bytes, since a server that died may have left half a
 * line behind them; 0: anew. */
static void order_open_file(ps_rows_order *o, uint64_t step, off_t kept)
{
    char head[HEAD_BYTES];
    o->begun = true;
    if (!*o->path) return;
    ps_err err = ps_regular_file_stream(o->path, kept > 0 ? "a" : "w", &o->file);
    if (err == PS_OK && ftruncate(fileno(o->file), kept) != 0)
        err = ps_err_errno(PS_ERR_IO, "cannot write");
    if (err != PS_OK) {
        order_give_up(o);
        return;
    }
    order_write_head(o, step, head);
    if (kept > 0)
        fprintf(o->file, "back %" PRIu64 "\n", step);
    else
        fputs(head, o->file);
    order_flush(o);
}

/* A job that begins anew takes the place of the one before. */
static void order_begin_line(ps_rows_order *o, uint64_t step)
{
    if (!o->begun) order_open_file(o, step, 0);
    if (o->in_line || !o->file) return;
    o->in_line = true;
    fprintf(o->file, "%" PRIu64 ":", step);
}

void ps_rows_order_add(ps_rows_order *o, uint64_t step, uint32_t rank, ps_rows_turn turn)
{
    if (*o->replay) o->at++;
    order_begin_line(o, step);
    if (o->file)
        fprintf(o->file, " %u%.*s", rank, turn != PS_ROWS_TURN_PULL, &turn_marks[turn]);
}

void ps_rows_order_end_step(ps_rows_order *o, uint64_t step)
{
    order_begin_line(o, step);
    order_end_line(o);
    if (!o->file || !ferror(o->file)) return;
    (void)ps_err_errno(PS_ERR_IO, "cannot write");
    order_give_up(o);
}

void ps_rows_order_keep(ps_rows_order *o, uint64_t step, uint64_t point)
{
    char line[HEAD_BYTES];
    if (!o->begun) order_open_file(o, step, 0);
    if (!o->file) return;
    order_end_line(o);
    order_write_point(step, point, line);
    fputs(line, o->file);
    order_flush(o);
}

ps_err ps_rows_order_go_back(ps_rows_order *o, uint64_t step, uint64_t point)
{
    if (*o->replay && (o->at > 0 || step != o->first))
        return ps_err_set(PS_ERR_ARG,
                          "server.rows_replay: the rows go to step %" PRIu64
                          ", and %s begins with step %" PRIu64
                          ": a job that repeats another one starts where that did, and "
                          "cannot go back",
                          step, o->replay, o->first);
    order_end_line(o);
    order_flush(o);
    if (o->file) fclose(o->file);
    o->file = NULL;
    order_open_file(o, step, order_find_point(o, step, point));
    return PS_OK;
}

/* --- repeating --------------------------------------------------------------------- */

static bool order_is_turn(uint32_t entry, uint32_t rank, ps_rows_turn turn)
{
    const bool applies = order_turn(entry) == PS_ROWS_TURN_APPLY;
    return entry >> TURN_BITS == rank && applies == (turn == PS_ROWS_TURN_APPLY);
}

ps_err ps_rows_order_may(const ps_rows_order *o, uint32_t rank, ps_rows_turn turn,
                         bool *may)
{
    *may = true;
    if (!*o->replay) return PS_OK;
    uint32_t i = o->at;
    *may = i < o->n && o->turns[i] >> TURN_BITS == rank;
    while (i < o->n && o->turns[i] >> TURN_BITS != rank)
        i++;
    if (i < o->n && order_is_turn(o->turns[i], rank, turn)) return PS_OK;
    return ps_err_set(
        PS_ERR_ARG,
        "server.rows_replay: worker %u %s, and %s %s: it is the record "
        "of another job",
        rank, turn == PS_ROWS_TURN_APPLY ? "has gradients" : "looks rows up", o->replay,
        i == o->n ? "has no more of it" : "has the other thing of it next");
}
