#include "shard_rows_points.h"

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "fault_point.h"
#include "log.h"
#include "mem.h"

/* ---- KEEP_ROWS ---- */

static ps_err points_take_path(const char *text, uint64_t bytes, char out[PATH_MAX])
{
    if (bytes >= PATH_MAX || memchr(text, '\0', bytes) || (bytes > 0 && text[0] != '/'))
        return ps_err_set(PS_ERR_PROTOCOL,
                          "a path of %" PRIu64 " bytes that is none from /", bytes);
    memcpy(out, text, bytes);
    out[bytes] = '\0';
    return PS_OK;
}

/* Writes the files that `writes` asks for, and makes the answer. */
static ps_err points_answer(ps_row_store *store, uint32_t shard, const char *path,
                            ps_row_writes writes, ps_row_manifest_file *files,
                            struct ps_rows_kept_table *tables, void **answer,
                            uint64_t *answer_bytes)
{
    ps_rows_kept kept = {.tables = tables};
    ps_err_saved fault = {0};
    if (writes != PS_ROW_WRITE_NONE) {
        const ps_err err =
            ps_row_store_write(store, path, shard, writes, &kept.since, files);
        fault = ps_err_save(err);
        if (err != PS_OK) {
            kept.fault = fault.message;
            kept.fault_bytes = strlen(fault.message);
            PS_WARN("rows-not-written", "reason=\"%s\"", fault.message);
        }
    }
    for (uint32_t t = 0; t < store->n; t++)
        tables[t] = (struct ps_rows_kept_table){store->clocks[t].made, files[t].bytes,
                                                files[t].crc};
    *answer_bytes = ps_rows_kept_bytes(&kept, store->n);
    PS_TRY(ps_mem_zalloc(answer, *answer_bytes, 1, "an answer of rows"));
    ps_rows_kept_write(*answer, &kept, store->n);
    return PS_OK;
}

ps_err ps_shard_rows_keep(ps_row_store *store, uint32_t shard, uint64_t step,
                          const void *body, uint64_t bytes, void **answer,
                          uint64_t *answer_bytes)
{
    ps_rows_keep keep;
    char path[PATH_MAX];
    struct ps_rows_kept_table *tables = NULL;
    ps_row_manifest_file *files;
    PS_TRY(ps_rows_keep_read(body, bytes, &keep));
    PS_TRY(points_take_path(keep.path, keep.path_bytes, path));
    if (keep.point == 0 || keep.writes > PS_ROW_WRITE_CHANGES)
        return ps_err_set(PS_ERR_PROTOCOL, "a point without a name, or files of kind %u",
                          keep.writes);
    PS_TRY(ps_row_store_set_point(store, keep.point, step));
    PS_FAULT_POINT("rows.kept");
    PS_TRY(PS_NEW(&files, store->n, "files of rows"));
    ps_err err = PS_NEW(&tables, store->n, "files of rows");
    if (err == PS_OK)
        err = points_answer(store, shard, path, (ps_row_writes)keep.writes, files, tables,
                            answer, answer_bytes);
    free(tables);
    free(files);
    return err;
}

/* ---- RETURN_ROWS ---- */

static ps_err points_check_tables(const ps_row_manifest *m, const ps_row_store *like)
{
    ps_row_spec *specs;
    PS_TRY(ps_row_store_specs(like, &specs));
    const ps_err err = ps_row_manifest_check(m, specs, like->n);
    free(specs);
    return err;
}

/* The tables of a manifest's files. */
static ps_err points_read(const ps_row_store *like, const ps_row_manifest *m,
                          const char *folder, uint32_t shard, uint32_t n_shards,
                          ps_row_store **out)
{
    const ps_row_table *own = &like->tables[0];
    *out = NULL;
    PS_TRY(points_check_tables(m, like));
    PS_TRY(ps_row_store_create_like(like, own->first_partition, own->end_partition, out));
    ps_err err = ps_row_store_read(*out, folder, m, shard, n_shards);
    if (err == PS_OK) err = ps_row_store_set_point(*out, m->point, m->step);
    if (err != PS_OK) ps_row_store_destroy(out);
    return err;
}

ps_err ps_shard_return_read(const void *body, uint64_t bytes, ps_shard_return *out)
{
    ps_rows_return back;
    out->manifest = (ps_row_manifest){0};
    PS_TRY(ps_rows_return_read(body, bytes, &back));
    out->point = back.point;
    PS_TRY(points_take_path(back.folder, back.folder_bytes, out->folder));
    if (ps_row_manifest_read(back.manifest, back.manifest_bytes, &out->manifest) != PS_OK)
        return ps_err_prefix(PS_ERR_PROTOCOL, "RETURN_ROWS");
    return PS_OK;
}

void ps_shard_return_fini(ps_shard_return *back)
{
    ps_row_manifest_fini(&back->manifest);
}

void ps_shard_rows_replace(ps_row_store **now, ps_row_store **by)
{
    ps_row_store_destroy(now);
    *now = *by;
    *by = NULL;
}

ps_err ps_shard_rows_return(ps_row_store **now, ps_row_store **before, uint64_t point,
                            uint64_t *step, bool *found)
{
    if (*before && ps_row_store_fits(*before, *now) && ps_row_store_has(*before, point))
        ps_shard_rows_replace(now, before);
    ps_row_store_destroy(before);
    *found = ps_row_store_has(*now, point);
    if (!*found) return PS_OK;
    PS_TRY(ps_row_store_go_back(*now, point, step));
    PS_INFO("rows", "step=%" PRIu64 " from=memory", *step);
    return PS_OK;
}

ps_err ps_shard_rows_return_from_files(ps_row_store **now, uint32_t shard,
                                       uint32_t n_shards, const ps_shard_return *back,
                                       uint64_t *step, bool *found)
{
    ps_row_store *read;
    *found = back->manifest.n_files > 0;
    if (!*found) return PS_OK;
    PS_TRY(points_read(*now, &back->manifest, back->folder, shard, n_shards, &read));
    ps_shard_rows_replace(now, &read);
    *step = back->manifest.step;
    PS_INFO("rows", "step=%" PRIu64 " from=%s", *step, back->folder);
    return PS_OK;
}
