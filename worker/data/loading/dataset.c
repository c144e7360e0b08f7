#include "dataset.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cifar.h"
#include "criteo.h"
#include "csv.h"
#include "data_files.h"
#include "faulty_pictures.h"
#include "idx.h"
#include "image_folder.h"
#include "mem.h"
#include "model_file.h"
#include "npy.h"
#include "picture.h"
#include "readable.h"
#include "regular_file.h"
#include "stl10.h"
#include "synthetic.h"
#include "table_fit.h"
#include "test_part.h"

enum { MAX_DEFAULT_SETS = 3 };

/* A kind of dataset: its reader, how many files a split has (0: any number), and the
 * default files when the configuration names none (each may end in .gz). */
typedef struct reader {
    ps_err (*read)(char *const *paths, int n_paths, ps_dataset *out);
    ps_err (*read_wanted)(char *const *paths, int n_paths, const ps_wanted *wanted,
                          ps_dataset *out); // instead, of labels or numbers
    ps_err (*open_wanted)(char *const *paths, int n_paths, const ps_wanted *wanted,
                          ps_dataset *out); // instead, with data.stream
    int n_files;
    const char *train[MAX_DEFAULT_SETS];
    const char *test[MAX_DEFAULT_SETS];
    const char *names; // a file beside them, which may be missing (class_names.h)
} reader;

static const reader readers[PS_DATA_KINDS] = {
    [PS_DATA_IDX] = {.read = ps_idx_read,
                     .n_files = 2,
                     .train = {"train-images-idx3-ubyte,train-labels-idx1-ubyte"},
                     .test = {"t10k-images-idx3-ubyte,t10k-labels-idx1-ubyte",
                              "test-images-idx3-ubyte,test-labels-idx1-ubyte"}},
    [PS_DATA_CIFAR10] =
        {.read = ps_cifar10_read,
         .train = {"data_batch_1.bin,data_batch_2.bin,data_batch_3.bin,data_batch_4.bin,"
                   "data_batch_5.bin"},
         .test = {"test_batch.bin"},
         .names = "batches.meta.txt"},
    [PS_DATA_CIFAR100] = {.read = ps_cifar100_read,
                          .train = {"train.bin"},
                          .test = {"test.bin"},
                          .names = "fine_label_names.txt"},
    [PS_DATA_STL10] = {.read = ps_stl10_read,
                       .n_files = 2,
                       .train = {"train_X.bin,train_y.bin"},
                       .test = {"test_X.bin,test_y.bin"},
                       .names = "class_names.txt"},
    [PS_DATA_NPY] = {.read_wanted = ps_npy_read,
                     .open_wanted = ps_npy_open,
                     .n_files = 2,
                     .train = {"train_x.npy,train_y.npy"},
                     .test = {"test_x.npy,test_y.npy"},
                     .names = "class_names.txt"},
    [PS_DATA_CSV] = {.train = {"train.csv", "train.tsv"},
                     .test = {"test.csv", "test.tsv"},
                     .names = "class_names.txt"},
    [PS_DATA_CRITEO] = {.read = ps_criteo_read,
                        .open_wanted = ps_criteo_open,
                        .train = {"train.txt", "train.tsv"},
                        .test = {"test.tsv"}},
};

static const char *dataset_word_of(const reader *r)
{
    return ps_word_name(ps_data_words, (int)(r - readers));
}

typedef struct path_list {
    int n;
    char *paths[PS_DATA_MAX_FILES];
} path_list;

static void path_list_fini(path_list *list)
{
    for (int i = 0; i < list->n; i++)
        free(list->paths[i]);
    list->n = 0;
}

/* Also a link that leads nowhere: to leave it out would be silent. */
static bool is_there(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0;
}

/* Adds folder/name; with or_gz, folder/name.gz when only that exists. */
static ps_err add_path(path_list *list, const char *folder, const char *name, bool or_gz)
{
    char *path = NULL, *gz = NULL;
    PS_TRY(ps_data_path(folder, name, &path));
    list->paths[list->n++] = path;
    if (!or_gz || is_there(path)) return PS_OK;
    if (asprintf(&gz, "%s.gz", path) < 0)
        return ps_err_set(PS_ERR_NOMEM, "%s: no memory", path);
    if (is_there(gz)) {
        list->paths[list->n - 1] = gz;
        gz = path;
    }
    free(gz);
    return PS_OK;
}

/* Fills list with the first set whose files all exist; leaves it empty when there is
 * none. Sets *any where there is one of a set's files. */
static ps_err find_default(path_list *list, const char *folder,
                           const char *const sets[MAX_DEFAULT_SETS], bool *any)
{
    for (int i = 0; i < MAX_DEFAULT_SETS && sets[i] != NULL; i++) {
        ps_data_spec names;
        ps_err err = ps_data_spec_init(&names, "default files", sets[i]);
        for (int k = 0; k < names.n_files && err == PS_OK; k++)
            err = add_path(list, folder, names.files[k], true);
        ps_data_spec_fini(&names);
        PS_TRY(err);
        int n_there = 0;
        for (int k = 0; k < list->n; k++)
            n_there += is_there(list->paths[k]);
        *any |= n_there > 0;
        if (n_there == list->n) return PS_OK;
        path_list_fini(list);
    }
    return PS_OK;
}

/* Finds the files of a split: those that are named; else the split's default files; else,
 * for a bare range, the other split's (such as MNIST's t10k files cut in two). Finds none
 * for a test set that is neither named nor present. */
