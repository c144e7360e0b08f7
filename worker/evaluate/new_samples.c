#include "new_samples.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "criteo.h"
#include "data_files.h"
#include "faulty_pictures.h"
#include "npy.h"

enum { COPIED_BYTES = 1 << 16, MAGIC_BYTES = 12, BODY_MAX = 1 << 25 };

static const char STANDARD_INPUT[] = "standard input", BODY[] = "the body";

/* --- what a file holds -------------------------------------------------------------- */

typedef enum file_kind { FILE_TABLE, FILE_NPY, FILE_PICTURE } file_kind;

static ps_err new_samples_kind(const char *path, file_kind *kind)
{
    static const struct {
        const char *bytes;
        size_t n;
        file_kind kind;
    } known[] = {{"\x93NUMPY", 6, FILE_NPY},
                 {"\x89PNG\r\n", 6, FILE_PICTURE},
                 {"\xff\xd8\xff", 3, FILE_PICTURE},
                 {"RIFF", 4, FILE_PICTURE}}; // WebP
    char first[MAGIC_BYTES] = "";
    ps_source source = {0};
    ps_err err = ps_source_init(&source, path);
    if (err == PS_OK && gzread(source.file, first, sizeof first) < 0)
        err = ps_err_set(PS_ERR_FORMAT, "%s: cannot be decompressed", path);
    ps_source_fini(&source);
    *kind = FILE_TABLE;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (memcmp(first, known[i].bytes, known[i].n) == 0) *kind = known[i].kind;
    // BMP: two letters, a size, and four zeros, which no text has
    if (memcmp(first, "BM", 2) == 0 && memcmp(first + 6, "\0\0\0\0", 4) == 0)
        *kind = FILE_PICTURE;
    return err;
}

/* is: "is a picture": what it is instead. */
static ps_err new_samples_refuse(const char *what, const ps_loaded_model *m,
                                 const char *is)
{
    char takes[PS_TAKES_TEXT];
    return ps_err_set(PS_ERR_FORMAT, "%s %s; this model takes %s", what, is,
                      ps_loaded_model_takes(m, takes));
}

/* Values without names would be taken as those after scaling. */
static ps_err new_samples_need_names(const ps_new_samples *s, const ps_loaded_model *m)
{
    if (!m->state || !m->state->named) return PS_OK;
    return new_samples_refuse(s->what, m, "has numbers without names");
}

static bool takes_pictures(const ps_loaded_model *m)
{
    return m->config->data.kind == PS_DATA_IMAGE_FOLDER ||
           (m->spec.input.n == 3 && !m->spec.sequences);
}

static ps_err new_samples_check_kind(const ps_new_samples *s, const ps_loaded_model *m,
                                     file_kind kind)
{
    const bool pictures = m->config->data.kind == PS_DATA_IMAGE_FOLDER;
    if (kind != FILE_TABLE && m->spec.n_columns > 0)
        return new_samples_refuse(s->what, m,
                                  kind == FILE_NPY ? "is an npy file, without ids"
                                                   : "is a picture");
    if (kind == FILE_TABLE && pictures)
        return new_samples_refuse(s->what, m, "is no picture (PNG, JPEG, WebP, BMP)");
    if (kind == FILE_PICTURE && !takes_pictures(m))
        return new_samples_refuse(s->what, m, "is a picture");
    return PS_OK;
}

static ps_err new_samples_read_array(ps_new_samples *s, const ps_loaded_model *m,
                                     const char *path)
{
    ps_source source = {0};
    PS_TRY(new_samples_need_names(s, m));
    ps_err err = ps_source_init(&source, path);
    if (err == PS_OK)
        err = m->config->data.stream && !s->copy ? ps_npy_open_values(&source, &s->set)
                                                 : ps_npy_read_values(&source, &s->set);
    ps_source_fini(&source);
    if (err == PS_OK && s->set.n == 0)
        err = ps_err_set(PS_ERR_FORMAT, "%s: holds no sample", s->what);
    if (err != PS_OK) return err;
    return PS_NEW(&s->set.labels, (size_t)s->set.n, "labels");
}

