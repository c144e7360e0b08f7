/* safetensors: with the Python package in both directions, and files that lie. */
#include "model_file.h"
#include "model_spec.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../support/python.h"
#include "check.h"
#include "mem.h"

typedef struct model {
    ps_config cfg;
    ps_model_spec spec;
    float *params;
    void *buffers;
    char folder[64], path[96];
} model;

/* Element i of a tensor is i + length of its name / 4, see safetensors_check.py. */
static void fill(const ps_tensor *t, float *values)
{
    for (uint64_t i = 0; i < t->count; i++)
        values[i] = (float)i + 0.25f * (float)strlen(t->name);
}

static void fill_model(model *m)
{
    for (int i = 0; i < m->spec.table.n_tensors; i++)
        fill(&m->spec.table.tensors[i], m->params + m->spec.table.tensors[i].offset);
    for (int i = 0; i < m->spec.table.n_buffers; i++) {
        const ps_tensor *t = &m->spec.table.buffers[i];
        void *values = (char *)m->buffers + t->offset;
        if (t->role == PS_TENSOR_COUNTER)
            *(int64_t *)values = 7;
        else
            fill(t, values);
    }
}

static void make(model *m)
{
    const char *set[] = {
        "model.input=[1, 5, 5]", "model.loss=mse",
        "model.layers=[{conv2d: {name: conv, out: 2, kernel: 3}}, {batch_norm2d: {name: "
        "bn}}, flatten, {linear: {name: fc, out: 3}}]"};
    *m = (model){.folder = "/tmp/pstrain-safetensors-XXXXXX"};
    assert_non_null(mkdtemp(m->folder));
    snprintf(m->path, sizeof m->path, "%s/model.safetensors", m->folder);
    assert_ok(ps_config_load(&m->cfg, NULL, set, 3));
    assert_ok(ps_model_spec_init(&m->spec, &m->cfg));
    assert_ok(ps_mem_zalloc(&m->params, m->spec.table.arena_count, 4, "params"));
    assert_ok(ps_mem_zalloc(&m->buffers, m->spec.table.buffer_bytes, 1, "buffers"));
    fill_model(m);
}

static void tear(model *m)
{
    unlink(m->path);
    assert_int_equal(rmdir(m->folder), 0); // nothing is left beside it
    free(m->params);
    free(m->buffers);
    ps_model_spec_fini(&m->spec);
    ps_config_fini(&m->cfg);
}

static ps_err save(const model *m)
{
    const char *metadata[] = {"format", "pt", "step", "12 \"quoted\""};
    return ps_model_file_save(m->path, &m->spec.table, m->params, m->buffers, metadata,
                              2);
}

/* Loads into zeroed arenas and compares them with the model's, gaps included. */
static void assert_loads_equal(const model *m)
{
    float *params = calloc(m->spec.table.arena_count, 4);
    void *buffers = calloc(m->spec.table.buffer_bytes, 1);
    assert_ok(ps_model_file_load(m->path, &m->spec.table, true, params, buffers));
    assert_memory_equal(params, m->params, m->spec.table.arena_count * 4);
    assert_memory_equal(buffers, m->buffers, m->spec.table.buffer_bytes);
    free(params);
    free(buffers);
}

TEST(what_is_saved_is_loaded)
{
    model m;
    make(&m);
    assert_ok(save(&m));
    assert_loads_equal(&m);
    ps_st_file file;
    assert_ok(ps_st_load(m.path, &file));
    assert_int_equal(file.n, 9);
    const ps_st_tensor *t = ps_st_find(&file, "bn.num_batches_tracked");
    assert_string_equal(t->dtype, "I64");
    assert_int_equal(t->dims.n, 0);
    assert_null(ps_st_find(&file, "__metadata__"));
    ps_st_fini(&file);
    tear(&m);
}

TEST(the_header_is_padded_to_eight)
{
    model m;
    make(&m);
    assert_ok(save(&m));
    unsigned char length[9];
    FILE *in = fopen(m.path, "rb");
    assert_int_equal(fread(length, 1, 9, in), 9);
    fclose(in);
    assert_int_equal(length[0] % 8, 0);
    assert_int_equal(length[8], '{');
    tear(&m);
}

TEST(pythons_package_reads_ours)
{
    model m;
    char arguments[160];
    make(&m);
    assert_ok(save(&m));
    snprintf(arguments, sizeof arguments, "read %s", m.path);
    int status = python_run("safetensors_check.py", arguments);
    tear(&m);
    if (status == PYTHON_SKIP || status == PYTHON_MISSING) skip();
    assert_int_equal(status, 0);
}

