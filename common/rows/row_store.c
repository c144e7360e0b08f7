#include "row_store.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fault_point.h"
#include "mem.h"
#include "regular_file.h"
#include "row_file.h"
#include "secret.h"

/* ---- life ---- */

static ps_err store_make(ps_row_store *s, const ps_row_spec *specs, uint32_t first,
                         uint32_t end, const ps_row_disk *disk)
{
    ps_secret secret;
    ps_row_key key;
    PS_TRY(ps_secret_draw(&secret));
    memcpy(&key, secret.bytes, sizeof key);
    if (disk) PS_TRY(ps_row_memory_use_disk(&s->memory, disk));
    PS_TRY(PS_NEW(&s->tables, s->n, "embedding tables"));
    PS_TRY(PS_NEW(&s->clocks, s->n, "embedding tables"));
    while (s->n_made < s->n) {
        const uint32_t t = s->n_made++; // what is zeroed can be freed, too
        PS_TRY(ps_row_table_init(&s->tables[t], &specs[t], key, first, end, &s->memory));
    }
    return PS_OK;
}

ps_err ps_row_store_create(const ps_row_spec *specs, uint32_t n, uint32_t first,
                           uint32_t end, const ps_row_disk *disk, ps_row_store **out)
{
    *out = NULL;
    ps_row_store *s;
    PS_TRY(PS_NEW(&s, 1, "embedding tables"));
    s->n = n;
    ps_row_memory_init(&s->memory);
    const ps_err err = store_make(s, specs, first, end, disk);
    if (err == PS_OK)
        *out = s;
    else
        ps_row_store_destroy(&s);
    return err;
}

ps_err ps_row_store_specs(const ps_row_store *store, ps_row_spec **out)
{
    PS_TRY(PS_NEW(out, store->n, "embedding tables"));
    for (uint32_t t = 0; t < store->n; t++)
        (*out)[t] = store->tables[t].spec;
    return PS_OK;
}

ps_err ps_row_store_create_like(const ps_row_store *like, uint32_t first, uint32_t end,
                                ps_row_store **out)
{
    ps_row_spec *specs;
    *out = NULL;
    PS_TRY(ps_row_store_specs(like, &specs));
    const ps_row_disk disk = {like->memory.folder, like->memory.most};
    const ps_err err = ps_row_store_create(specs, like->n, first, end, &disk, out);
    free(specs);
    return err;
}

void ps_row_store_destroy(ps_row_store **store)
{
    ps_row_store *s = *store;
    if (!s) return;
    for (uint32_t t = 0; t < s->n_made; t++)
        ps_row_table_fini(&s->tables[t]);
    for (uint32_t i = 0; i < s->n_points; i++)
        free(s->points[i].clocks);
    ps_row_memory_fini(&s->memory);
    free(s->tables);
    free(s->clocks);
    free(s);
    *store = NULL;
}

bool ps_row_store_fits(const ps_row_store *store, const ps_row_store *other)
{
    if (store->n != other->n) return false;
    for (uint32_t t = 0; t < store->n; t++) {
        const ps_row_table *a = &store->tables[t], *b = &other->tables[t];
        if (ps_row_spec_hash(&a->spec) != ps_row_spec_hash(&b->spec) ||
            a->first_partition != b->first_partition ||
            a->end_partition != b->end_partition)
            return false;
    }
    return true;
}

/* ---- points ---- */

bool ps_row_store_has(const ps_row_store *store, uint64_t point)
{
    for (uint32_t i = 0; i < store->n_points; i++)
        if (store->points[i].point == point) return true;
    return false;
}

static void store_drop_point(ps_row_store *s, uint32_t i)
{
    free(s->points[i].clocks);
    s->n_points--;
    memmove(&s->points[i], &s->points[i + 1], (s->n_points - i) * sizeof *s->points);
}