/* Under the name of what it is a copy of. */
static ps_err new_samples_read_table(ps_new_samples *s, const ps_loaded_model *m,
                                     const char *path)
{
    void *text = NULL;
    uint64_t bytes = 0;
    ps_err err = ps_source_read_file(path, PS_SOURCE_MAX_BYTES, &text, &bytes);
    char *room = err == PS_OK ? realloc(text, bytes + 1) : NULL;
    if (room)
        err = ps_dataset_of_table_text(m->config, &s->state, s->what, room, bytes, false,
                                       &s->set);
    else if (err == PS_OK)
        err = ps_err_set(PS_ERR_NOMEM, "%s: no memory", s->what);
    free(room ? room : text);
    return err;
}

static ps_err new_samples_check(ps_new_samples *s)
{
    const ps_wanted any = {0};
    s->answered = s->set.answered;
    const ps_err bad = ps_dataset_check(&s->set, &any);
    return bad == PS_OK ? PS_OK : ps_err_prefix(bad, "%s", s->what);
}

static ps_err new_samples_read_file(ps_new_samples *s, const ps_loaded_model *m,
                                    const char *path)
{
    file_kind kind;
    PS_TRY(new_samples_kind(path, &kind));
    PS_TRY(new_samples_check_kind(s, m, kind));
    if (kind == FILE_PICTURE) {
        s->named = !s->copy;
        return ps_dataset_of_picture(m->config, path, &m->spec.input, &s->set);
    }
    const bool clicks = ps_data_is_clicks(m->config->data.kind);
    const ps_err err = kind == FILE_NPY ? new_samples_read_array(s, m, path)
                       : s->copy && !clicks
                           ? new_samples_read_table(s, m, path)
                           : ps_dataset_of_table(m->config, &s->state, path, &s->set);
    if (err == PS_ERR_FORMAT && kind == FILE_TABLE &&
        m->config->data.kind != PS_DATA_CSV && !clicks)
        ps_err_prefix(err, "taken as a table, as it is no npy file and no picture");
    PS_TRY(err);
    return new_samples_check(s);
}

/* --- what can be read only once ----------------------------------------------------- */

/* The name of the copy in this process. */
static void copy_path(const ps_new_samples *s, char out[32])
{
    snprintf(out, 32, "/proc/self/fd/%d", fileno(s->copy));
}

static ps_err new_samples_copy(ps_new_samples *s, FILE *in, const char *bytes, size_t n)
{
    char piece[COPIED_BYTES];
    s->copy = tmpfile();
    if (!s->copy) return ps_err_errno(PS_ERR_IO, "a temporary file");
    if (bytes) fwrite(bytes, 1, n, s->copy);
    for (size_t got = 1; in && got > 0 && !ferror(s->copy);) {
        got = fread(piece, 1, sizeof piece, in);
        fwrite(piece, 1, got, s->copy);
    }
    // fflush alone would not do: what could not be written is no longer in the buffer.
    if (ferror(s->copy) || fflush(s->copy) != 0)
        return ps_err_errno(PS_ERR_IO, "a temporary file in /tmp");
    return in && ferror(in) ? ps_err_errno(PS_ERR_IO, "%s", s->what) : PS_OK;
}

ps_err ps_new_samples_name(const ps_new_samples *s, ps_err err)
{
    char path[32], rest[PS_ERR_MESSAGE_BYTES];
    if (err == PS_OK || !s->copy) return err;
    copy_path(s, path);
    const char *said = ps_err_message();
    const size_t n = strlen(path);
    if (strncmp(said, s->what, strlen(s->what)) == 0) return err;
    if (strncmp(said, path, n) != 0) return ps_err_prefix(err, "%s", s->what);
    snprintf(rest, sizeof rest, "%s", said + n);
    return ps_err_set(err, "%s%s", s->what, rest);
}

/* A small body may be a very large file that was compressed. */
static ps_err new_samples_check_size(const ps_new_samples *s)
{
    char path[32], piece[COPIED_BYTES];
    ps_source source = {0};
    uint64_t n = 0, got = 1;
    copy_path(s, path);
    ps_err err = ps_source_init(&source, path);
    for (; err == PS_OK && got > 0 && n <= BODY_MAX; n += got)
        err = ps_source_read_some(&source, piece, sizeof piece, &got);
    ps_source_fini(&source);
    if (err != PS_OK || n <= BODY_MAX) return ps_new_samples_name(s, err);
    return ps_err_set(
        PS_ERR_FORMAT,
        "%s has more than %d bytes when it is decompressed: psrun --predict "
        "takes such files",
        s->what, BODY_MAX);
}