TEST(we_read_pythons_package)
{
    model m;
    char arguments[160];
    make(&m);
    snprintf(arguments, sizeof arguments, "write %s", m.path);
    int status = python_run("safetensors_check.py", arguments);
    if (status == 0) assert_loads_equal(&m);
    tear(&m);
    if (status == PYTHON_SKIP || status == PYTHON_MISSING) skip();
    assert_int_equal(status, 0);
}

/* A limit on the size of files acts like a disk that is full after that many bytes. */
TEST(a_full_disk_leaves_the_old_file)
{
    model m;
    char temporary[128];
    struct rlimit limit, old;
    make(&m);
    assert_ok(save(&m));
    snprintf(temporary, sizeof temporary, "%s.tmp", m.path);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    limit = old, limit.rlim_cur = 100;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    m.params[0] += 1;
    ps_err err = save(&m);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_error(err, PS_ERR_IO, "File too large");
    assert_non_null(strstr(ps_err_message(), m.path));
    assert_int_not_equal(access(temporary, F_OK), 0);
    m.params[0] -= 1;
    assert_loads_equal(&m);
    tear(&m);
}

/* Whether the folder's file system has files without a name. */
static bool has_nameless(const char *path)
{
    const int fd = open(path, O_TMPFILE | O_WRONLY, 0600);
    if (fd >= 0) close(fd);
    return fd >= 0;
}

static int count_files(const char *path)
{
    int n = 0;
    DIR *dir = opendir(path);
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir));)
        n += e->d_name[0] != '.';
    closedir(dir);
    return n;
}

/* A writer that is killed has not got to the end. */
TEST(a_file_written_piece_by_piece_has_a_name_only_at_its_end)
{
    model m;
    ps_st_writer w;
    ps_st_file file;
    const int32_t values[] = {3, 5};
    const ps_st_tensor tensor = {
        .name = (char *)"a", .dtype = "F32", .dims = {1, {2}}, .bytes = sizeof values};
    if (!has_nameless("/tmp")) skip();
    make(&m);
    const int before = count_files(m.folder);
    assert_ok(ps_st_begin(&w, m.path, &tensor, 1, NULL, 0));
    assert_ok(ps_st_put(&w, 0, values, sizeof values));
    assert_int_equal(count_files(m.folder), before);
    assert_int_equal(ps_st_end(&w, PS_ERR_IO), PS_ERR_IO);
    assert_int_equal(count_files(m.folder), before);
    assert_ok(ps_st_begin(&w, m.path, &tensor, 1, NULL, 0));
    assert_ok(ps_st_put(&w, 0, values, sizeof values));
    assert_ok(ps_st_end(&w, PS_OK));
    assert_ok(ps_st_load(m.path, &file));
    assert_memory_equal(file.tensors[0].data, values, sizeof values);
    ps_st_fini(&file);
    tear(&m);
}

static void write_text(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0 && fclose(f) == 0);
}

/* What was synced last, and whether a file that got a name had been synced before. The
 * program's own calls come here. */
static ino_t synced;
static bool named_unsynced;

int fsync(int fd)
{
    struct stat st;
    if (fstat(fd, &st) == 0) synced = st.st_ino;
    return (int)syscall(SYS_fsync, fd);
}

int rename(const char *from, const char *to)
{
    struct stat st;
    named_unsynced |= stat(from, &st) == 0 && st.st_ino != synced;
    return renameat(AT_FDCWD, from, AT_FDCWD, to); // aarch64 has no SYS_rename
}

/* After a power cut a name has the old content or the new. */
TEST(it_is_on_the_disk_before_it_has_its_name)
{
    model m;
    struct stat folder;
    make(&m);
    synced = 0;
    named_unsynced = false;
    assert_ok(save(&m));
    assert_false(named_unsynced);
    assert_int_equal(stat(m.folder, &folder), 0);
    assert_true(synced == folder.st_ino); // last, so the name is there, too
    tear(&m);
}