static ps_err find_files(const reader *kind, const ps_data_spec *spec, ps_split split,
                         const char *folder, path_list *list)
{
    for (int i = 0; i < spec->n_files; i++)
        PS_TRY(add_path(list, folder, spec->files[i], false));
    if (list->n > 0) return PS_OK;
    bool train = split == PS_SPLIT_TRAIN;
    const char *const *own = train ? kind->train : kind->test;
    bool any = false;
    PS_TRY(find_default(list, folder, own, &any));
    if (list->n == 0 && spec->has_range)
        PS_TRY(find_default(list, folder, train ? kind->test : kind->train, &any));
    if (list->n > 0) return PS_OK;
    // A test set may be missing, but not only some of its files.
    if (!train && !spec->has_range && !any) return PS_OK;
    return ps_err_set(PS_ERR_IO,
                      "%s does not have the %s files %s (or .gz); name the files, or set "
                      "data.path",
                      folder, dataset_word_of(kind), own[0]);
}

static ps_err read_paths(const reader *kind, bool stream, const path_list *list,
                         const ps_wanted *wanted, ps_dataset *out)
{
    if (stream && kind->open_wanted)
        return kind->open_wanted(list->paths, list->n, wanted, out);
    if (kind->read_wanted) return kind->read_wanted(list->paths, list->n, wanted, out);
    return kind->read(list->paths, list->n, out);
}

/* The files of a split; none: there is no test set. */
static ps_err list_files(const ps_config *cfg, const ps_data_spec *spec, ps_split split,
                         path_list *list)
{
    const reader *kind = &readers[cfg->data.kind];
    char *folder = NULL;
    PS_TRY(ps_data_folder(cfg->data.path, cfg->file, &folder));
    const ps_err err = find_files(kind, spec, split, folder, list);
    free(folder);
    PS_TRY(err);
    if (list->n == 0 || kind->n_files == 0 || list->n == kind->n_files) return PS_OK;
    return ps_err_set(PS_ERR_CONFIG, "%s data needs %d files; the configuration names %d",
                      dataset_word_of(kind), kind->n_files, list->n);
}

static ps_err dataset_read_files(const ps_config *cfg, const ps_data_spec *spec,
                                 ps_split split, const ps_wanted *wanted, ps_dataset *out)
{
    const reader *kind = &readers[cfg->data.kind];
    path_list list = {0};
    ps_err err = list_files(cfg, spec, split, &list);
    if (err == PS_OK && list.n > 0)
        err = read_paths(kind, cfg->data.stream, &list, wanted, out);
    if (err == PS_OK && wanted->numbers && wanted->n == 1 && out->labels)
        err = ps_dataset_labels_to_targets(out);
    path_list_fini(&list);
    return err;
}

static ps_err make_synthetic(const ps_config *cfg, const ps_data_spec *spec,
                             ps_split split, const ps_dims *want, const ps_wanted *wanted,
                             ps_dataset *out)
{
    if (spec->n_files > 0)
        return ps_err_set(PS_ERR_CONFIG,
                          "synthetic data has no files, but \"%s\" is named: set "
                          "data.kind to what it is, such as csv",
                          spec->files[0]);
    bool train = split == PS_SPLIT_TRAIN;
    if (!train && cfg->data.test_samples == 0) return PS_OK; // evaluation is off
    const ps_synthetic_spec made = {
        .seed = cfg->data.seed,
        .split = train ? 0 : 1,
        .n = train ? cfg->data.samples : cfg->data.test_samples,
        .dims = *want,
        .n_classes = wanted->n,
        .label_noise = cfg->data.label_noise,
    };
    if (cfg->data.kind == PS_DATA_SYNTHETIC) return ps_synthetic_make(&made, out);
    PS_TRY(ps_synthetic_clicks(&made, out));
    return wanted->numbers ? ps_dataset_labels_to_targets(out) : PS_OK;
}

/* --- pictures ------------------------------------------------------------------------
 */

/* A picture's size when it is a sample: data.crop, else the model's input. */
static ps_err set_picture_dims(const ps_config *cfg, const ps_dims *want, ps_dims *out)
{
    const ps_int_list *crop = &cfg->data.crop;
    *out = want->n == 3 ? *want : (ps_dims){3, {3, 0, 0}};
    if (out->d[0] != 1 && out->d[0] != 3)
        return ps_err_set(PS_ERR_SHAPE,
                          "pictures have 3 channels, or 1 as gray; model.input has %lld",
                          (long long)out->d[0]);
    if (crop->n > 0) {
        out->d[1] = crop->v[0];
        out->d[2] = crop->v[crop->n > 1 ? 1 : 0];
    }
    if (out->d[1] > 0) return PS_OK;
    return ps_err_set(PS_ERR_CONFIG, "pictures need a size: set data.crop, or a "
                                     "model.input of [C, H, W]");
}

typedef struct readable_pictures {
    int64_t *rows, n; // owned
} readable_pictures;

static void note_readable(void *ctx, int64_t i, ps_err err)
{
    readable_pictures *r = ctx;
    if (err == PS_OK) r->rows[r->n++] = i;
}

