#include "row_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <zlib.h>

#include "mem.h"
#include "new_file.h"
#include "regular_file.h"

static const char MAGIC[16] = "pstrain rows 1\n";
static const char END_MAGIC[8] = {'r', 'o', 'w', 's', ' ', 'e', 'n', 'd'};
enum { SETTINGS_MOST = 4096, BUFFER_BYTES = 1 << 20 };

/* As they lie in a file: without gaps. */
typedef struct file_part {
    uint32_t number, n, n_dropped, n_rows, crc, zero;
    uint64_t offset;
} file_part;

typedef struct file_end {
    uint64_t contents, settings;
    uint32_t n_parts, crc;
    char magic[8];
} file_end;

_Static_assert(sizeof(file_part) == PS_ROW_FILE_PART_BYTES, "no gaps");
_Static_assert(sizeof(file_end) == 32, "no gaps");
enum { END_CHECKED = offsetof(file_end, crc) };

typedef struct file_settings {
    ps_map_bytes table;
    uint64_t since, version;
    uint32_t first, end;
} file_settings;

static const ps_map_field settings_fields[] = {
    PS_MAP_FIELD(file_settings, table, BYTES, SETTINGS_MOST),
    PS_MAP_FIELD(file_settings, since, U64, UINT32_MAX),
    PS_MAP_FIELD(file_settings, version, U64, UINT32_MAX),
    PS_MAP_FIELD(file_settings, first, U32, PS_ROW_PARTITIONS),
    PS_MAP_FIELD(file_settings, end, U32, PS_ROW_PARTITIONS),
};
static const ps_map settings_map = PS_MAP_OF(settings_fields, file_settings);

/* Bytes of a partition. */
static uint64_t row_part_bytes(const file_part *p, uint64_t width)
{
    return 8ull * p->n_dropped + 16ull * p->n + 4 * width * p->n_rows;
}

/* ---- Writing ---- */

typedef struct row_writer {
    const char *path;
    const ps_row_table *table;
    uint64_t since;
    uint8_t *buffer;
    uint32_t used, summed; // summed: bytes of the buffer that part_crc has
    int fd;
    uint64_t offset;   // in the file
    uint32_t part_crc; // since it was set to 0
    uint32_t crc;      // of the file up to crc_end
    uint64_t crc_end;
    file_part parts[PS_ROW_PARTITIONS];
    uint32_t n_parts;
    uint64_t *dropped; // (n_dropped) by partition, then id
    uint64_t n_dropped, dropped_at;
} row_writer;

/* In large pieces: zlib takes twice as long for row after row. */
static void writer_sum(row_writer *w)
{
    w->part_crc =
        (uint32_t)crc32_z(w->part_crc, w->buffer + w->summed, w->used - w->summed);
    w->summed = w->used;
}

static ps_err writer_flush(row_writer *w)
{
    writer_sum(w);
    for (uint32_t done = 0; done < w->used;) {
        const ssize_t n = write(w->fd, w->buffer + done, w->used - done);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return ps_err_errno(PS_ERR_IO, "%s: writing", w->path);
        done += (uint32_t)n;
    }
    w->used = w->summed = 0;
    return PS_OK;
}

static ps_err writer_put(row_writer *w, const void *bytes, uint64_t n)
{
    const uint8_t *from = bytes;
    w->offset += n;
    while (n > 0) {
        const uint64_t room = BUFFER_BYTES - w->used, now = n < room ? n : room;
        memcpy(w->buffer + w->used, from, now);
        w->used += (uint32_t)now;
        from += now;
        n -= now;
        if (w->used == BUFFER_BYTES) PS_TRY(writer_flush(w));
    }
    return PS_OK;
}

/* Adds the CRC of what was put since the last call to that of the file; returns it. */
static uint32_t writer_crc(row_writer *w)
{
    writer_sum(w);
    const uint32_t crc = w->part_crc;
    w->crc = (uint32_t)crc32_combine(w->crc, crc, (z_off_t)(w->offset - w->crc_end));
    w->crc_end = w->offset;
    w->part_crc = 0;
    return crc;
}

