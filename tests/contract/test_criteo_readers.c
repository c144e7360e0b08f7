/* One suite over all readers of Criteo's files, of plain text and by gzip: drawn lines
 * are read as they were drawn, more of them than a reader holds at once, and all readers
 * name the same mistake in the same words. */
#include <math.h>

#include "check.h"
#include "criteo.h"
#include "rng.h"
#include "temp_files.h"

/* Text of some 3 MiB: readers take 1 MiB and 4,096 samples at a time. */
enum { LINES = 13000, LINE_BYTES = 512 };

typedef struct reader {
    const char *name;
    bool of_text, takes_unlabelled;
    ps_err (*read)(char *path, ps_dataset *out);
} reader;

static char *lines;     // of the file; owned
static size_t n_bytes;  // of them
static int64_t *counts; // (LINES, 13) -1: negative or missing
static int64_t *ids;    // (LINES, 26)
static uint8_t *labels; // (LINES)

/* ---- the readers ---- */

static ps_err read_all(char *path, ps_dataset *out)
{
    char *const paths[] = {path};
    return ps_criteo_read(paths, 1, out);
}

static ps_err read_stored(char *path, ps_dataset *out)
{
    char *const paths[] = {path};
    return ps_criteo_open(paths, 1, NULL, out);
}

static ps_err read_new(char *path, ps_dataset *out)
{
    return ps_criteo_open_new(path, out);
}

static ps_err read_text(char *path, ps_dataset *out)
{
    char *text = malloc(n_bytes + 1);
    assert_non_null(text);
    memcpy(text, lines, n_bytes);
    const ps_err err = ps_criteo_parse_new(path, text, n_bytes, out);
    free(text);
    return err;
}

static const reader readers[] = {{"into memory", false, false, read_all},
                                 {"into a file", false, false, read_stored},
                                 {"new ones of a file", false, true, read_new},
                                 {"new ones of a text", true, true, read_text}};
enum { READERS = sizeof readers / sizeof *readers };

/* ---- the lines ---- */

static char *draw_count(ps_mt19937 *g, char *at, int64_t *out)
{
    const uint32_t kind = ps_mt19937_u32(g) % 8;
    const int64_t count = (int64_t)(ps_mt19937_u64(g) >> (8 + ps_mt19937_u32(g) % 55));
    *out = kind < 2 ? -1 : count;
    if (kind == 0) return at;
    return at + sprintf(at, "%s%lld", kind == 1 ? "-" : "", (long long)count);
}

static char *draw_id(ps_mt19937 *g, char *at, int64_t *out)
{
    const uint32_t kind = ps_mt19937_u32(g) % 8;
    const uint64_t id = ps_mt19937_u64(g) >> (1 + ps_mt19937_u32(g) % 60);
    *out = kind == 0 ? INT64_C(1) << 32 : (int64_t)id;
    if (kind == 0) return at;
    return at + sprintf(at,
                        kind == 1   ? "%016llX"
                        : kind == 2 ? "%08llx"
                                    : "%llx",
                        (unsigned long long)id);
}

static void draw_lines(bool labelled)
{
    ps_mt19937 g;
    ps_mt19937_seed(&g, 11);
    char *at = lines;
    for (int64_t i = 0; i < LINES; i++) {
        const char *const end = ps_mt19937_u32(&g) % 4 ? "\n" : "\r\n\n";
        labels[i] = labelled && ps_mt19937_u32(&g) % 3 == 0;
        if (labelled) at += sprintf(at, "%d\t", labels[i]);
        for (int k = 0; k < PS_CRITEO_COUNTS; k++, *at++ = '\t')
            at = draw_count(&g, at, &counts[i * PS_CRITEO_COUNTS + k]);
        for (int k = 0; k < PS_CRITEO_IDS; k++, *at++ = '\t')
            at = draw_id(&g, at, &ids[i * PS_CRITEO_IDS + k]);
        at = stpcpy(at - 1, end); // the last tab is none
    }
    n_bytes = (size_t)(at - lines);
    assert_in_range(n_bytes, 2 << 20, LINES * LINE_BYTES);
}

static int make_room(void **state)
{
    lines = malloc(LINES * LINE_BYTES);
    counts = calloc(LINES, PS_CRITEO_COUNTS * sizeof *counts);
    ids = calloc(LINES, PS_CRITEO_IDS * sizeof *ids);
    labels = calloc(LINES, 1);
    return lines && counts && ids && labels ? 0 : -1;
}

static int free_room(void **state)
{
    free(lines);
    free(counts);
    free(ids);
    free(labels);
    return 0;
}

/* As plain text, by gzip, or as two gzip files, one behind the other. */
enum { PLAIN, GZIP, TWO_GZIP, FORMS };

