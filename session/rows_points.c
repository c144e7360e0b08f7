#include "rows_points.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "job_keys.h"
#include "log.h"
#include "mem.h"
#include "mp.h"
#include "rows_body.h"
#include "wire.h"

enum { ANSWER_MOST = 64 << 20 };

struct ps_rows_points {
    const ps_row_spec *specs;
    uint32_t n, n_shards;
    ps_exchange_body *requests, *answers; // (n_shards)
    void *body; // of the last message: after a failure it may still be read
    ps_row_manifest_file *full; // (n_shards, n) that files with changes add to
    bool has_full;              // of the last writes of all servers
    char fault[512];
};

ps_err ps_rows_points_create(const ps_row_spec *specs, uint32_t n, uint32_t n_shards,
                             ps_rows_points **out)
{
    ps_rows_points *p;
    PS_TRY(PS_NEW(out, 1, "points of rows"));
    p = *out;
    *p = (ps_rows_points){.specs = specs, .n = n, .n_shards = n_shards};
    ps_err err = PS_NEW(&p->requests, n_shards, "messages");
    if (err == PS_OK) err = PS_NEW(&p->answers, n_shards, "messages");
    if (err == PS_OK) err = PS_NEW(&p->full, (size_t)n_shards * n, "files of rows");
    for (uint32_t i = 0; err == PS_OK && i < n_shards; i++)
        p->answers[i] = (ps_exchange_body){.grows = true, .most = ANSWER_MOST};
    if (err != PS_OK) ps_rows_points_destroy(out);
    return err;
}

void ps_rows_points_destroy(ps_rows_points **points)
{
    ps_rows_points *p = *points;
    if (!p) return;
    for (uint32_t i = 0; p->answers && i < p->n_shards; i++)
        free(p->answers[i].bytes);
    free(p->body);
    free(p->requests);
    free(p->answers);
    free(p->full);
    free(p);
    *points = NULL;
}

static ps_err points_room(ps_rows_points *p, uint64_t bytes)
{
    free(p->body);
    return ps_mem_zalloc(&p->body, bytes, 1, "a message of rows");
}

/* The body to all shards. */
static ps_err points_ask(ps_rows_points *p, ps_session *session, int kind, uint64_t step,
                         uint64_t bytes)
{
    for (uint32_t i = 0; i < p->n_shards; i++)
        p->requests[i] = (ps_exchange_body){.bytes = p->body, .n = bytes};
    uint64_t sent;
    PS_TRY(ps_session_rows_send(session, kind, step, p->requests, p->answers, &sent));
    return ps_session_rows_wait(session, sent);
}

/* A shard's files, and those that they add to. */
static ps_err points_take_shard(ps_rows_points *p, const ps_rows_point *what,
                                uint32_t shard, const ps_rows_kept *kept,
                                ps_row_manifest *m)
{
    ps_row_manifest_file *full = p->full + (size_t)shard * p->n;
    for (uint32_t t = 0; t < p->n; t++) {
        ps_row_manifest_file file = {.table = t,
                                     .changes = kept->since != 0,
                                     .bytes = kept->tables[t].bytes,
                                     .crc = (uint32_t)kept->tables[t].crc};
        snprintf(file.name, sizeof file.name, "%s-%u-%u", what->name, t, shard);
        m->tables[t].steps = kept->tables[t].steps;
        if (what->writes == PS_ROW_WRITE_NONE || p->fault[0]) continue;
        if (file.changes)
            PS_TRY(ps_row_manifest_add(m, &full[t]));
        else
            full[t] = file;
        PS_TRY(ps_row_manifest_add(m, &file));
    }
    return PS_OK;
}

static ps_err points_take(ps_rows_points *p, const ps_rows_point *what,
                          ps_row_manifest *m)
{
    ps_rows_kept kept;
    p->fault[0] = '\0';
    for (uint32_t i = 0; i < p->n_shards; i++) {
        PS_TRY(ps_rows_kept_read(p->answers[i].bytes, p->answers[i].n, p->n, &kept));
        if (kept.fault_bytes > 0 && !p->fault[0])
            snprintf(p->fault, sizeof p->fault, "shard %u: %.*s", i,
                     (int)(kept.fault_bytes < 400 ? kept.fault_bytes : 400), kept.fault);
    }
    for (uint32_t i = 0; i < p->n_shards; i++) {
        PS_TRY(ps_rows_kept_read(p->answers[i].bytes, p->answers[i].n, p->n, &kept));
        PS_TRY(points_take_shard(p, what, i, &kept, m));
    }
    return PS_OK;
}

ps_err ps_rows_points_set(ps_rows_points *p, ps_session *session,
                          const ps_rows_point *what, char **manifest, const char **fault)
{
    char path[PATH_MAX] = "";
    if (what->writes != PS_ROW_WRITE_NONE &&
        snprintf(path, sizeof path, "%s/%s", what->folder, what->name) >=
            (int)sizeof path)
        return ps_err_set(PS_ERR_ARG, "%s: too long a path for files of rows",
                          what->folder);
    const bool changes = what->writes == PS_ROW_WRITE_CHANGES;
    const ps_rows_keep keep = {.point = what->point,
                               .writes = changes && !p->has_full ? PS_ROW_WRITE_FIRST
                                                                 : what->writes,
                               .path = path,
                               .path_bytes = strlen(path)};
    PS_TRY(points_room(p, ps_rows_keep_bytes(&keep)));
    ps_rows_keep_write(p->body, &keep);
    PS_TRY(
        points_ask(p, session, PS_MSG_KEEP_ROWS, what->step, ps_rows_keep_bytes(&keep)));
    ps_row_manifest m;
    ps_err err = ps_row_manifest_init(&m, p->specs, p->n);
    m.point = what->point;
    m.step = what->step;
    if (err == PS_OK) err = points_take(p, what, &m);
    if (err == PS_OK) err = ps_row_manifest_write(&m, manifest);
    ps_row_manifest_fini(&m);
    if (what->writes != PS_ROW_WRITE_NONE) p->has_full = err == PS_OK && !p->fault[0];
    *fault = p->fault;
    return err;
}