/* If a link lies there, the file to which it points must not be overwritten. */
TEST(what_stands_in_the_way_is_taken_away)
{
    model m;
    char temporary[128], victim[128], text[16] = "";
    make(&m);
    snprintf(temporary, sizeof temporary, "%s.tmp", m.path);
    snprintf(victim, sizeof victim, "%s/victim", m.folder);
    write_text(victim, "untouched");
    for (int i = 0; i < 3; i++) {
        if (i == 0) write_text(temporary, "of a run that died");
        if (i == 1) assert_int_equal(symlink(victim, temporary), 0);
        if (i == 2) assert_int_equal(link(victim, temporary), 0);
        assert_ok(save(&m));
        assert_int_not_equal(access(temporary, F_OK), 0);
        assert_loads_equal(&m);
    }
    FILE *f = fopen(victim, "r");
    assert_non_null(f);
    assert_non_null(fgets(text, sizeof text, f));
    fclose(f);
    assert_string_equal(text, "untouched");
    assert_int_equal(mkdir(temporary, 0700), 0);
    assert_error(save(&m), PS_ERR_IO, temporary);
    rmdir(temporary);
    unlink(victim);
    tear(&m);
}

TEST(a_missing_folder_is_named)
{
    model m;
    make(&m);
    char kept[sizeof m.path];
    memcpy(kept, m.path, sizeof kept);
    snprintf(m.path, sizeof m.path, "%s/none/m.safetensors", m.folder);
    assert_error(save(&m), PS_ERR_IO, "No such file");
    assert_int_equal(ps_model_file_load(m.path, &m.spec.table, true, m.params, m.buffers),
                     PS_ERR_IO);
    assert_error(ps_model_file_load("/tmp", &m.spec.table, true, m.params, m.buffers),
                 PS_ERR_IO, "is not a regular file");
    memcpy(m.path, kept, sizeof kept);
    tear(&m);
}

/* Parses a file of this header, without padding, and n_data bytes of zeros. */
static ps_err parse_padded(const char *json, uint64_t claimed, size_t n_data)
{
    unsigned char bytes[2048] = {0};
    size_t n = strlen(json);
    for (int i = 0; i < 8; i++)
        bytes[i] = (unsigned char)(claimed >> (8 * i));
    memcpy(bytes + 8, json, n);
    ps_st_file file;
    ps_err err = ps_st_parse("bad.st", bytes, 8 + n + n_data, &file);
    ps_st_fini(&file);
    return err;
}

static ps_err parse(const char *json, size_t n_data)
{
    return parse_padded(json, strlen(json), n_data);
}

static void assert_bad(const char *json, size_t n_data, const char *message)
{
    assert_error(parse(json, n_data), PS_ERR_FORMAT, message);
}

#define F32(name, shape, begin, end)                                                     \
    "\"" name "\":{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":[" #begin      \
    "," #end "]}"

TEST(legal_files_are_read)
{
    assert_ok(parse("{}", 0));
    assert_ok(parse("{}      ", 0));
    assert_ok(parse("{" F32("a", "[]", 0, 4) "}", 4));
    assert_ok(parse("{" F32("a", "[3,0]", 0, 0) "}", 0));
    assert_ok(parse("{" F32("b", "[1]", 4, 8) "," F32("a", "[1]", 0, 4) "}", 8));
    assert_ok(parse("{" F32("b", "[1]", 0, 4) "," F32("a", "[0,5]", 4, 4) "}", 4));
    assert_ok(parse("{\"__metadata__\":{\"a\":\"b\"}}", 0));
}

TEST(headers_that_lie_are_refused)
{
    assert_bad(" {}", 0, "not a JSON map");
    assert_bad("[]", 0, "not a JSON map");
    assert_bad("{", 0, "header, byte");
    assert_bad("{} x", 0, "header, byte");
    assert_error(parse_padded("{}", 100, 4), PS_ERR_FORMAT,
                 "a header of 100 bytes in a file of 14");
    assert_error(parse_padded("{}", 100000001, 4), PS_ERR_FORMAT, "at most 100000000");
    assert_int_equal(parse_padded("{}", UINT64_MAX, 4), PS_ERR_FORMAT);
    assert_bad("{\"__metadata__\":{\"a\":1}}", 0, "\"a\" is not a text");
    assert_bad("{\"__metadata__\":[]}", 0, "is not a map");
    ps_st_file file;
    assert_int_equal(ps_st_parse("bad.st", "\2\0\0", 3, &file), PS_ERR_FORMAT);
}