ps_err ps_row_store_set_point(ps_row_store *s, uint64_t point, uint64_t step)
{
    const struct ps_row_point *last = s->n_points ? &s->points[s->n_points - 1] : NULL;
    const bool at_last = last && last->step == step;
    ps_row_clock *clocks;
    if (at_last && last->loads == s->loads && last->point == point)
        return PS_OK; // it is asked again
    PS_TRY(PS_NEW(&clocks, s->n, "embedding tables"));
    memcpy(clocks, s->clocks, s->n * sizeof *clocks);
    const bool same = at_last && last->loads == s->loads;
    s->base = last ? last->point : 0;
    s->changed = !same;
    // Marks have steps for names: of two of the same step only the newer one is found.
    while (at_last && !same && s->n_points > 0)
        store_drop_point(s, 0);
    for (uint32_t t = 0; !same && t < s->n; t++)
        ps_row_table_mark(&s->tables[t], step, step + s->clocks[t].ahead);
    if (s->n_points == PS_ROW_MARKS) store_drop_point(s, 0);
    s->points[s->n_points++] = (struct ps_row_point){
        .point = point, .step = step, .loads = s->loads, .clocks = clocks};
    return PS_OK;
}

ps_err ps_row_store_go_back(ps_row_store *s, uint64_t point, uint64_t *step)
{
    uint32_t i = 0;
    while (i < s->n_points && s->points[i].point != point)
        i++;
    if (i == s->n_points)
        return ps_err_set(PS_ERR_PROTOCOL, "rows cannot go back to point %" PRIu64,
                          point);
    const struct ps_row_point p = s->points[i];
    for (uint32_t t = 0; t < s->n; t++)
        PS_TRY(ps_row_table_undo(&s->tables[t], p.step));
    memcpy(s->clocks, p.clocks, s->n * sizeof *s->clocks);
    while (s->points[s->n_points - 1].step != p.step)
        store_drop_point(s, s->n_points - 1);
    s->loads = p.loads;
    s->full = 0;
    s->base = 0;
    *step = p.step;
    return PS_OK;
}

/* ---- files ---- */

static ps_err store_write_table(const ps_row_table *table, const char *path,
                                uint64_t since, uint64_t version,
                                ps_row_manifest_file *file)
{
    char aside[PATH_MAX + 8];
    snprintf(aside, sizeof aside, "%s.new", path);
    ps_err err =
        ps_row_file_write(aside, table, since, version, &file->bytes, &file->crc);
    if (err == PS_OK && rename(aside, path) != 0)
        err = ps_err_errno(PS_ERR_IO, "%s", path);
    if (err != PS_OK) unlink(aside); // a full disk
    PS_FAULT_POINT("rows.written");
    return err;
}

ps_err ps_row_store_write(ps_row_store *s, const char *path, uint32_t part,
                          ps_row_writes writes, uint64_t *since,
                          ps_row_manifest_file *files)
{
    const struct ps_row_point *now = &s->points[s->n_points - 1];
    char name[PATH_MAX];
    *since = writes == PS_ROW_WRITE_CHANGES && s->full_step > 0 ? s->full : 0;
    for (uint32_t t = 0; t < s->n; t++) {
        const int n = snprintf(name, sizeof name, "%s-%u-%u", path, t, part);
        const char *slash = strrchr(name, '/');
        const char *last = slash ? slash + 1 : name;
        if (n >= (int)sizeof name || strlen(last) >= sizeof files[t].name)
            return ps_err_set(PS_ERR_ARG, "%s: too long a name for a file", path);
        files[t] = (ps_row_manifest_file){.table = t, .changes = *since != 0};
        memcpy(files[t].name, last, strlen(last) + 1);
        const uint64_t ahead = s->clocks[t].ahead;
        PS_TRY(store_write_table(&s->tables[t], name, *since ? s->full_step + ahead : 0,
                                 now->step + ahead, &files[t]));
    }
    ps_regular_file_keep_name(name);
    if (*since) return PS_OK;
    s->full = writes == PS_ROW_WRITE_FULL ? 0 : now->point;
    s->full_step = now->step;
    for (uint32_t t = 0; t < s->n; t++)
        ps_row_table_forget(&s->tables[t],
                            s->full ? now->step + s->clocks[t].ahead : UINT64_MAX);
    return PS_OK;
}