/* What the shards have answered. */
static ps_err points_check_returned(const ps_rows_points *p, uint64_t step)
{
    uint32_t n = 0, without = 0;
    for (uint32_t i = 0; i < p->n_shards; i++) {
        uint64_t found = 0;
        if (p->answers[i].n != sizeof found)
            return ps_err_set(PS_ERR_PROTOCOL,
                              "an answer to RETURN_ROWS of %" PRIu64 " bytes",
                              p->answers[i].n);
        memcpy(&found, p->answers[i].bytes, sizeof found);
        n += found != 0;
        if (!found) without = i;
    }
    if (n == p->n_shards) return PS_OK;
    return ps_err_set(n == 0 ? PS_ERR_ARG : PS_ERR_PEER,
                      "shard %u does not have the rows of step %" PRIu64
                      " any more, and they were not written to files",
                      without, step);
}

ps_err ps_rows_points_return(ps_rows_points *p, ps_session *session, uint64_t step,
                             const char *folder, const char *manifest)
{
    ps_row_manifest m;
    PS_TRY(ps_row_manifest_read(manifest, strlen(manifest), &m));
    ps_err err = ps_row_manifest_check(&m, p->specs, p->n);
    const ps_rows_return back = {.point = m.point,
                                 .folder = folder,
                                 .folder_bytes = strlen(folder),
                                 .manifest = manifest,
                                 .manifest_bytes = strlen(manifest)};
    const uint64_t wanted = m.step;
    ps_row_manifest_fini(&m);
    PS_TRY(err);
    PS_TRY(points_room(p, ps_rows_return_bytes(&back)));
    ps_rows_return_write(p->body, &back);
    PS_TRY(points_ask(p, session, PS_MSG_RETURN_ROWS, step, ps_rows_return_bytes(&back)));
    return points_check_returned(p, wanted);
}

ps_err ps_rows_points_return_all(ps_rows_points *p, ps_session *session,
                                 const char *folder, const char *manifest)
{
    return ps_rows_points_return(p, session, PS_ROWS_ALL_RETURN, folder, manifest);
}

ps_err ps_rows_points_return_in_memory(ps_rows_points *p, ps_session *session,
                                       uint64_t point, uint64_t step_then)
{
    ps_row_manifest m;
    char *text = NULL;
    ps_err err = ps_row_manifest_init(&m, p->specs, p->n);
    m.point = point;
    m.step = step_then;
    if (err == PS_OK) err = ps_row_manifest_write(&m, &text);
    ps_row_manifest_fini(&m);
    if (err == PS_OK) err = ps_rows_points_return(p, session, 0, "", text);
    free(text);
    return err;
}

/* Whether a server has the point: of its own rows, of those that it keeps for the server
 * before it. */
typedef struct server_points {
    bool own, before;
} server_points;

static bool points_read_list(ps_mp_reader *r, uint64_t point)
{
    bool has = false;
    for (size_t n = ps_mp_read_array(r, PS_ROW_MARKS); n > 0; n--)
        has |= ps_mp_read_uint(r, INT64_MAX) == point;
    return has;
}

static ps_err points_of_server(ps_member *member, int server, uint64_t point,
                               ps_deadline deadline, server_points *out)
{
    const ps_job_key key = ps_job_key_rows(server);
    void *value;
    size_t bytes;
    ps_mp_reader r;
    PS_TRY(ps_member_get(member, key.text, &value, &bytes, deadline));
    ps_mp_reader_init(&r, value, bytes);
    if (ps_mp_read_array(&r, 2) != 2) r.failed = true;
    out->own = points_read_list(&r, point);
    out->before = points_read_list(&r, point);
    const bool good = ps_mp_reader_end(&r);
    free(value);
    return good ? PS_OK : ps_err_set(PS_ERR_PROTOCOL, "%s is malformed", key.text);
}

ps_err ps_rows_point_is_kept(ps_member *member, int n_servers, uint64_t point,
                             ps_deadline deadline, bool *kept)
{
    server_points *of;
    PS_TRY(PS_NEW(&of, (size_t)n_servers, "points of rows"));
    ps_err err = PS_OK;
    for (int i = 0; i < n_servers && err == PS_OK; i++)
        err = points_of_server(member, i, point, deadline, &of[i]);
    *kept = n_servers > 0 && err == PS_OK;
    for (int i = 0; i < n_servers && *kept; i++) {
        *kept = of[i].own || of[(i + 1) % n_servers].before;
        if (!*kept)
            PS_INFO("rows-lost",
                    "server=%d note=\"no process has its rows in memory any more: files "
                    "are looked for\"",
                    i);
    }
    free(of);
    return err;
}