/* data.unreadable=skip: reads all pictures once, and leaves out those that cannot be. */
static ps_err skip_unreadable(const ps_config *cfg, ps_dataset *set)
{
    readable_pictures r = {0};
    ps_faulty_pictures f = {0};
    if (cfg->data.unreadable != PS_UNREADABLE_SKIP || set->n == 0) return PS_OK;
    PS_TRY(PS_NEW(&r.rows, (size_t)set->n, "pictures"));
    ps_err err = ps_faulty_pictures_find(
        &f, &cfg->data, set, ps_deadline_in_ms(UINT64_MAX), note_readable, &r);
    if (err == PS_OK && f.broken.n == set->n)
        err = ps_err_set(PS_ERR_FORMAT, "none of %lld pictures can be read: %s",
                         (long long)set->n, ps_first_names_text(&f.broken));
    if (err == PS_OK && f.odd.n > 0) {
        f.broken = (ps_first_names){0};
        err = ps_faulty_pictures_error(&f, &(const char *){"data.unreadable: skip"}, 1);
    }
    if (err == PS_OK && f.broken.n > 0)
        err = ps_dataset_note(&set->doubts,
                              "pictures that cannot be read, and are left out: %lld of "
                              "%lld: %s",
                              (long long)f.broken.n, (long long)set->n,
                              ps_first_names_text(&f.broken));
    if (err == PS_OK && f.broken.n > 0) err = ps_dataset_keep(set, r.rows, r.n);
    free(r.rows);
    return err;
}

/* Whether folder/name exists; *out is then owned by the caller, else NULL. */
static ps_err find_existing(const char *folder, const char *name, char **out)
{
    PS_TRY(ps_data_path(folder, name, out));
    if (is_there(*out)) return PS_OK;
    free(*out);
    *out = NULL;
    return PS_OK;
}

/* The folder of a split: what is named, else train; test or val. NULL: no test set. */
static ps_err find_split(const ps_data_spec *spec, ps_split split, const char *folder,
                         char **out)
{
    const bool train = split == PS_SPLIT_TRAIN;
    *out = NULL;
    if (spec->n_files > 1)
        return ps_err_set(PS_ERR_CONFIG,
                          "image_folder data is one folder, and %d are "
                          "named",
                          spec->n_files);
    if (spec->n_files == 1) return ps_data_path(folder, spec->files[0], out);
    PS_TRY(find_existing(folder, train ? "train" : "test", out));
    if (*out == NULL && !train) PS_TRY(find_existing(folder, "val", out));
    if (*out != NULL || (!train && !spec->has_range)) return PS_OK;
    ps_class_names inside = {0};
    if (train) PS_TRY(ps_image_folder_names(folder, &inside));
    const bool classes = inside.n > 0;
    ps_class_names_fini(&inside);
    return ps_err_set(PS_ERR_IO, "%s has no folder %s; %s", folder,
                      train ? "train" : "test or val",
                      classes ? "if its folders are classes, move them into train/ and "
                                "test/, or give data.train=."
                              : "name the folder, or set data.path");
}

/* The folder of the training split, where there is one; owned by the caller. */
static ps_err find_train(const ps_config *cfg, const char *folder, char **out)
{
    ps_data_spec train;
    *out = NULL;
    ps_err err = ps_data_spec_init(&train, "data.train", cfg->data.train);
    if (err == PS_OK)
        err = find_existing(folder, train.n_files == 1 ? train.files[0] : "train", out);
    ps_data_spec_fini(&train);
    return err;
}

/* The classes of the test split are the training split's, where there is one. */
static ps_err list_split(const ps_config *cfg, const char *folder, const char *path,
                         ps_split split, ps_dataset *out)
{
    char *classes = NULL;
    if (split == PS_SPLIT_TRAIN) return ps_image_folder_list(path, path, out);
    ps_err err = find_train(cfg, folder, &classes);
    if (err == PS_OK) err = ps_image_folder_list(path, classes ? classes : path, out);
    free(classes);
    return err;
}

static ps_err list_pictures(const ps_config *cfg, const ps_data_spec *spec,
                            ps_split split, const ps_dims *want, const ps_wanted *wanted,
                            ps_dataset *out)
{
    char *folder = NULL, *path = NULL;
    ps_dims dims;
    ps_err err = ps_picture_check_build();
    if (err == PS_OK) err = set_picture_dims(cfg, want, &dims);
    if (err == PS_OK) err = ps_data_folder(cfg->data.path, cfg->file, &folder);
    if (err == PS_OK) err = find_split(spec, split, folder, &path);
    if (err == PS_OK && path != NULL) err = list_split(cfg, folder, path, split, out);
    if (err == PS_OK && out->n > 0) out->dims = dims;
    if (err == PS_OK) err = skip_unreadable(cfg, out);
    if (err == PS_OK && out->n > 0 && wanted->numbers && wanted->n == 1)
        err = ps_dataset_labels_to_targets(out);
    free(path);
    free(folder);
    return err;
}

ps_err ps_dataset_of_folder(const ps_config *cfg, const char *folder, const ps_dims *want,
                            ps_dataset *out)
{
    ps_dims dims;
    memset(out, 0, sizeof *out);
    PS_TRY(ps_picture_check_build());
    PS_TRY(set_picture_dims(cfg, want, &dims));
    PS_TRY(ps_image_folder_list_all(folder, out));
    out->dims = dims;
    const ps_err err = skip_unreadable(cfg, out);
    if (err != PS_OK) ps_dataset_fini(out);
    return err;
}

ps_err ps_dataset_of_picture(const ps_config *cfg, const char *path, const ps_dims *want,
                             ps_dataset *out)
{
    memset(out, 0, sizeof *out);
    PS_TRY(ps_picture_check_build());
    PS_TRY(set_picture_dims(cfg, want, &out->dims));
    PS_TRY(PS_NEW(&out->files, 1, "a picture"));
    out->n = 1;
    PS_TRY(ps_mem_strdup(&out->files[0], path));
    return PS_NEW(&out->labels, 1, "a label");
}