static uint64_t writer_place(const row_writer *w, uint64_t id)
{
    return ps_row_hash(w->table->salt, id);
}

static int dropped_compare(const void *a, const void *b, void *writer)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    const uint32_t p = ps_row_partition(writer_place(writer, x)),
                   q = ps_row_partition(writer_place(writer, y));
    return p != q ? (p > q) - (p < q) : (x > y) - (x < y);
}

/* Ids that were dropped since then and have no row again. */
static ps_err writer_list_dropped(row_writer *w)
{
    const ps_row_table *t = w->table;
    const uint64_t n = w->since > 0 ? t->n_drops : 0;
    PS_TRY(PS_NEW(&w->dropped, n, "dropped ids"));
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t id = t->drops[i].id;
        const uint64_t hash = ps_row_index_hash(&t->index, id);
        if (t->drops[i].version > w->since && !ps_row_index_find(&t->index, hash, id))
            w->dropped[w->n_dropped++] = id;
    }
    qsort_r(w->dropped, w->n_dropped, sizeof *w->dropped, dropped_compare, w);
    uint64_t kept = 0;
    for (uint64_t i = 0; i < w->n_dropped; i++)
        if (i == 0 || w->dropped[i] != w->dropped[i - 1])
            w->dropped[kept++] = w->dropped[i];
    w->n_dropped = kept;
    return PS_OK;
}

/* A column of the views, in pieces. */
static ps_err writer_column(row_writer *w, const ps_row_view *views, uint32_t n,
                            int column)
{
    enum { PIECE = 512 };
    uint64_t ids[PIECE];
    uint32_t numbers[PIECE];
    for (uint32_t at = 0; at < n; at += PIECE) {
        const uint32_t count = n - at < PIECE ? n - at : PIECE;
        for (uint32_t i = 0; i < count; i++) {
            ids[i] = views[at + i].id;
            numbers[i] = column == 1 ? views[at + i].version : views[at + i].count;
        }
        if (column == 0)
            PS_TRY(writer_put(w, ids, count * sizeof *ids));
        else
            PS_TRY(writer_put(w, numbers, count * sizeof *numbers));
    }
    return PS_OK;
}

static ps_err writer_views(row_writer *w, const ps_row_view *views, file_part *part)
{
    const uint64_t bytes = ps_row_spec_width(&w->table->spec) * sizeof(float);
    for (int column = 0; column < 3; column++)
        PS_TRY(writer_column(w, views, part->n, column));
    for (uint32_t i = 0; i < part->n; i++) {
        if (!views[i].row) continue;
        PS_TRY(writer_put(w, views[i].row, bytes));
        part->n_rows++;
    }
    return PS_OK;
}

/* A partition, of which these are the first views and the next dropped ids. */
static ps_err writer_partition(row_writer *w, uint32_t number, const ps_row_view *views,
                               uint64_t n_views, uint64_t *used)
{
    file_part part = {.number = number, .offset = w->offset};
    const uint64_t *dropped = w->dropped + w->dropped_at;
    while (w->dropped_at < w->n_dropped &&
           ps_row_partition(writer_place(w, w->dropped[w->dropped_at])) == number) {
        w->dropped_at++;
        part.n_dropped++;
    }
    while (part.n < n_views &&
           ps_row_partition(writer_place(w, views[part.n].id)) == number)
        part.n++;
    *used += part.n;
    if (part.n + part.n_dropped == 0) return PS_OK;
    PS_TRY(writer_put(w, dropped, part.n_dropped * sizeof *dropped));
    PS_TRY(writer_views(w, views, &part));
    part.crc = writer_crc(w);
    w->parts[w->n_parts++] = part;
    return PS_OK;
}

static ps_err writer_partitions(row_writer *w, uint32_t first, uint32_t end)
{
    ps_row_view *views;
    uint64_t n, used = 0;
    PS_TRY(ps_row_table_list(w->table, first, end, w->since, &views, &n));
    ps_err err = PS_OK;
    for (uint32_t p = first; err == PS_OK && p < end; p++)
        err = writer_partition(w, p, views + used, n - used, &used);
    free(views);
    return err;
}