/* A file that was checked in whole if `whole`. */
static ps_err store_read_file(ps_row_store *s, const char *path,
                              const ps_row_manifest_file *f, bool whole,
                              uint64_t *covered, uint64_t *version)
{
    uint64_t bytes = 0;
    uint32_t crc = 0;
    ps_row_file file;
    if (whole) PS_TRY(ps_regular_file_sum(path, &bytes, &crc));
    if (whole && (bytes != f->bytes || crc != f->crc))
        return ps_err_set(PS_ERR_FORMAT,
                          "%s: its size or checksum is not that of the manifest: it is "
                          "damaged, or another file",
                          path);
    ps_err err = ps_row_file_open(&file, path);
    if (err == PS_OK && (file.since > 0) != f->changes)
        err = ps_err_set(PS_ERR_FORMAT, "%s: it is another file than the manifest says",
                         path);
    const ps_row_table *table = &s->tables[f->table];
    if (err == PS_OK && file.version > *version) *version = file.version;
    if (err == PS_OK && !f->changes) {
        const uint32_t a = file.first_partition, b = file.end_partition;
        const uint32_t first = a > table->first_partition ? a : table->first_partition;
        const uint32_t end = b < table->end_partition ? b : table->end_partition;
        *covered += end > first ? end - first : 0;
    }
    if (err == PS_OK) err = ps_row_file_load(&file, &s->tables[f->table]);
    ps_row_file_close(&file);
    return err;
}

/* Of a file that is damaged or lost: others than the newest checkpoint may have it, too.
 */
static ps_err store_say_mend(ps_err err)
{
    if (err != PS_ERR_FORMAT && err != PS_ERR_IO) return err;
    const ps_err_saved said = ps_err_save(err);
    return ps_err_set(
        err,
        "%s. %sRemove each checkpoint that has this file (of a "
        "pstrain.State: all files of the commits from its number on): the "
        "job then goes on from an earlier one",
        said.message,
        err == PS_ERR_IO ? "Every server has to see the folder. Is it lost? " : "");
}

static ps_err store_read_files(ps_row_store *s, const char *folder,
                               const ps_row_manifest *m, bool changes, uint32_t part,
                               uint32_t n_parts, uint64_t *covered, uint64_t *versions)
{
    char path[PATH_MAX];
    for (uint32_t i = 0; i < m->n_files; i++) {
        const ps_row_manifest_file *f = &m->files[i];
        if (f->changes != changes) continue;
        snprintf(path, sizeof path, "%s/%s", folder, f->name);
        PS_TRY(store_say_mend(store_read_file(s, path, f, i % n_parts == part,
                                              &covered[f->table], &versions[f->table])));
    }
    return PS_OK;
}

ps_err ps_row_store_read(ps_row_store *s, const char *folder, const ps_row_manifest *m,
                         uint32_t part, uint32_t n_parts)
{
    uint64_t *covered; // then the newest version of each table's files
    PS_TRY(ps_mem_zalloc(&covered, s->n, 2 * sizeof *covered, "embedding tables"));
    uint64_t *versions = covered + s->n;
    ps_err err = store_read_files(s, folder, m, false, part, n_parts, covered, versions);
    for (uint32_t t = 0; err == PS_OK && t < s->n; t++)
        if (covered[t] != s->tables[t].end_partition - s->tables[t].first_partition)
            err = ps_err_set(PS_ERR_FORMAT,
                             "%s: the files of table %s do not have each of its parts "
                             "once",
                             folder, s->tables[t].spec.name);
    if (err == PS_OK)
        err = store_read_files(s, folder, m, true, part, n_parts, covered, versions);
    for (uint32_t t = 0; err == PS_OK && t < s->n; t++)
        s->clocks[t] = (ps_row_clock){m->tables[t].steps, .ahead = versions[t] - m->step};
    free(covered);
    return err;
}