/* --- names of classes ----------------------------------------------------------------
 */

/* The file or the folder that has the names; *out NULL: there is none. */
static ps_err find_names(const ps_config *cfg, const char *folder, char **out)
{
    const char *file = readers[cfg->data.kind].names;
    *out = NULL;
    if (cfg->data.kind == PS_DATA_IMAGE_FOLDER) return find_train(cfg, folder, out);
    return file ? find_existing(folder, file, out) : PS_OK;
}

ps_err ps_dataset_name_classes(const ps_config *cfg, ps_dataset *set)
{
    char *folder = NULL, *path = NULL;
    if (set->names.n > 0 || ps_data_is_made(cfg->data.kind)) return PS_OK;
    if (ps_data_folder(cfg->data.path, cfg->file, &folder) != PS_OK) return PS_OK;
    ps_err err = find_names(cfg, folder, &path);
    if (err == PS_OK && path)
        err = cfg->data.kind == PS_DATA_IMAGE_FOLDER
                  ? ps_image_folder_names(path, &set->names)
                  : ps_class_names_read(path, &set->names);
    free(path);
    free(folder);
    return err;
}

/* --- all -----------------------------------------------------------------------------
 */

/* The samples of one part of those of data.train. keys: what they are alike by. */
static ps_err choose_rows(const ps_config *cfg, ps_table *table, const uint64_t *keys,
                          int64_t n, bool test, int64_t *rows, int64_t *n_rows)
{
    const double share = ps_config_test_share(cfg);
    const char *by = cfg->data.test_by;
    bool *is_test;
    PS_TRY(PS_NEW(&is_test, (size_t)n, "the test part"));
    ps_err err = PS_OK;
    if (strcmp(by, "random") == 0) {
        err = ps_test_part_random(keys, n, share, cfg->data.seed, is_test);
    } else {
        for (int64_t i = 0; i < n; i++)
            rows[i] = i;
        if (strcmp(by, "order") != 0) err = ps_table_order(table, rows);
        if (err == PS_OK) ps_test_part_last(rows, n, share, is_test);
    }
    *n_rows = ps_test_part_rows(is_test, n, test, rows);
    free(is_test);
    if (err != PS_OK || *n_rows > 0) return err;
    return ps_err_set(PS_ERR_CONFIG,
                      "data.test: %s of %lld samples leaves no sample for %s",
                      cfg->data.test, (long long)n, test ? "testing" : "training");
}

/* Cuts a table, or a set without one, to its part. */
static ps_err keep_part(const ps_config *cfg, bool test, const ps_wanted *wanted,
                        ps_table *table, ps_dataset *set)
{
    const int64_t n = table ? table->n : set->n;
    int64_t *rows = NULL, kept = 0;
    uint64_t *keys = NULL;
    ps_err err = PS_NEW(&rows, (size_t)n, "the test part");
    if (err == PS_OK) err = PS_NEW(&keys, (size_t)n, "classes");
    if (err == PS_OK && table) err = ps_table_classes(table, wanted, keys);
    for (int64_t i = 0; i < n && err == PS_OK && !table && set->labels; i++)
        keys[i] = (uint64_t)(uint32_t)set->labels[i];
    if (err == PS_OK) err = choose_rows(cfg, table, keys, n, test, rows, &kept);
    if (err == PS_OK)
        err = table ? ps_table_keep(table, rows, kept) : ps_dataset_keep(set, rows, kept);
    free(rows);
    free(keys);
    return err;
}

static ps_err keep_range(ps_table *table, const ps_data_spec *spec)
{
    int64_t *rows;
    const int64_t n = spec->last - spec->first + 1;
    PS_TRY(ps_dataset_check_range(table->n, spec->first, spec->last));
    PS_TRY(PS_NEW(&rows, (size_t)n, "the range"));
    for (int64_t i = 0; i < n; i++)
        rows[i] = spec->first + i;
    const ps_err err = ps_table_keep(table, rows, n);
    free(rows);
    return err;
}

/* --- samples of both parts ----------------------------------------------------------
 */

/* What a part is read from: files, or a folder of pictures. */
static ps_err list_part(const ps_config *cfg, ps_split split, ps_data_spec *spec,
                        path_list *list)
{
    const bool train = split == PS_SPLIT_TRAIN;
    char *folder = NULL;
    PS_TRY(ps_data_spec_init(spec, train ? "data.train" : "data.test",
                             train ? cfg->data.train : cfg->data.test));
    if (cfg->data.kind != PS_DATA_IMAGE_FOLDER) return list_files(cfg, spec, split, list);
    PS_TRY(ps_data_folder(cfg->data.path, cfg->file, &folder));
    const ps_err err = find_split(spec, split, folder, &list->paths[0]);
    list->n = list->paths[0] != NULL;
    free(folder);
    return err;
}

/* The first of a's files with samples that b has, too; NULL: there is none. *all: they
 * have the same ones, in the same order. */
static const char *shared_file(const reader *kind, const path_list *a, const path_list *b,
                               bool *all)
{
    const int n = kind->n_files > 0 && a->n > 0 ? 1 : a->n; // not the answers' file
    const char *first = NULL;
    *all = a->n == b->n;
    for (int i = 0; i < n; i++) {
        *all = *all && ps_regular_file_is_same(a->paths[i], b->paths[i]);
        for (int k = 0; k < b->n && !first; k++)
            if (ps_regular_file_is_same(a->paths[i], b->paths[k])) first = a->paths[i];
    }
    return first;
}