static ps_err writer_end(row_writer *w, uint64_t version)
{
    ps_mp_writer table, settings;
    file_end end = {.contents = w->offset, .n_parts = w->n_parts};
    ps_mp_writer_init(&table);
    ps_mp_writer_init(&settings);
    ps_row_spec_write(&table, &w->table->spec);
    const file_settings map = {.table = {table.base, table.used},
                               .since = w->since,
                               .version = version,
                               .first = w->table->first_partition,
                               .end = w->table->end_partition};
    ps_map_write(&settings, &settings_map, &map);
    memcpy(end.magic, END_MAGIC, sizeof end.magic);
    ps_err err = ps_mp_writer_end(&table);
    if (err == PS_OK) err = ps_mp_writer_end(&settings);
    if (err == PS_OK) err = writer_put(w, w->parts, w->n_parts * sizeof *w->parts);
    end.settings = w->offset;
    if (err == PS_OK) err = writer_put(w, settings.base, settings.used);
    if (err == PS_OK) err = writer_put(w, &end, END_CHECKED);
    end.crc = writer_crc(w);
    if (err == PS_OK)
        err =
            writer_put(w, (const uint8_t *)&end + END_CHECKED, sizeof end - END_CHECKED);
    writer_crc(w);
    ps_mp_writer_fini(&table);
    ps_mp_writer_fini(&settings);
    return err;
}

static ps_err writer_all(row_writer *w, uint64_t version)
{
    PS_TRY(writer_list_dropped(w));
    PS_TRY(writer_put(w, MAGIC, sizeof MAGIC));
    writer_crc(w);
    const uint32_t last = w->table->end_partition;
    for (uint32_t p = w->table->first_partition, end; p < last; p = end) {
        end = ps_row_index_group_end(&w->table->index, p);
        if (end > last) end = last;
        PS_TRY(writer_partitions(w, p, end));
    }
    PS_TRY(writer_end(w, version));
    PS_TRY(writer_flush(w));
    return fsync(w->fd) == 0 ? PS_OK : ps_err_errno(PS_ERR_IO, "%s: syncing", w->path);
}

ps_err ps_row_file_write(const char *path, const ps_row_table *table, uint64_t since,
                         uint64_t version, uint64_t *bytes, uint32_t *crc)
{
    row_writer *w;
    if (since > 0 && since < table->drops_since)
        return ps_err_set(PS_ERR_ARG,
                          "table '%s': no incremental file since step %llu: it has not "
                          "noted what was dropped since then; write a full one first",
                          table->spec.name, (unsigned long long)since);
    PS_TRY(ps_mem_zalloc(&w, 1, sizeof *w + BUFFER_BYTES, "file of rows"));
    *w = (row_writer){.path = path, .table = table, .since = since, .fd = -1};
    w->buffer = (uint8_t *)(w + 1);
    ps_err err = ps_new_file_open(path, &w->fd);
    if (err == PS_OK) err = writer_all(w, version);
    if (w->fd >= 0 && close(w->fd) != 0 && err == PS_OK)
        err = ps_err_errno(PS_ERR_IO, "%s: closing", path);
    if (bytes) *bytes = w->offset;
    if (crc) *crc = w->crc;
    free(w->dropped);
    free(w);
    return err;
}

/* ---- Reading ---- */

static ps_err file_bad(const ps_row_file *file, const char *what)
{
    return ps_err_set(PS_ERR_FORMAT, "%s: %s", file->name, what);
}

/* Bytes that are within the file. */
static ps_err file_get(const ps_row_file *file, uint64_t offset, uint64_t n, void *out)
{
    uint8_t *to = out;
    if (file->fd < 0) {
        memcpy(to, file->bytes + offset, n);
        return PS_OK;
    }
    while (n > 0) {
        const ssize_t got = pread(file->fd, to, n, (off_t)offset);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return ps_err_errno(PS_ERR_IO, "%s: reading", file->name);
        if (got == 0) return file_bad(file, "it has become shorter");
        to += got;
        offset += (uint64_t)got;
        n -= (uint64_t)got;
    }
    return PS_OK;
}

static file_part file_part_at(const ps_row_file *file, uint32_t i)
{
    file_part part;
    memcpy(&part, file->contents + (uint64_t)i * sizeof part, sizeof part);
    return part;
}