static ps_err read_copy(ps_new_samples *s, const ps_loaded_model *m)
{
    char path[32];
    copy_path(s, path);
    return ps_new_samples_name(s, new_samples_read_file(s, m, path));
}

/* --- a folder ------------------------------------------------------------------------
 */

/* The class whose name the first folder below `folder` has, on the way to the file; -1:
 * none. */
static int64_t class_of_path(const ps_class_names *names, const char *folder,
                             const char *path)
{
    const char *at = path + strlen(folder);
    at += strspn(at, "/");
    const size_t n = strcspn(at, "/");
    for (int64_t k = 0; k < names->n && at[n]; k++)
        if (strlen(names->names[k]) == n && memcmp(names->names[k], at, n) == 0) return k;
    return -1;
}

/* Where all pictures lie in folders of classes, these are the truth. */
static void take_classes(ps_new_samples *s, const ps_loaded_model *m, const char *folder)
{
    const int64_t most = m->spec.n_outputs;
    for (int64_t i = 0; i < s->set.n; i++) {
        const int64_t k = class_of_path(&s->set.names, folder, s->set.files[i]);
        if (k < 0 || k >= most) return;
    }
    for (int64_t i = 0; i < s->set.n; i++)
        s->set.labels[i] = (int32_t)class_of_path(&s->set.names, folder, s->set.files[i]);
    s->answered = s->set.n > 0 && !PS_LOSS_OF_NUMBERS(m->spec.loss);
}

/* --- all -----------------------------------------------------------------------------
 */

static ps_err new_samples_name_classes(ps_new_samples *s, const ps_loaded_model *m)
{
    if (s->set.names.n == 0 && m->names.n > 0)
        return ps_class_names_copy(&m->names, &s->set.names);
    return ps_dataset_name_classes(m->config, &s->set);
}

static ps_err read_test(ps_new_samples *s, const ps_loaded_model *m)
{
    s->answered = true;
    s->named = true;
    PS_TRY(ps_dataset_load(m->config, PS_SPLIT_PREDICTED, &m->spec.input,
                           m->spec.n_outputs, &s->state, &s->set));
    if (s->set.n > 0) return PS_OK;
    return ps_err_set(PS_ERR_CONFIG,
                      "--predict test: there is no test set (data.test); name a file");
}

/* Of samples that do not fit. The model is trained, and stays as it is. */
static void say_mend(ps_new_samples *s, const ps_loaded_model *m)
{
    const int64_t n = s->set.n, count = ps_dims_count(&s->set.dims),
                  wanted = ps_dims_count(&m->spec.input);
    if (s->set.preprocessing && !m->state && count == wanted + 1)
        s->mend = PS_LOSS_OF_NUMBERS(m->spec.loss)
                      ? "leave out the last column, which is to be predicted"
                      : "leave out the class column";
    else if (!s->set.preprocessing && n > 1 && n * count == wanted)
        s->mend = "this is one sample: save x[None]";
    else
        s->mend = "give the samples the shape of those in training";
}

ps_err ps_new_samples_read(ps_new_samples *s, const ps_loaded_model *m, const char *what)
{
    const bool input = strcmp(what, "-") == 0, folder = ps_data_is_folder(what);
    *s = (ps_new_samples){.what = input ? STANDARD_INPUT : what, .state = m->state};
    if (strcmp(what, "test") == 0) {
        PS_TRY(read_test(s, m));
    } else if (input) {
        PS_TRY(new_samples_copy(s, stdin, NULL, 0));
        PS_TRY(read_copy(s, m));
    } else if (folder) {
        s->named = true;
        if (!takes_pictures(m)) return new_samples_refuse(what, m, "is a folder");
        PS_TRY(ps_dataset_of_folder(m->config, what, &m->spec.input, &s->set));
    } else {
        PS_TRY(new_samples_read_file(s, m, what));
    }
    PS_TRY(new_samples_name_classes(s, m));
    if (folder) take_classes(s, m, what);
    say_mend(s, m);
    return ps_dataset_doubt_type(m->config, m->samples, &s->set);
}