/* The samples of both of two parts of the same files; n: those of a part without a range.
 */
static int64_t shared_samples(const ps_data_spec *a, const ps_data_spec *b, int64_t n)
{
    const int64_t end_a = a->has_range ? a->last : INT64_MAX - 1;
    const int64_t end_b = b->has_range ? b->last : INT64_MAX - 1;
    const int64_t first = a->first > b->first ? a->first : b->first;
    const int64_t end = end_a < end_b ? end_a : end_b;
    return !a->has_range && !b->has_range ? n : end < first ? 0 : end - first + 1;
}

static ps_err doubt_shared(const ps_data_spec spec[2], const path_list list[2],
                           const reader *kind, ps_dataset *test)
{
    bool all = false;
    const char *file = shared_file(kind, &list[1], &list[0], &all);
    const int64_t n = all ? shared_samples(&spec[0], &spec[1], test->n) : test->n;
    const bool known = all || (!spec[0].has_range && !spec[1].has_range);
    if (!file || !known || n == 0) return PS_OK;
    return ps_dataset_note(
        &test->doubts,
        "%s%s of %.200s %s in data.train, too: they say little of new samples: give both "
        "parts ranges, or set data.test to a share, such as 20%%",
        all ? PS_COUNTED(n) : "samples", all ? n == 1 ? " sample" : " samples" : "", file,
        all && n == 1 ? "is" : "are");
}

ps_err ps_dataset_doubt_shared(const ps_config *cfg, ps_dataset *test)
{
    ps_data_spec spec[2] = {0};
    path_list list[2] = {0};
    if (ps_data_is_made(cfg->data.kind) || ps_config_test_is_share(cfg)) return PS_OK;
    ps_err err = list_part(cfg, PS_SPLIT_TRAIN, &spec[0], &list[0]);
    if (err == PS_OK) err = list_part(cfg, PS_SPLIT_TEST, &spec[1], &list[1]);
    if (err == PS_OK) err = doubt_shared(spec, list, &readers[cfg->data.kind], test);
    for (int i = 0; i < 2; i++) {
        ps_data_spec_fini(&spec[i]);
        path_list_fini(&list[i]);
    }
    return err;
}

/* --- the type of samples -------------------------------------------------------------
 */

ps_sample_type ps_dataset_type(const ps_dataset *set)
{
    if (set->n == 0 || set->table || set->n_ids > 0) return PS_SAMPLES_UNKNOWN;
    return set->is_float ? PS_SAMPLES_FLOAT32 : PS_SAMPLES_UINT8;
}

const char *ps_sample_type_name(ps_sample_type type)
{
    static const char *const names[] = {NULL, "uint8", "float32"};
    return names[type];
}

ps_err ps_dataset_trained_type(const ps_config *cfg, const char *weights,
                               ps_sample_type *out)
{
    const ps_data_kind kind = cfg->data.kind;
    char *text = NULL;
    *out = PS_SAMPLES_UNKNOWN;
    if (kind == PS_DATA_CSV || ps_data_is_clicks(kind) || ps_data_is_made(kind))
        return PS_OK;
    if (kind != PS_DATA_NPY) {
        *out = PS_SAMPLES_UINT8;
        return PS_OK;
    }
    PS_TRY(ps_st_read_metadata(weights, PS_SAMPLES_KEY, &text));
    for (ps_sample_type t = PS_SAMPLES_UINT8; text && t <= PS_SAMPLES_FLOAT32; t++)
        if (strcmp(text, ps_sample_type_name(t)) == 0) *out = t;
    free(text);
    return PS_OK;
}

/* Whether samples of float32 may be what data.scale makes of uint8. */
static bool are_like_scaled(const ps_config *cfg, const ps_dataset *set)
{
    const double most = 255 * cfg->data.scale * (1 + 1e-6);
    const int64_t n = set->n * ps_dims_count(&set->dims);
    for (int64_t i = 0; set->values && i < n; i++) {
        const float value = ((const float *)set->values)[i];
        if (!(value >= 0 && value <= most)) return false;
    }
    return set->values != NULL;
}

ps_err ps_dataset_doubt_type(const ps_config *cfg, ps_sample_type trained,
                             ps_dataset *set)
{
    const ps_sample_type type = ps_dataset_type(set);
    if (type == PS_SAMPLES_UNKNOWN || trained == PS_SAMPLES_UNKNOWN || type == trained)
        return PS_OK;
    if (type == PS_SAMPLES_UINT8)
        return ps_dataset_note(&set->doubts,
                               "samples of uint8, which are multiplied by %.9g "
                               "(data.scale), for a model that is trained on float32: "
                               "give float32 as in training",
                               cfg->data.scale);
    if (are_like_scaled(cfg, set)) return PS_OK;
    return ps_dataset_note(&set->doubts,
                           "samples of float32, which stay as they are, for a model that "
                           "is trained on uint8 times %.9g (data.scale): give uint8, or "
                           "multiply them",
                           cfg->data.scale);
}

/* --- tables ------------------------------------------------------------------------
 */

/* Reads a split's lines into an empty table. Where a part is a share, both are of the
 * training part's files. */