static ps_err file_read_settings(ps_row_file *file, const void *bytes, uint64_t n)
{
    file_settings s;
    PS_TRY(ps_map_read(bytes, n, &settings_map, "settings", &s));
    PS_TRY(ps_row_spec_read(s.table.at, s.table.n, "table", &file->spec));
    file->since = s.since;
    file->version = s.version;
    file->first_partition = s.first;
    file->end_partition = s.end;
    return s.first <= s.end && s.since <= s.version
               ? PS_OK
               : file_bad(file, "its partitions or versions end before they begin");
}

/* Partitions ascend and lie one behind the other, each within the file. */
static ps_err file_check_contents(const ps_row_file *file)
{
    const uint64_t width = ps_row_spec_width(&file->spec);
    uint64_t at = sizeof MAGIC, least = file->first_partition;
    for (uint32_t i = 0; i < file->n_parts; i++) {
        const file_part part = file_part_at(file, i);
        if (part.number < least || part.number >= file->end_partition ||
            part.n_rows > part.n || part.offset != at || part.zero != 0)
            return file_bad(file, "its contents are damaged");
        at += row_part_bytes(&part, width);
        least = (uint64_t)part.number + 1;
    }
    return at == file->contents_from
               ? PS_OK
               : file_bad(file, "its contents do not say what is in it");
}

static ps_err file_read_frame(ps_row_file *file)
{
    char magic[sizeof MAGIC];
    file_end end;
    if (file->n_bytes < sizeof MAGIC + sizeof end) return file_bad(file, "it is cut");
    PS_TRY(file_get(file, 0, sizeof magic, magic));
    PS_TRY(file_get(file, file->n_bytes - sizeof end, sizeof end, &end));
    if (memcmp(magic, MAGIC, sizeof magic) != 0)
        return file_bad(file, "it is no file of rows");
    if (memcmp(end.magic, END_MAGIC, sizeof end.magic) != 0)
        return file_bad(file, "it is cut");
    const uint64_t from = end.contents, until = file->n_bytes - sizeof end;
    if (end.n_parts > PS_ROW_PARTITIONS || from < sizeof MAGIC || from > until ||
        end.settings > until || until - end.settings > SETTINGS_MOST ||
        end.settings < from ||
        end.settings - from != (uint64_t)end.n_parts * sizeof(file_part))
        return file_bad(file, "its end is damaged");
    const uint64_t n = until - from + END_CHECKED;
    PS_TRY(ps_mem_zalloc(&file->contents, n, 1, "contents of a file of rows"));
    PS_TRY(file_get(file, from, n, file->contents));
    if ((uint32_t)crc32_z(0, file->contents, n) != end.crc)
        return file_bad(file, "its checksum does not fit: it is damaged");
    file->n_parts = end.n_parts;
    file->contents_from = from;
    const ps_err err = file_read_settings(file, file->contents + (end.settings - from),
                                          until - end.settings);
    if (err != PS_OK) {
        ps_err_prefix(PS_ERR_FORMAT, "%s", file->name);
        return PS_ERR_FORMAT;
    }
    return file_check_contents(file);
}

ps_err ps_row_file_open(ps_row_file *file, const char *path)
{
    struct stat st;
    *file = (ps_row_file){.name = path, .fd = -1};
    PS_TRY(ps_regular_file_open(path, O_RDONLY, &file->fd));
    if (fstat(file->fd, &st) != 0) return ps_err_errno(PS_ERR_IO, "%s", path);
    file->n_bytes = (uint64_t)st.st_size;
    return file_read_frame(file);
}

ps_err ps_row_file_parse(ps_row_file *file, const char *name, const void *bytes,
                         uint64_t n)
{
    *file = (ps_row_file){.name = name, .fd = -1, .bytes = bytes, .n_bytes = n};
    return file_read_frame(file);
}

void ps_row_file_close(ps_row_file *file)
{
    if (file->fd >= 0) close(file->fd);
    free(file->contents);
    *file = (ps_row_file){.fd = -1};
}