static void write_lines(int form)
{
    const size_t first = form == TWO_GZIP ? n_bytes / 3 : n_bytes;
    if (form == PLAIN) assert_int_equal(temp_write("clicks", lines, n_bytes), 0);
    if (form == PLAIN) return;
    gzFile f = gzopen(temp_path("clicks"), "wb1");
    assert_non_null(f);
    assert_int_equal(gzwrite(f, lines, (unsigned)first), (int)first);
    assert_int_equal(gzclose(f), Z_OK);
    if (first == n_bytes) return;
    f = gzopen(temp_path("clicks"), "ab1");
    assert_non_null(f);
    assert_int_equal(gzwrite(f, lines + first, (unsigned)(n_bytes - first)),
                     (int)(n_bytes - first));
    assert_int_equal(gzclose(f), Z_OK);
}

/* ---- the checks ---- */

static void check_sample(const ps_dataset *set, int64_t i)
{
    char room[PS_CRITEO_COUNTS * sizeof(float) + PS_CRITEO_IDS * sizeof(int64_t)];
    float values[PS_CRITEO_COUNTS];
    int64_t has[PS_CRITEO_IDS];
    if (set->stream) {
        assert_ok(ps_sample_file_read(set->stream, i, room));
        memcpy(values, room, sizeof values);
        memcpy(has, ps_sample_file_more(set->stream, room), sizeof has);
    } else {
        memcpy(values, (float *)set->values + i * PS_CRITEO_COUNTS, sizeof values);
        memcpy(has, set->ids + i * PS_CRITEO_IDS, sizeof has);
    }
    assert_int_equal(set->labels[i], labels[i]);
    for (int k = 0; k < PS_CRITEO_COUNTS; k++) {
        const int64_t count = counts[i * PS_CRITEO_COUNTS + k];
        assert_true(values[k] == (float)log1p(count > 0 ? (double)count : 0));
    }
    for (int k = 0; k < PS_CRITEO_IDS; k++)
        assert_true(has[k] == ids[i * PS_CRITEO_IDS + k]);
}

static void check_readers(int form, bool labelled)
{
    for (int r = 0; r < READERS; r++) {
        ps_dataset set;
        if ((readers[r].of_text && form != PLAIN) ||
            (!labelled && !readers[r].takes_unlabelled))
            continue;
        if (readers[r].read(folder.name, &set) != PS_OK)
            fail_msg("%s: %s", readers[r].name, ps_err_message());
        assert_int_equal(set.n, LINES);
        assert_int_equal(set.answered, labelled);
        for (int64_t i = 0; i < LINES; i++)
            check_sample(&set, i);
        ps_dataset_fini(&set);
    }
}

IN_FOLDER(all_readers_read_what_was_drawn)
{
    for (int labelled = 0; labelled < 2; labelled++) {
        draw_lines(labelled);
        for (int form = 0; form < FORMS; form++) {
            write_lines(form);
            check_readers(form, labelled);
        }
    }
}

/* says: behind the path. */
static void refused_by_all(bool text, const char *says)
{
    char wanted[512];
    snprintf(wanted, sizeof wanted, "%s%s", folder.name, says);
    for (int r = 0; r < READERS; r++) {
        ps_dataset set;
        if (readers[r].of_text && !text) continue;
        const ps_err err = readers[r].read(folder.name, &set);
        if (err != PS_ERR_FORMAT ||
            strncmp(ps_err_message(), wanted, strlen(wanted)) != 0)
            fail_msg("%s: %d, \"%s\", not \"%s\"", readers[r].name, err, ps_err_message(),
                     wanted);
        assert_true(!set.values && !set.ids && !set.labels && !set.stream);
    }
}

/* Of a line far behind the first MiB. */
IN_FOLDER(all_readers_name_the_same_mistake)
{
    draw_lines(true);
    char *at = lines + n_bytes * 3 / 4;
    at = strchr(at, '\n') + 1;
    while (*at == '\n') // an empty line
        at++;
    int64_t line = 1;
    for (const char *c = lines; c < at; c++)
        line += *c == '\n';
    *at = '7';
    char says[128];
    snprintf(says, sizeof says, ":%lld: column 1: \"7\" is not a label, 0 or 1",
             (long long)line);
    for (int form = 0; form < FORMS; form++) {
        write_lines(form);
        refused_by_all(form == PLAIN, says);
    }
}

IN_FOLDER(a_gzip_file_that_is_cut)
{
    draw_lines(true);
    write_lines(GZIP);
    FILE *f = fopen(folder.name, "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    const long bytes = ftell(f);
    fclose(f);
    assert_int_equal(truncate(folder.name, bytes - 20), 0);
    refused_by_all(false, ": the gzip file is truncated");
}

int main(int argc, char **argv)
{
    if (argc > 1 && !check_choose(argv[1])) return 2;
    return check_run(make_room, free_room);
}