static ps_err read_table(const ps_config *cfg, const ps_data_spec *spec, ps_split split,
                         const ps_wanted *wanted, const ps_preprocessing *known,
                         ps_table *table)
{
    path_list list = {0};
    char *folder = NULL;
    ps_err err = list_files(cfg, spec, split, &list);
    if (err == PS_OK && list.n > 0 && cfg->data.stream)
        err = ps_data_path(".", list.paths[0], &folder);
    if (folder) *strrchr(folder, '/') = '\0';
    const ps_csv_options options = {.data = &cfg->data,
                                    .wanted = wanted,
                                    .known = known,
                                    .keys = wanted->keys,
                                    .folder = folder};
    if (err == PS_OK && list.n > 0)
        err = ps_csv_read(list.paths, list.n, &options, table);
    free(folder);
    path_list_fini(&list);
    return err;
}

static ps_err load_table(const ps_config *cfg, const ps_data_spec *spec, ps_split split,
                         const ps_wanted *wanted, ps_preprocessing **state,
                         ps_dataset *out)
{
    const bool share = ps_config_test_is_share(cfg);
    ps_table table = {.fd = -1};
    ps_err err =
        read_table(cfg, spec, share ? PS_SPLIT_TRAIN : split, wanted, *state, &table);
    if (err == PS_OK && table.n > 0) {
        if (spec->has_range) err = keep_range(&table, spec);
        if (err == PS_OK && share)
            err = keep_part(cfg, split == PS_SPLIT_TEST, wanted, &table, NULL);
        if (err == PS_OK && !*state)
            err = ps_table_fit(&table, &cfg->data, wanted, state);
        if (err == PS_OK) err = ps_table_samples(&table, *state, out);
    }
    ps_table_fini(&table);
    return err;
}

/* Of a table to predict; takes it. */
static ps_err finish_table(const ps_config *cfg, ps_err err, ps_table *table,
                           ps_preprocessing **state, ps_dataset *out)
{
    const ps_wanted nothing = {.nothing = true};
    if (err == PS_OK && !*state && cfg->data.target[0])
        err = ps_err_set(PS_ERR_CONFIG,
                         "data.target: these weights do not say how its columns become "
                         "inputs: take the model.safetensors that the run has left");
    if (err == PS_OK && !*state) err = ps_table_fit(table, &cfg->data, &nothing, state);
    if (err == PS_OK) err = ps_table_samples(table, *state, out);
    ps_table_fini(table);
    if (err == PS_OK) err = ps_dataset_name_classes(cfg, out);
    if (err != PS_OK) ps_dataset_fini(out);
    return err;
}

/* Clicks to predict. */
static ps_err finish_clicks(const ps_config *cfg, ps_err err, ps_dataset *out)
{
    if (err == PS_OK && out->answered && PS_LOSS_OF_NUMBERS(cfg->model.loss))
        err = ps_dataset_labels_to_targets(out);
    if (err != PS_OK) ps_dataset_fini(out);
    return err;
}

ps_err ps_dataset_of_table(const ps_config *cfg, ps_preprocessing **state,
                           const char *path, ps_dataset *out)
{
    const ps_wanted nothing = {.nothing = true};
    const ps_csv_options o = {
        .data = &cfg->data, .wanted = &nothing, .known = *state, .keys = true};
    char *paths[] = {(char *)path};
    ps_table table;
    *out = (ps_dataset){0};
    if (ps_data_is_clicks(cfg->data.kind))
        return finish_clicks(cfg, ps_criteo_open_new(path, out), out);
    const ps_err err = ps_csv_read(paths, 1, &o, &table);
    return finish_table(cfg, err, &table, state, out);
}

ps_err ps_dataset_of_table_text(const ps_config *cfg, ps_preprocessing **state,
                                const char *name, char *text, uint64_t bytes,
                                bool objects, ps_dataset *out)
{
    const ps_wanted nothing = {.nothing = true};
    const ps_csv_options o = {.data = &cfg->data,
                              .wanted = &nothing,
                              .known = *state,
                              .keys = true,
                              .objects = objects};
    ps_table table;
    *out = (ps_dataset){0};
    if (ps_data_is_clicks(cfg->data.kind))
        return finish_clicks(cfg, ps_criteo_parse_new(name, text, bytes, out), out);
    const ps_err err = ps_csv_parse(name, text, bytes, &o, &table);
    return finish_table(cfg, err, &table, state, out);
}

ps_err ps_dataset_known_state(const ps_config *cfg, ps_preprocessing **out)
{
    *out = NULL;
    if (cfg->data.kind != PS_DATA_CSV || !cfg->train.init[0] || !cfg->train.init_strict ||
        access(cfg->train.init, R_OK) != 0)
        return PS_OK;
    return ps_preprocessing_load(cfg->train.init, out);
}

/* --- any kind ----------------------------------------------------------------------
 */

static ps_err read_split(const ps_config *cfg, const ps_data_spec *spec, ps_split split,
                         const ps_dims *want, const ps_wanted *wanted,
                         ps_preprocessing **state, ps_dataset *out)
{
    if (cfg->data.kind == PS_DATA_CSV)
        return load_table(cfg, spec, split, wanted, state, out);
    if (ps_data_is_made(cfg->data.kind))
        return make_synthetic(cfg, spec, split, want, wanted, out);
    if (cfg->data.kind == PS_DATA_IMAGE_FOLDER)
        return list_pictures(cfg, spec, split, want, wanted, out);
    return dataset_read_files(cfg, spec, split, wanted, out);
}