/* A partition in memory. */
typedef struct part_view {
    const uint64_t *dropped, *ids;
    const uint32_t *versions, *counts;
    const float *rows;
} part_view;

static part_view part_view_of(const file_part *p, const void *bytes)
{
    part_view v;
    v.dropped = bytes;
    v.ids = v.dropped + p->n_dropped;
    v.versions = (const uint32_t *)(v.ids + p->n);
    v.counts = v.versions + p->n;
    v.rows = (const float *)(v.counts + p->n);
    return v;
}

/* Whether ids ascend and belong to the partition. */
static bool part_ids_fit(const ps_row_table *table, uint32_t number, const uint64_t *ids,
                         uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (i > 0 && ids[i] <= ids[i - 1]) return false;
        if (ps_row_partition(ps_row_hash(table->salt, ids[i])) != number) return false;
    }
    return true;
}

static ps_err part_check(const ps_row_file *file, const ps_row_table *table,
                         const file_part *p, const part_view *v)
{
    uint32_t n_rows = 0;
    for (uint32_t i = 0; i < p->n; i++) {
        n_rows += v->counts[i] == 0;
        if (v->versions[i] > file->version || v->counts[i] >= PS_ROW_CANDIDATE)
            return file_bad(file, "a version or count is out of range");
    }
    if (n_rows != p->n_rows || !part_ids_fit(table, p->number, v->ids, p->n) ||
        !part_ids_fit(table, p->number, v->dropped, p->n_dropped))
        return file_bad(file, "its ids are not in order, or not of their partition");
    return PS_OK;
}

static ps_err part_put(const file_part *p, const part_view *v, ps_row_table *table)
{
    const uint32_t width = ps_row_spec_width(&table->spec);
    const float *row = v->rows;
    for (uint32_t i = 0; i < p->n_dropped; i++)
        PS_TRY(ps_row_table_remove(table, v->dropped[i]));
    for (uint32_t i = 0; i < p->n; i++) {
        const ps_row_view view = {.id = v->ids[i],
                                  .version = v->versions[i],
                                  .count = v->counts[i],
                                  .row = v->counts[i] == 0 ? row : NULL};
        PS_TRY(ps_row_table_put(table, &view));
        if (view.row) row += width;
    }
    return PS_OK;
}

static ps_err file_load_part(const ps_row_file *file, const file_part *p,
                             ps_row_table *table)
{
    const uint64_t n = row_part_bytes(p, ps_row_spec_width(&table->spec));
    void *bytes;
    PS_TRY(ps_mem_zalloc(&bytes, n, 1, "a partition of rows"));
    ps_err err = file_get(file, p->offset, n, bytes);
    if (err == PS_OK && (uint32_t)crc32_z(0, bytes, n) != p->crc)
        err = file_bad(file, "its checksum does not fit: it is damaged");
    if (err == PS_OK) {
        const part_view v = part_view_of(p, bytes);
        err = part_check(file, table, p, &v);
        if (err == PS_OK) err = part_put(p, &v, table);
    }
    free(bytes);
    return err == PS_OK ? PS_OK : ps_err_prefix(err, "partition %u", p->number);
}

ps_err ps_row_file_load(const ps_row_file *file, ps_row_table *table)
{
    const ps_row_spec *has = &file->spec, *wants = &table->spec;
    if (strcmp(has->name, wants->name) != 0 || has->number != wants->number ||
        has->dim != wants->dim || has->optimizer != wants->optimizer)
        return ps_err_set(PS_ERR_SHAPE,
                          "%s: it has table %u '%s' with dim %u and optimizer %s, not "
                          "table %u '%s' with dim %u and %s",
                          file->name, has->number, has->name, has->dim,
                          ps_word_name(ps_row_optimizer_words, (int)has->optimizer),
                          wants->number, wants->name, wants->dim,
                          ps_word_name(ps_row_optimizer_words, (int)wants->optimizer));
    for (uint32_t i = 0; i < file->n_parts; i++) {
        const file_part part = file_part_at(file, i);
        if (part.number >= table->first_partition && part.number < table->end_partition)
            PS_TRY(file_load_part(file, &part, table));
    }
    return PS_OK;
}