TEST(entries_that_lie_are_refused)
{
    assert_bad("{" F32("a", "[1]", 0, 4) "," F32("a", "[1]", 4, 8) "}", 8, "duplicate");
    assert_bad("{" F32("a", "[2]", 0, 4) "}", 4, "a: data_offsets hold 4 bytes");
    assert_bad("{" F32("a", "[-1]", 0, 4) "}", 4, "dimension 0 is not a count");
    assert_bad("{" F32("a", "[1.0]", 0, 4) "}", 4, "dimension 0 is not a count");
    assert_bad("{" F32("a", "[4294967296,4294967296]", 0, 0) "}", 0, "overflows");
    assert_bad("{" F32("a", "[4611686018427387904]", 0, 0) "}", 0, "overflows");
    assert_bad("{" F32("a", "[9223372036854775807,2]", 0, 0) "}", 0, "overflows");
    assert_bad("{" F32("a", "[1,1,1,1,1]", 0, 4) "}", 4, "5 dimensions");
    assert_bad("{" F32("a", "3", 0, 12) "}", 12, "shape is not a list");
    assert_bad("{" F32("a", "[1]", 4, 0) "}", 4, "not [begin, end]");
    assert_bad("{" F32("a", "[1]", 0, 99999999999999999999) "}", 4, "header, byte");
    assert_bad("{\"a\":3}", 0, "dtype (none)");
    assert_bad("{\"a\":{\"dtype\":\"F33\",\"shape\":[],\"data_offsets\":[0,4]}}", 4,
               "dtype F33 is not known");
    assert_bad("{\"a\":{\"dtype\":\"F32\",\"shape\":[]}}", 4, "are allowed");
}

TEST(layouts_that_lie_are_refused)
{
    assert_bad("{" F32("a", "[1]", 0, 4) "," F32("b", "[1]", 8, 12) "}", 12,
               "b: begins at 8, behind a hole (4)");
    assert_bad("{" F32("a", "[2]", 0, 8) "," F32("b", "[1]", 4, 8) "}", 8,
               "b: begins at 4, within the tensor before (8)");
    assert_bad("{" F32("a", "[1]", 4, 8) "}", 8, "behind a hole");
    assert_bad("{" F32("a", "[1]", 0, 4) "}", 3, "have 4 bytes, the file has 3");
    assert_bad("{" F32("a", "[1]", 0, 4) "}", 5, "have 4 bytes, the file has 5");
    assert_bad("{}", 1, "have 0 bytes, the file has 1");
}

/* The first n bytes of a good file. */
TEST(every_truncation_is_refused)
{
    model m;
    make(&m);
    assert_ok(save(&m));
    struct stat st;
    assert_int_equal(stat(m.path, &st), 0);
    for (off_t n = st.st_size - 1; n >= 0; n -= n > 600 ? 97 : 13) {
        assert_int_equal(truncate(m.path, n), 0);
        ps_err err = ps_model_file_load(m.path, &m.spec.table, true, m.params, m.buffers);
        assert_error(err, PS_ERR_FORMAT, m.path);
    }
    tear(&m);
}

static void assert_other_model_refused(model *m, const char *const *set,
                                       const char *message)
{
    model other = {.folder = ""};
    assert_ok(ps_config_load(&other.cfg, NULL, set, 3));
    assert_ok(ps_model_spec_init(&other.spec, &other.cfg));
    float *params = calloc(other.spec.table.arena_count, 4);
    void *buffers = calloc(other.spec.table.buffer_bytes + 1, 1);
    assert_error(ps_model_file_load(m->path, &other.spec.table, true, params, buffers),
                 PS_ERR_FORMAT, message);
    free(params);
    free(buffers);
    ps_model_spec_fini(&other.spec);
    ps_config_fini(&other.cfg);
}

TEST(a_file_of_another_model_is_refused)
{
    model m;
    make(&m);
    assert_ok(save(&m));
    const char *missing[] = {
        "model.input=[1, 5, 5]", "model.loss=mse",
        "model.layers=[{conv2d: {name: conv, out: 2, kernel: 3}}, {batch_norm2d: {name: "
        "bn}}, flatten, {linear: {name: fc, out: 3}}, {linear: {name: fc2, out: 3}}]"};
    assert_other_model_refused(&m, missing, "fc2.weight: missing, the model has it");
    const char *besides[] = {"model.input=[1, 5, 5]", "model.loss=mse",
                             "model.layers=[{conv2d: {name: conv, out: 2, kernel: 3}}, "
                             "flatten, {linear: {name: fc, out: 3}}]"};
    assert_other_model_refused(&m, besides, "the model has no such tensor");
    const char *shape[] = {
        "model.input=[1, 5, 5]", "model.loss=mse",
        "model.layers=[{conv2d: {name: conv, out: 2, kernel: 3}}, {batch_norm2d: {name: "
        "bn}}, flatten, {linear: {name: fc, out: 4}}]"};
    assert_other_model_refused(&m, shape,
                               "fc.weight: shape is (3, 18), the model's is (4, 18)");
    tear(&m);
}