/* The last layer that decides how many outputs the model has; NULL: not known. */
static const ps_yaml *dataset_find_last(const ps_config *cfg, int64_t n)
{
    const ps_yaml *layers = cfg->tree ? ps_yaml_path(cfg->tree, "model.layers") : NULL;
    for (int i = layers ? layers->n_items - 1 : -1; i >= 0; i--) {
        const ps_yaml *last = ps_yaml_path(layers->items[i], "linear");
        const ps_yaml *out = last ? ps_yaml_path(last, "out") : NULL;
        if (last) return out && out->text && atoll(out->text) == n ? last : NULL;
    }
    return NULL;
}

static ps_wanted wanted_of(const ps_config *cfg, ps_split split, int64_t n)
{
    const bool numbers = PS_LOSS_OF_NUMBERS(cfg->model.loss);
    const bool mixed = split == PS_SPLIT_TRAIN && cfg->data.mixup > 0;
    return (ps_wanted){.numbers = numbers,
                       .n = n,
                       .may_be_ignored = !numbers && !mixed,
                       .ignore_index = (int32_t)cfg->train.ignore_index,
                       .unit = cfg->model.loss == PS_LOSS_BCE_WITH_LOGITS,
                       .last = dataset_find_last(cfg, n)};
}

/* "job.yaml:12: data.train", or the key alone. */
static void dataset_find_place(const ps_config *cfg, const char *key, char *out,
                               size_t cap)
{
    const ps_yaml *at = cfg->tree ? ps_yaml_path(cfg->tree, key) : NULL;
    if (!at && cfg->tree) at = ps_yaml_path(cfg->tree, "data");
    if (at && at->line > 0)
        snprintf(out, cap, "%s:%d: %s", at->file, at->line, key);
    else
        snprintf(out, cap, "%s", key);
}

/* By the labels and the names of them. */
static int64_t dataset_classes(const ps_dataset *set)
{
    return set->names.n > set->n_classes ? set->names.n : set->n_classes;
}

/* Adds a doubt where classes have no sample. Stored samples often stand class by class,
 * and then a range has those of the first classes. n: the model's classes. */
static ps_err doubt_missing_classes(int64_t n, ps_dataset *out)
{
    bool *has;
    const int64_t classes = out->names.n > n ? out->names.n : n;
    int64_t missing = 0, first = 0;
    if (!out->labels || classes < 1) return PS_OK;
    PS_TRY(PS_NEW(&has, (size_t)classes, "classes"));
    for (int64_t i = 0; i < out->n; i++)
        if (out->labels[i] >= 0 && out->labels[i] < classes) has[out->labels[i]] = true;
    for (int64_t k = classes; k-- > 0;)
        if (!has[k]) {
            missing++;
            first = k;
        }
    free(has);
    if (missing == 0) return PS_OK;
    const char *name = ps_class_name(&out->names, first);
    return ps_dataset_note(
        &out->doubts,
        "classes without a sample: %lld of %lld, the first is %lld%s%s: the range takes "
        "samples as they are stored, often class by class: mix them first, or give whole "
        "files or folders",
        (long long)missing, (long long)classes, (long long)first, name ? " " : "",
        name ? name : "");
}

static ps_err doubt_spare_outputs(const ps_wanted *wanted, ps_dataset *out)
{
    char mend[PS_OUTPUTS_TEXT];
    const int64_t n = wanted->n;
    const int64_t classes = dataset_classes(out);
    if (out->labels && classes == 1)
        return ps_dataset_note(&out->doubts,
                               "all samples have the same label: there is nothing to "
                               "learn");
    if (!out->labels || n <= classes) return PS_OK;
    return ps_dataset_note(
        &out->doubts, "there are %lld classes, and the model has %lld outputs: %s",
        (long long)classes, (long long)n, ps_wanted_outputs(wanted, classes, mend));
}

/* A list of names that is of other classes, or begins with a title, names all wrongly. */
static ps_err doubt_names(const ps_wanted *wanted, ps_dataset *out)
{
    const int64_t names = out->names.n;
    if (!out->labels || names == 0) return PS_OK;
    if (names < out->n_classes)
        return ps_dataset_note(&out->doubts,
                               "%lld classes have names, and the labels have %lld: give "
                               "each class a line in class_names.txt",
                               (long long)names, (long long)out->n_classes);
    if (wanted->numbers || wanted->n < 1 || names <= wanted->n) return PS_OK;
    return ps_dataset_note(&out->doubts,
                           "%lld classes have names, and the model has %lld outputs: the "
                           "first name, %s, is that of class 0",
                           (long long)names, (long long)wanted->n, out->names.names[0]);
}

/* The state of a table whose training part is not read otherwise. */
static ps_err fit_alone(const ps_config *cfg, int64_t n_classes, ps_preprocessing **state)
{
    ps_dataset train;
    PS_TRY(ps_dataset_known_state(cfg, state));
    if (*state) return PS_OK;
    const ps_dims any = {0};
    PS_TRY(ps_dataset_load(cfg, PS_SPLIT_TRAIN, &any, n_classes, state, &train));
    ps_dataset_fini(&train);
    return PS_OK;
}

/* Reads a part, and cuts it to what is named. */
static ps_err read_part(const ps_config *cfg, const ps_data_spec *spec, ps_split split,
                        const ps_dims *want, const ps_wanted *wanted,
                        ps_preprocessing **state, ps_dataset *out)
{
    const bool share = ps_config_test_is_share(cfg);
    const bool table = cfg->data.kind == PS_DATA_CSV;
    PS_TRY(read_split(cfg, spec, share && !table ? PS_SPLIT_TRAIN : split, want, wanted,
                      state, out));
    if (out->n == 0 || table) return PS_OK;
    if (spec->has_range) PS_TRY(ps_dataset_slice(out, spec->first, spec->last));
    return share ? keep_part(cfg, split == PS_SPLIT_TEST, wanted, NULL, out) : PS_OK;
}