ps_err ps_new_samples_blame(const ps_new_samples *s, const ps_loaded_model *m, ps_err err)
{
    const ps_err_saved first = ps_err_save(err);
    ps_faulty_pictures f;
    if (!s->set.files || s->set.n < 2 || !ps_picture_is_faulty(err)) return err;
    PS_TRY(ps_faulty_pictures_find(&f, &m->config->data, &s->set,
                                   ps_deadline_in_ms(UINT64_MAX), NULL, NULL));
    PS_TRY(ps_faulty_pictures_error(&f, &s->what, 1));
    return ps_err_restore(&first);
}

void ps_new_samples_fini(ps_new_samples *s, const ps_loaded_model *m)
{
    ps_dataset_fini(&s->set);
    if (s->state != m->state) ps_preprocessing_destroy(&s->state);
    if (s->copy) fclose(s->copy);
    *s = (ps_new_samples){0};
}

/* --- JSON -----------------------------------------------------------------------------
 */

/* Numbers of a sample as they are stored: float32, or pixels of 8 bits. */
typedef struct store {
    float *floats; // one of the two
    uint8_t *pixels;
    int64_t room, n; // n counts all, also those without room
} store;

static ps_err store_number(store *to, const json_t *number, int64_t sample)
{
    const double value = json_is_number(number) ? json_number_value(number) : NAN;
    if (!json_is_number(number))
        return ps_err_set(PS_ERR_FORMAT,
                          "sample %" PRId64 ": value %" PRId64 " is %s, not a number",
                          sample, to->n,
                          json_is_string(number) ? "a text (take off its quotes)"
                          : json_is_null(number) ? "null"
                                                 : "true, false or an object");
    const bool fits = to->pixels ? value >= 0 && value <= 255 && value == floor(value)
                                 : isfinite((float)value);
    if (!fits)
        return ps_err_set(PS_ERR_FORMAT,
                          "sample %" PRId64 ": value %" PRId64 " is not %s", sample,
                          to->n,
                          to->pixels ? "a whole number from 0 to 255 (dtype uint8)"
                                     : "a number within float32");
    if (to->n < to->room && to->pixels) to->pixels[to->n] = (uint8_t)value;
    if (to->n < to->room && to->floats) to->floats[to->n] = (float)value;
    to->n++;
    return PS_OK;
}

/* Of lists within lists. */
static ps_err store_numbers(store *to, const json_t *at, int64_t sample)
{
    if (!json_is_array(at)) return store_number(to, at, sample);
    for (size_t i = 0; i < json_array_size(at) && to->n <= to->room; i++)
        PS_TRY(store_numbers(to, json_array_get(at, i), sample));
    return PS_OK;
}

/* Whether numbers are pixels as they are stored, to which data.scale belongs. */
static ps_err find_dtype(const ps_loaded_model *m, const json_t *root, bool *pixels)
{
    const json_t *dtype = json_is_object(root) ? json_object_get(root, "dtype") : NULL;
    const char *word = json_string_value(dtype);
    *pixels = m->samples == PS_SAMPLES_UINT8;
    if (!dtype) return PS_OK;
    *pixels = word && strcmp(word, "uint8") == 0;
    if (*pixels || (word && strcmp(word, "float32") == 0)) return PS_OK;
    return ps_err_set(PS_ERR_FORMAT, "dtype is \"float32\" or \"uint8\"");
}

static ps_err new_samples_read_numbers(ps_new_samples *s, const ps_loaded_model *m,
                                       const json_t *root, const json_t *samples)
{
    ps_dataset *set = &s->set;
    const int64_t count = ps_dims_count(&m->spec.input);
    const size_t n = json_array_size(samples);
    bool pixels;
    PS_TRY(find_dtype(m, root, &pixels));
    set->dims = m->spec.input;
    set->is_float = !pixels;
    const size_t size = pixels ? sizeof(uint8_t) : sizeof(float);
    PS_TRY(ps_mem_zalloc(&set->values, n * (size_t)count, size, "samples"));
    PS_TRY(PS_NEW(&set->labels, n, "labels"));
    for (; set->n < (int64_t)n; set->n++) {
        const json_t *one = json_array_get(samples, (size_t)set->n);
        store to = {.floats = pixels ? NULL : (float *)set->values + set->n * count,
                    .pixels = pixels ? (uint8_t *)set->values + set->n * count : NULL,
                    .room = count};
        if (!json_is_array(one))
            return ps_err_set(PS_ERR_FORMAT,
                              "sample %" PRId64 " is not a list of numbers: a list of "
                              "one sample is [[...]]",
                              set->n);
        PS_TRY(store_numbers(&to, one, set->n));
        if (to.n != count)
            return ps_err_set(PS_ERR_SHAPE,
                              "sample %" PRId64 " has %s%" PRId64
                              " numbers; the model's input has %" PRId64,
                              set->n, to.n > count ? "at least " : "", to.n, count);
    }
    return PS_OK;
}

static void write_cell_text(FILE *out, const char *text)
{
    fputc('"', out);
    for (; *text; text++) {
        if (*text == '"') fputc('"', out);
        fputc(*text, out);
    }
    fputc('"', out);
}

static ps_err write_json_cell(FILE *out, const json_t *value, int64_t sample,
                              const char *key)
{
    if (json_is_integer(value)) // which may be an id, and longer than a double keeps
        fprintf(out, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    else if (json_is_real(value))
        fprintf(out, "%.17g", json_number_value(value));
    else if (json_is_string(value))
        write_cell_text(out, json_string_value(value));
    else if (json_is_null(value))
        fputs("\"\"", out); // in a line without other cells, nothing would be no line
    else
        return ps_err_set(PS_ERR_FORMAT,
                          "sample %" PRId64
                          ": \"%.40s\" is not a number, a text or null%s",
                          sample, key,
                          json_is_boolean(value) ? ": write 1 or 0, or the text"
                                                 : ": a sample is an object of its own");
    return PS_OK;
}

/* As a table: the first object's keys name the columns. */
static ps_err write_objects(const json_t *samples, FILE *out)
{
    json_t *first = json_array_get(samples, 0), *ignored;
    const char *key;
    const char *between = "";
    json_object_foreach(first, key, ignored)
    {
        fputs(between, out);
        write_cell_text(out, key);
        between = ",";
    }
    fputc('\n', out);
    for (size_t i = 0; i < json_array_size(samples); i++) {
        const json_t *one = json_array_get(samples, i);
        if (json_object_size(one) != json_object_size(first))
            return ps_err_set(PS_ERR_FORMAT, "sample %zu has not the columns of sample 0",
                              i);
        between = "";
        json_object_foreach(first, key, ignored)
        {
            const json_t *value = json_object_get(one, key);
            if (!value)
                return ps_err_set(PS_ERR_FORMAT,
                                  "sample %zu has not the column \"%.40s\"", i, key);
            fputs(between, out);
            PS_TRY(write_json_cell(out, value, (int64_t)i, key));
            between = ",";
        }
        fputc('\n', out);
    }
    return PS_OK;
}

/* As a field of Criteo's lines. i: of a sample's cells, counts before ids. */
static ps_err write_click_cell(FILE *out, const json_t *value, int64_t sample, int i)
{
    const bool id = i >= PS_CRITEO_COUNTS;
    const char *text = json_string_value(value);
    if (i > 0) fputc('\t', out);
    if (json_is_null(value)) return PS_OK;
    if (!id && json_is_integer(value)) {
        fprintf(out, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    } else if (id && text && ps_criteo_is_id(text)) {
        fputs(text, out);
    } else {
        return ps_err_set(
            PS_ERR_FORMAT, "sample %" PRId64 ": value %d is neither null nor %s", sample,
            i,
            id ? "an id: hexadecimal digits of a number below 2^63, in quotes"
               : "a count: a whole number");
    }
    return PS_OK;
}

/* As Criteo's lines, without labels. */
static ps_err write_clicks(const json_t *samples, FILE *out)
{
    enum { CELLS = PS_CRITEO_COUNTS + PS_CRITEO_IDS };
    for (size_t i = 0; i < json_array_size(samples); i++) {
        const json_t *one = json_array_get(samples, i);
        if (json_array_size(one) != CELLS)
            return ps_err_set(PS_ERR_SHAPE,
                              "sample %zu has not 39 values: a click is a list of 13 "
                              "counts and 26 ids, [3, null, ..., \"68fd1e64\", ...]",
                              i);
        for (int k = 0; k < CELLS; k++)
            PS_TRY(write_click_cell(out, json_array_get(one, (size_t)k), (int64_t)i, k));
        fputc('\n', out);
    }
    return PS_OK;
}

/* Written as the text of a table, which is then read. names: it begins with names. */
static ps_err read_as_text(ps_new_samples *s, const ps_loaded_model *m,
                           const json_t *samples, const char *what, bool names)
{
    char *text = NULL;
    size_t bytes = 0; // open_memstream adds a NUL: the room for one more
    FILE *out = open_memstream(&text, &bytes);
    if (!out) return ps_err_errno(PS_ERR_NOMEM, "%s", what);
    ps_err err = names ? write_objects(samples, out) : write_clicks(samples, out);
    if (fclose(out) != 0 && err == PS_OK) err = ps_err_errno(PS_ERR_NOMEM, "%s", what);
    if (err == PS_OK)
        err = ps_dataset_of_table_text(m->config, &s->state, s->what, text, bytes, names,
                                       &s->set);
    free(text);
    return err == PS_OK ? new_samples_check(s) : err;
}

static ps_err read_objects(ps_new_samples *s, const ps_loaded_model *m,
                           const json_t *samples)
{
    if (!m->state || !m->state->named)
        return new_samples_refuse(s->what, m, "has values with names");
    return read_as_text(s, m, samples, "a table", true);
}

/* Whether an object is a sample of the model's table. */
static bool is_sample(const ps_loaded_model *m, const json_t *object)
{
    for (int64_t i = 0; m->state && m->state->named && i < m->state->n_columns; i++)
        if (json_object_get(object, m->state->columns[i].name)) return true;
    return false;
}

/* The samples' list, or one sample as a list, which is owned; NULL: there is none. */
static json_t *list_of_samples(const ps_loaded_model *m, json_t *root)
{
    json_t *samples = json_is_object(root) ? json_object_get(root, "samples") : root;
    if (!samples && is_sample(m, root)) samples = root;
    if (json_is_object(samples)) return json_pack("[O]", samples);
    return json_is_array(samples) && json_array_size(samples) > 0 ? json_incref(samples)
                                                                  : NULL;
}

static ps_err read_json(ps_new_samples *s, const ps_loaded_model *m, const char *text,
                        size_t bytes, int64_t most)
{
    json_error_t where;
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &where);
    if (!root)
        return ps_err_set(PS_ERR_FORMAT, "the JSON's line %d, column %d: %s%s",
                          where.line, where.column, where.text,
                          strstr(where.text, "near '\''") ? ": names and texts stand in "
                                                            "double quotes"
                          : strstr(where.text, "near 'NaN'") ? ": a missing cell is null"
                                                             : "");
    json_t *samples = list_of_samples(m, root);
    ps_err err;
    if (!samples)
        err = ps_err_set(PS_ERR_FORMAT,
                         "give {\"samples\": [...]} with one sample at least");
    else if (json_array_size(samples) > (size_t)most)
        err = ps_err_set(PS_ERR_FORMAT,
                         "%zu samples; at most %" PRId64 " at once: psrun --predict "
                         "takes files",
                         json_array_size(samples), most);
    else if (m->spec.n_columns > 0)
        err = read_as_text(s, m, samples, "clicks", false);
    else if (json_is_object(json_array_get(samples, 0)))
        err = read_objects(s, m, samples);
    else if ((err = new_samples_need_names(s, m)) == PS_OK)
        err = new_samples_read_numbers(s, m, root, samples);
    json_decref(samples);
    json_decref(root);
    return err;
}

ps_err ps_new_samples_of_body(ps_new_samples *s, const ps_loaded_model *m,
                              const char *text, size_t bytes, int64_t most)
{
    const char first = text[strspn(text, " \t\r\n")];
    *s = (ps_new_samples){.what = BODY, .state = m->state};
    if (bytes == 0) return new_samples_refuse(s->what, m, "is empty");
    if (first == '{' || first == '[') {
        PS_TRY(read_json(s, m, text, bytes, most));
    } else {
        PS_TRY(new_samples_copy(s, NULL, text, bytes));
        PS_TRY(new_samples_check_size(s));
        PS_TRY(read_copy(s, m));
    }
    if (s->set.n > most)
        return ps_err_set(PS_ERR_FORMAT,
                          "%" PRId64 " samples; at most %" PRId64 " at once", s->set.n,
                          most);
    PS_TRY(new_samples_name_classes(s, m));
    say_mend(s, m);
    return ps_dataset_doubt_type(m->config, m->samples, &s->set);
}