/* Pixels of 8 bits are multiplied, and nothing else. */
static ps_err doubt_scale(const ps_config *cfg, ps_dataset *out)
{
    const bool given = cfg->tree && ps_yaml_path(cfg->tree, "data.scale");
    if (!given || !out->is_float || out->table || out->n_ids > 0) return PS_OK;
    return ps_dataset_note(&out->doubts,
                           "data.scale has no effect on values that are float32: "
                           "data.normalize [mean, deviation] has");
}

ps_err ps_dataset_load(const ps_config *cfg, ps_split split, const ps_dims *want,
                       int64_t n_classes, ps_preprocessing **state, ps_dataset *out)
{
    memset(out, 0, sizeof *out);
    const bool of_train = split == PS_SPLIT_TRAIN || ps_config_test_is_share(cfg);
    const char *key = of_train ? "data.train" : "data.test";
    const char *files = of_train ? cfg->data.train : cfg->data.test;
    ps_wanted wanted = wanted_of(cfg, split, n_classes);
    ps_data_spec spec;
    ps_err err = PS_OK;
    wanted.keys = split == PS_SPLIT_PREDICTED;
    if (wanted.keys) split = PS_SPLIT_TEST;
    if (cfg->data.kind == PS_DATA_CSV && split == PS_SPLIT_TEST && cfg->data.target[0] &&
        !*state)
        PS_TRY(fit_alone(cfg, n_classes, state));
    PS_TRY_GOTO(ps_data_spec_init(&spec, key, files), err, out);
    err = read_part(cfg, &spec, split, want, &wanted, state, out);
    if (err == PS_OK) {
        err = ps_dataset_check(out, &wanted);
        if (err != PS_OK && files[0]) ps_err_prefix(err, "%s", files);
    }
    if (err == PS_OK) err = ps_dataset_name_classes(cfg, out);
    if (err == PS_OK && split == PS_SPLIT_TRAIN && !ps_data_is_made(cfg->data.kind))
        err = spec.has_range ? doubt_missing_classes(n_classes, out)
                             : doubt_spare_outputs(&wanted, out);
    if (err == PS_OK && split == PS_SPLIT_TRAIN) err = doubt_names(&wanted, out);
    if (err == PS_OK && split == PS_SPLIT_TRAIN) err = doubt_scale(cfg, out);
    if (err != PS_OK) {
        ps_dataset_fini(out);
        char place[PATH_MAX];
        dataset_find_place(cfg, key, place, sizeof place);
        ps_err_prefix(err, "%s", place);
    }
out:
    ps_data_spec_fini(&spec);
    return err;
}

/* The rows of the embeddings of a table. */
static ps_err dataset_list_categories(const ps_preprocessing *p, ps_int_list *out)
{
    *out = (ps_int_list){0};
    const int n = p ? ps_preprocessing_embedded(p, NULL) : 0;
    if (n > PS_CONFIG_LIST_MAX)
        return ps_err_set(PS_ERR_CONFIG,
                          "data.encoding: %d columns would be embedded, at most %d can "
                          "be: leave some out (data.drop)",
                          n, PS_CONFIG_LIST_MAX);
    if (n > 0) out->n = ps_preprocessing_embedded(p, out->v);
    return PS_OK;
}

ps_err ps_dataset_check_categories(const ps_config *cfg, const ps_preprocessing *p)
{
    const ps_int_list *given = &cfg->model.categories;
    ps_int_list own;
    if (!p) return PS_OK;
    PS_TRY(dataset_list_categories(p, &own));
    if (own.n == given->n && memcmp(own.v, given->v, (size_t)own.n * sizeof *own.v) == 0)
        return PS_OK;
    return ps_err_set(PS_ERR_CONFIG,
                      "model.categories: of the table's columns %d are embedded, of the "
                      "model's inputs %d%s: leave out model.input and model.categories, "
                      "which are then taken from the table",
                      own.n, given->n, own.n == given->n ? ", with other rows" : "");
}

/* Of the input that is not given: [] is no size. */
ps_err ps_dataset_find_input(const ps_config *cfg, int64_t n_classes, ps_int_list *input,
                             ps_int_list *categories)
{
    const ps_data_kind kind = cfg->data.kind;
    const ps_dims any = {0};
    ps_preprocessing *state = NULL;
    ps_dataset set = {0};
    if (kind == PS_DATA_SYNTHETIC)
        return ps_err_set(PS_ERR_CONFIG,
                          "model.input: synthetic data have the model's shape: give it");
    if (ps_data_is_clicks(kind)) {
        *input = (ps_int_list){1, {PS_CRITEO_COUNTS}};
        return PS_OK;
    }
    ps_err err = ps_dataset_known_state(cfg, &state);
    if (err == PS_OK && !state)
        err = ps_dataset_load(cfg, PS_SPLIT_TRAIN, &any, n_classes, &state, &set);
    if (err == PS_OK) err = dataset_list_categories(state, categories);
    const ps_dims dims = state ? (ps_dims){1, {state->n_inputs}} : set.dims;
    for (input->n = 0; err == PS_OK && input->n < dims.n; input->n++)
        input->v[input->n] = dims.d[input->n];
    ps_dataset_fini(&set);
    ps_preprocessing_destroy(&state);
    return err;
}
