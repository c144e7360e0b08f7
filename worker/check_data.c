#include "check_data.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "criteo.h"
#include "faulty_pictures.h"
#include "interrupt.h"
#include "loader.h"
#include "mem.h"
#include "printable.h"
#include "readable.h"
#include "row_set.h"
#include "trainer.h"
#include "wrapped.h"

enum { READ_MS = 5000, BATCH_MS = 60000, BATCH = 32 };
enum { COLUMNS = 80, INDENT = 12, NAME_BYTES = 50, ITEM_BYTES = 1600 };
enum { MOST_ROWS = 100, MOST_COLUMNS = 1000, MOST_BROKEN = 10, UNLIKE = 100 };
enum { NAME_COLUMNS = 24 }; // of a column's name, which may be longer

/* One of the two sets. */
typedef struct part {
    const ps_dataset *set;
    const char *key;
} part;

/* --- lines ------------------------------------------------------------------------- */

/* Of a line: the terminal's, at most COLUMNS. */
static int check_data_columns(FILE *out)
{
    const int n = ps_terminal_columns(out);
    return n > 0 && n < COLUMNS ? n : COLUMNS;
}

/* A label, and a text that is broken between words. */
__attribute__((format(printf, 3, 4))) static void print_item(FILE *out, const char *label,
                                                             const char *fmt, ...)
{
    char said[ITEM_BYTES], text[ITEM_BYTES];
    PS_PRINT(said, fmt);
    ps_printable(said, text, sizeof text);
    fprintf(out, "%-*s", INDENT, label);
    ps_print_wrapped(out, check_data_columns(out), INDENT, INDENT, text);
}

static const char *check_data_plural(int64_t n)
{
    return n == 1 ? "" : "s";
}

/* The training part; with train.epochs=0 there is none. */
static const ps_dataset *check_data_first(const ps_check_data_options *o)
{
    return o->data->train.n > 0 ? &o->data->train : &o->data->test;
}

/* --- what the model gets ----------------------------------------------------------- */

typedef struct figures {
    int64_t samples, values;
    double least, most, sum, squares;
    double seconds;
} figures;

static void figures_add(figures *f, const float *values, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const double v = values[i];
        f->least = f->values + i == 0 || v < f->least ? v : f->least;
        f->most = f->values + i == 0 || v > f->most ? v : f->most;
        f->sum += v;
        f->squares += v * v;
    }
    f->values += n;
}

/* To the table's units, without squares. */
static void figures_scale(figures *f, double std, double mean)
{
    f->least = f->least * std + mean;
    f->most = f->most * std + mean;
    f->sum = f->sum * std + mean * (double)f->values;
}

static ps_err read_batches(const ps_check_data_options *o, ps_loader *loader, figures *f)
{
    const uint64_t begun_ns = ps_clock_ns();
    const ps_deadline end = ps_deadline_in_ms(READ_MS);
    const int64_t count = ps_dims_count(&o->spec->input);
    ps_loaded *b;
    PS_TRY(ps_loader_epoch(loader, 0, 0));
    do {
        PS_TRY(ps_interrupt_check());
        PS_TRY(ps_loader_next(loader, ps_deadline_in_ms(BATCH_MS), &b));
        if (!b) break;
        figures_add(f, b->x, b->n * count);
        f->samples += b->n;
        ps_loader_release(loader, b);
    } while (!ps_deadline_passed(end));
    f->seconds = ps_clock_seconds_since(begun_ns);
    return PS_OK;
}

/* By a loader as the job's. */
static ps_err read_data_part(const ps_check_data_options *o, const part *p, figures *f)
{
    const ps_dataset *set = p->set;
    const int64_t batch = BATCH;
    const ps_sampler_options random = {.n_samples = set->n,
                                       .world_size = 1,
                                       .shuffle = true,
                                       .seed = o->config->data.seed,
                                       .batch = &batch};
    const ps_loader_options options = {.config = o->config,
                                       .dataset = set,
                                       .input = &o->spec->input,
                                       .sampler = set == &o->data->train ? &random : NULL,
                                       .n = set->n,
                                       .max_batch = batch,
                                       .classes = o->spec->n_outputs,
                                       .columns = o->spec->n_columns};
    ps_loader *loader = NULL;
    ps_err err = ps_loader_create(&options, &loader);
    if (err == PS_ERR_SHAPE) ps_err_prefix(err, "%s", p->key);
    if (err == PS_OK) err = read_batches(o, loader, f);
    ps_loader_destroy(&loader);
    return err;
}

/* What the model gets; of a table with names, its columns say so. */
static void print_read(const ps_dataset *set, const figures *f, FILE *out)
{
    const double n = (double)f->values, mean = f->sum / n;
    const double variance = fmax(f->squares / n - mean * mean, 0);
    if (f->samples == set->n && set->table && set->preprocessing->named) return;
    print_item(out, "  read",
               "%s%s in %.1f s: from %.4g to %.4g, mean %.4g, "
               "deviation %.4g%s",
               f->samples == set->n ? "all " : "", PS_COUNTED(f->samples), f->seconds,
               f->least, f->most, mean, sqrt(variance),
               f->samples == set->n ? "" : "; the others were not looked at");
}

/* --- columns of a table ------------------------------------------------------------ */

typedef struct range {
    double least, most;
    int64_t numbers, missing;
} range;

static double range_size(const range *r)
{
    return fmax(fabs(r->least), fabs(r->most));
}

/* ranges: (inputs) of a table as its file has it. */
static ps_err find_ranges(const ps_table *t, range *ranges)
{
    ps_table_scan scan = {.table = t};
    for (const ps_cell *row; (row = ps_table_scan_next(&scan));)
        for (int64_t k = 0; k < t->n_inputs; k++) {
            range *r = &ranges[k];
            r->missing += ps_cell_is_missing(row[k]);
            if (!ps_cell_is_number(row[k])) continue;
            if (r->numbers == 0 || row[k] < r->least) r->least = row[k];
            if (r->numbers++ == 0 || row[k] > r->most) r->most = row[k];
        }
    return ps_table_scan_end(&scan);
}

static const char *column_text(const ps_dataset *set, int64_t column,
                               char out[NAME_BYTES + 32])
{
    char name[NAME_BYTES] = "";
    if (set->preprocessing->named)
        ps_printable(set->preprocessing->columns[column].name, name, sizeof name);
    else if (column < set->columns.n)
        ps_printable(set->columns.names[column], name, sizeof name);
    if (set->preprocessing->named) return strcpy(out, name);
    snprintf(out, NAME_BYTES + 32, "column %" PRId64 "%s%s", column + 1,
             name[0] ? " " : "", name);
    return out;
}

/* Columns of zeros have no size. */
static void warn_of_unlike(const ps_check_data_options *o, const ps_dataset *set,
                           const range *columns, FILE *out)
{
    char small[NAME_BYTES + 32], large[NAME_BYTES + 32];
    int64_t least = -1, most = 0;
    for (int64_t i = 0; i < set->preprocessing->n_columns; i++) {
        const double size = range_size(&columns[i]);
        if (set->preprocessing->columns[i].std != 1) return; // it is done
        if (size > range_size(&columns[most])) most = i;
        if (size > 0 && (least < 0 || size < range_size(&columns[least]))) least = i;
    }
    if (least < 0 || o->spec->layers[0].kind == PS_LAYER_BATCH_NORM2D) return;
    const double times = range_size(&columns[most]) / range_size(&columns[least]);
    if (times <= UNLIKE) return;
    print_item(out, "  look at",
               "the values of %s are %.3g times as large as those of %s: bring all to a "
               "like size, for instance (x - mean) / std, or begin the layers with "
               "batch_norm1d",
               column_text(set, most, large), times, column_text(set, least, small));
}

/* "4 texts: Oslo, Paris, ...", as long as there is room for them. */
static void print_categories(const ps_class_names *texts, int room, FILE *out)
{
    char name[NAME_BYTES];
    room -= fprintf(out, "%s text%s:", PS_COUNTED(texts->n), check_data_plural(texts->n));
    for (int64_t k = 0; k < texts->n; k++) {
        const int n = (int)ps_printable(texts->names[k], name, sizeof name);
        const bool last = k + 1 == texts->n;
        if (n + 2 > room - (last ? 0 : (int)strlen(" ...")) && k > 0) {
            fputs(" ...", out);
            return;
        }
        room -= fprintf(out, " %s%s", name, last ? "" : ",");
    }
}

/* ", 99 missing, 23 missing in data.test" */
static int check_data_missing(const range *r, const range *test, char out[2 * NAME_BYTES])
{
    int n = 0;
    out[0] = '\0';
    if (r->missing > 0) n = sprintf(out, ", %s missing", PS_COUNTED(r->missing));
    if (test->missing > 0)
        n += sprintf(out + n, ", %s missing in data.test", PS_COUNTED(test->missing));
    return n;
}

/* ranges: of the training part's columns; test: of the test part's. */
static void print_column(const ps_dataset *set, int64_t i, const range *r,
                         const range *test, FILE *out)
{
    char text[NAME_BYTES + 32], least[PS_READABLE_BYTES], most[PS_READABLE_BYTES];
    char missing[2 * NAME_BYTES], *said = NULL;
    size_t bytes;
    const ps_column *column = &set->preprocessing->columns[i];
    const ps_class_names *texts = &column->categories;
    FILE *line = open_memstream(&said, &bytes);
    if (!line) return;
    const int wide = ps_text_columns(column_text(set, i, text));
    const int rest = NAME_COLUMNS > wide ? NAME_COLUMNS - wide : 0;
    const int at = INDENT + wide + rest + 2;
    fprintf(out, "%*s%s%*s  ", INDENT, "", text, rest, "");
    const int columns = check_data_columns(out);
    int room = columns - at - check_data_missing(r, test, missing);
    if (column->embedded) room -= fprintf(line, "an embedding of ");
    if (texts->n > 0)
        print_categories(texts, room, line);
    else
        fprintf(line, "%s to %s", ps_readable_value(r->least, r->most - r->least, least),
                ps_readable_value(r->most, r->most - r->least, most));
    fprintf(line, "%s", missing);
    fclose(line);
    ps_print_wrapped(out, columns, at, INDENT + NAME_COLUMNS + 2, said);
    free(said);
}

/* Names of a key, as a text. */
static void names_text(ps_names names, char out[ITEM_BYTES / 2])
{
    char name[ITEM_BYTES / 4];
    size_t at = 0;
    for (int i = 0; ps_names_at(names, i, name, sizeof name) && at < ITEM_BYTES / 2; i++)
        at += (size_t)snprintf(out + at, ITEM_BYTES / 2 - at, "%s%s", i > 0 ? ", " : "",
                               name);
}

static void print_left_out(const ps_config_data *data, FILE *out)
{
    char names[ITEM_BYTES / 2] = "";
    names_text(data->drop, names);
    if (names[0]) print_item(out, "left out", "%s (data.drop)", names);
    if (data->columns[0])
        print_item(out, "left out", "all columns that data.columns does not name");
}

static ps_err print_columns(const ps_check_data_options *o, FILE *out)
{
    const ps_dataset *set = check_data_first(o), *test = &o->data->test;
    const int64_t n = set->preprocessing->n_columns;
    range *ranges, *of_test;
    PS_TRY(PS_NEW(&ranges, (size_t)(2 * n), "columns"));
    of_test = ranges + n;
    ps_err err = find_ranges(set->table, ranges);
    if (err == PS_OK && test->table && test != set)
        err = find_ranges(test->table, of_test);
    print_item(out, "columns", "%s, which become %s input%s", PS_COUNTED(n),
               PS_COUNTED(set->dims.d[0]), check_data_plural(set->dims.d[0]));
    for (int64_t i = 0; i < n && i < MOST_COLUMNS && err == PS_OK; i++)
        print_column(set, i, &ranges[i], &of_test[i], out);
    if (n > MOST_COLUMNS)
        fprintf(out, "%*sand %s more\n", INDENT, "", PS_COUNTED(n - MOST_COLUMNS));
    print_left_out(&o->config->data, out);
    if (err == PS_OK) warn_of_unlike(o, set, ranges, out);
    free(ranges);
    return err;
}

/* --- pictures that cannot be read -------------------------------------------------- */

typedef struct faulty_list {
    FILE *out;
    int64_t printed;
} faulty_list;

/* Prints the first errors. */
static void print_faulty(void *ctx, int64_t i, ps_err err)
{
    faulty_list *list = ctx;
    char text[ITEM_BYTES];
    if (!ps_picture_is_faulty(err) || list->printed++ >= MOST_BROKEN) return;
    ps_printable(ps_err_message(), text, sizeof text);
    fprintf(list->out, "%*s%s\n", INDENT, "", text);
}

static ps_err find_faulty(const ps_check_data_options *o, const part *p, FILE *out,
                          ps_faulty_pictures *f)
{
    faulty_list list = {.out = out};
    if (!p->set->files) return PS_OK;
    PS_TRY(ps_faulty_pictures_find(f, &o->config->data, p->set,
                                   ps_deadline_in_ms(READ_MS), print_faulty, &list));
    if (list.printed > MOST_BROKEN)
        fprintf(out, "%*sand %s more\n", INDENT, "",
                PS_COUNTED(list.printed - MOST_BROKEN));
    return PS_OK;
}

/* Of all parts at once. err: of the first such picture, after which the loader has
 * stopped. */
static ps_err report_faulty(const ps_check_data_options *o, const part parts[2],
                            ps_err err, FILE *out)
{
    const ps_err_saved first = ps_err_save(err);
    ps_faulty_pictures f[2] = {0};
    if (!parts[0].set->files && !parts[1].set->files) return err;
    if (!ps_picture_is_faulty(err)) return err;
    for (int i = 0; i < 2; i++)
        PS_TRY(find_faulty(o, &parts[i], out, &f[i]));
    fflush(out);
    PS_TRY(ps_faulty_pictures_error(f, (const char *[]){parts[0].key, parts[1].key}, 2));
    return ps_err_restore(&first); // it stands behind those
}

/* --- what it is compared with ------------------------------------------------------ */

/* counts: (classes) samples of each. Returns how many samples are of none. */
static int64_t check_data_count_classes(const ps_dataset *set, int64_t classes,
                                        int64_t *counts)
{
    int64_t others = 0;
    for (int64_t i = 0; i < set->n; i++)
        if (set->labels[i] >= 0 && set->labels[i] < classes)
            counts[set->labels[i]]++;
        else
            others++;
    return others;
}

/* "2 Rome", or the number alone where that is the name, too. */
static const char *class_text(const ps_dataset *set, int64_t class,
                              char out[NAME_BYTES + 32])
{
    char name[NAME_BYTES] = "";
    const int n = snprintf(out, NAME_BYTES + 32, "%" PRId64, class);
    if (ps_class_name(&set->names, class))
        ps_printable(ps_class_name(&set->names, class), name, sizeof name);
    if (name[0] && strcmp(name, out) != 0)
        snprintf(out + n, NAME_BYTES + 32 - (size_t)n, " %s", name);
    return out;
}

/* train, test: (classes) */
static void print_classes(const ps_check_data_options *o, int64_t classes,
                          const int64_t *train, const int64_t *test, FILE *out)
{
    const ps_dataset *first = check_data_first(o), *second = &o->data->test;
    const bool two = second != first && second->n > 0;
    char name[NAME_BYTES + 32];
    fprintf(out, "%*s%10s%11s  class\n", INDENT, "",
            first == second ? "data.test" : "data.train", two ? "data.test" : "");
    for (int64_t k = 0; k < classes && k < MOST_ROWS; k++) {
        fprintf(out, "%*s%10s", INDENT, "", PS_COUNTED(train[k]));
        if (two)
            fprintf(out, "%11s", PS_COUNTED(test[k]));
        else
            fprintf(out, "%11s", "");
        fprintf(out, "  %s\n", class_text(first, k, name));
    }
    if (classes > MOST_ROWS)
        fprintf(out, "%*sand %s more\n", INDENT, "", PS_COUNTED(classes - MOST_ROWS));
}
static ps_err print_labels(const ps_check_data_options *o, FILE *out)
{
    const ps_dataset *sets[] = {check_data_first(o), &o->data->test};
    int64_t classes = o->spec->n_outputs, ignored[2] = {0}, known = sets[0]->names.n;
    int64_t *counts;
    for (int i = 0; i < 2; i++) {
        if (sets[i]->n_classes > known) known = sets[i]->n_classes;
        if (sets[i]->n_classes > classes) classes = sets[i]->n_classes;
    }
    PS_TRY(PS_NEW(&counts, 2 * (size_t)classes, "classes"));
    for (int i = 0; i < 2; i++)
        if (sets[i]->labels)
            ignored[i] = check_data_count_classes(sets[i], classes, counts + i * classes);
    char name[ITEM_BYTES / 2] = "";
    names_text(o->config->data.target, name);
    print_item(out, name[0] ? "target" : "classes", "%s%s%s class%s", name,
               name[0] ? ", " : "", PS_COUNTED(known), known == 1 ? "" : "es");
    print_classes(o, classes, counts, counts + classes, out);
    for (int i = sets[0] == sets[1]; i < 2; i++)
        if (ignored[i] > 0)
            print_item(out, "left out",
                       "%s sample%s of %s with the label %" PRId64
                       " (train.ignore_index)",
                       PS_COUNTED(ignored[i]), check_data_plural(ignored[i]),
                       sets[i] == &o->data->test ? "data.test" : "data.train",
                       o->config->train.ignore_index);
    free(counts);
    return PS_OK;
}

/* The different ids of each column, and how many cells are missing. */
static ps_err collect_ids(const ps_dataset *set, ps_row_set *ids, int64_t *missing)
{
    char *sample = NULL;
    uint32_t at;
    ps_err err = PS_OK;
    if (set->stream)
        PS_TRY(ps_mem_zalloc(&sample, ps_sample_file_room(set->stream), 1, "a sample"));
    for (int64_t i = 0; i < set->n && err == PS_OK; i++) {
        const void *of = set->ids ? set->ids + i * set->n_ids
                                  : ps_sample_file_more(set->stream, sample);
        if (!set->ids) err = ps_sample_file_read(set->stream, i, sample);
        for (int64_t c = 0; c < set->n_ids && err == PS_OK; c++) {
            uint64_t id;
            memcpy(&id, (const char *)of + c * (int64_t)sizeof id, sizeof id);
            *missing += id == PS_CRITEO_MISSING;
            err = ps_row_set_add(&ids[c], 1, &id, &at);
        }
    }
    free(sample);
    return err;
}

/* Of embedding tables. */
static ps_err print_ids(const ps_dataset *set, FILE *out)
{
    uint64_t least = UINT64_MAX, most = 0, sum = 0;
    int64_t missing = 0;
    char each[2 * PS_READABLE_BYTES + 8], absent[NAME_BYTES] = "";
    ps_row_set *ids;
    PS_TRY(PS_NEW(&ids, (size_t)set->n_ids, "ids"));
    for (int64_t c = 0; c < set->n_ids; c++)
        ps_row_set_init(&ids[c], PS_ROW_KEY_PLAIN);
    const ps_err err = collect_ids(set, ids, &missing);
    for (int64_t c = 0; c < set->n_ids; c++) {
        least = ids[c].n < least ? ids[c].n : least;
        most = ids[c].n > most ? ids[c].n : most;
        sum += ids[c].n;
        ps_row_set_fini(&ids[c]);
    }
    free(ids);
    PS_TRY(err);
    snprintf(each, sizeof each, "%s", PS_COUNTED(most));
    if (least < most)
        snprintf(each, sizeof each, "%s to %s", PS_COUNTED(least), PS_COUNTED(most));
    if (missing > 0)
        snprintf(absent, sizeof absent, "; %s missing of %s", PS_COUNTED(missing),
                 PS_COUNTED(set->n * set->n_ids));
    print_item(out, "  ids",
               "%" PRId64 " columns, C1 to C%" PRId64
               "; %s different id%s in %s column, %s in all%s",
               set->n_ids, set->n_ids, each, check_data_plural((int64_t)most),
               least < most ? "a" : "each", PS_COUNTED(sum), absent);
    return PS_OK;
}

/* How many of the targets are 0 and 1; false: there are others. */
static bool count_yes_or_no(const ps_dataset *set, int64_t k, int64_t counts[2])
{
    counts[0] = counts[1] = 0;
    for (int64_t i = 0; i < set->n; i++) {
        const float value = set->targets[i * set->n_targets + k];
        if (value != 0 && value != 1) return false;
        counts[value == 1]++;
    }
    return set->n > 0;
}

/* name: "", or of the column, with a comma. false: they are no labels. */
static bool print_yes_or_no(const ps_check_data_options *o, int64_t k, const char *name,
                            FILE *out)
{
    const ps_dataset *sets[] = {check_data_first(o), &o->data->test};
    const int n_sets = sets[0] != sets[1] && sets[1]->n > 0 ? 2 : 1;
    int64_t counts[2][2];
    if (o->spec->loss != PS_LOSS_BCE_WITH_LOGITS) return false;
    for (int i = 0; i < n_sets; i++)
        if (!count_yes_or_no(sets[i], k, counts[i])) return false;
    char test[NAME_BYTES * 2] = "";
    if (n_sets > 1)
        snprintf(test, sizeof test, "; in data.test 0 in %s, 1 in %s",
                 PS_COUNTED(counts[1][0]), PS_COUNTED(counts[1][1]));
    print_item(out, "target", "%sa label (bce_with_logits): 0 in %s samples, 1 in %s%s",
               name, PS_COUNTED(counts[0][0]), PS_COUNTED(counts[0][1]), test);
    return true;
}

/* In the units of the table. */
static void print_numbers(const ps_check_data_options *o, FILE *out)
{
    const ps_dataset *set = check_data_first(o);
    const ps_column *targets = set->table ? set->preprocessing->targets : NULL;
    const bool named = targets && set->preprocessing->named;
    char least[PS_READABLE_BYTES], most[PS_READABLE_BYTES], mean[PS_READABLE_BYTES];
    char name[ITEM_BYTES / 2];
    for (int64_t k = 0; k < set->n_targets && k < MOST_ROWS; k++) {
        figures f = {0};
        snprintf(name, sizeof name, "%s%s", named ? targets[k].name : "",
                 named ? ", " : "");
        if (print_yes_or_no(o, k, name, out)) continue;
        for (int64_t i = 0; i < set->n; i++)
            figures_add(&f, &set->targets[i * set->n_targets + k], 1);
        if (targets) figures_scale(&f, targets[k].std, targets[k].mean);
        const double span = f.most - f.least;
        print_item(out, "target", "%sa number (%s%s): %s to %s, mean %s", name,
                   o->spec->loss == PS_LOSS_BCE_WITH_LOGITS ? "" : "regression, ",
                   ps_word_name(ps_loss_words, (int)o->spec->loss),
                   ps_readable_value(f.least, span, least),
                   ps_readable_value(f.most, span, most),
                   ps_readable_value(f.sum / (double)f.values, span, mean));
    }
    if (set->n_targets > MOST_ROWS)
        print_item(out, "", "and %s more", PS_COUNTED(set->n_targets - MOST_ROWS));
}

/* --- all --------------------------------------------------------------------------- */

static const char *check_data_storage_of(const ps_dataset *set)
{
    return set->files ? "pictures, read as" : set->is_float ? "float32," : "uint8,";
}

/* Where a part comes from, as the configuration has it: "", "(all.csv)". */
static const char *part_source(const ps_check_data_options *o, bool test,
                               char out[ITEM_BYTES / 2])
{
    const ps_config_data *d = &o->config->data;
    const bool share = ps_config_test_is_share(o->config);
    const char *named = test && !share ? d->test : d->train;
    out[0] = '\0';
    if (share && test)
        snprintf(out, ITEM_BYTES / 2, " (%s of data.train; data.test_by: %s)", d->test,
                 d->test_by);
    else if (named[0])
        snprintf(out, ITEM_BYTES / 2, " (%s%s)", named,
                 share ? ", without data.test" : "");
    return out;
}

static ps_err check_data_part(const ps_check_data_options *o, const part *p, FILE *out)
{
    const ps_dataset *set = p->set;
    char shape[PS_DIMS_TEXT], source[ITEM_BYTES / 2];
    figures f = {0};
    part_source(o, set == &o->data->test, source);
    if (set->n == 0) {
        print_item(out, p->key,
                   set == &o->data->train ? "not read (train.epochs: 0)"
                                          : "none: nothing is evaluated");
        return PS_OK;
    }
    if (set->table && set->preprocessing->named)
        print_item(out, p->key, "%s sample%s%s", PS_COUNTED(set->n),
                   check_data_plural(set->n), source);
    else
        print_item(out, p->key, "%s sample%s, %s %s%s", PS_COUNTED(set->n),
                   check_data_plural(set->n), check_data_storage_of(set),
                   ps_dims_product_text(&set->dims, shape), source);
    if (set->notes) print_item(out, "  note", "%s", set->notes);
    if (set->doubts) print_item(out, "  look at", "%s", set->doubts);
    fflush(out);
    PS_TRY(read_data_part(o, p, &f));
    print_read(set, &f, out);
    if (set->n_ids > 0) return print_ids(set, out);
    return PS_OK;
}

static int64_t samples_of_step(const ps_check_data_options *o)
{
    int64_t sum = 0;
    for (int r = 0; r < o->sampler->world_size; r++)
        sum += o->sampler->batch[r];
    return sum * o->accumulate;
}

static void print_steps(const ps_check_data_options *o, FILE *out)
{
    const int64_t each = samples_of_step(o),
                  left = o->sampler->n_samples - ps_sampler_n_seen(o->sampler);
    ps_config once = *o->config;
    once.train.epochs = 1;
    once.train.steps = 0;
    const int64_t steps =
        (int64_t)ps_trainer_total_steps(&once, o->sampler, o->accumulate, 0);
    print_item(out, "an epoch", "%s step%s of %s samples; %d worker%s", PS_COUNTED(steps),
               check_data_plural(steps), PS_COUNTED(each), o->sampler->world_size,
               check_data_plural(o->sampler->world_size));
    if (left > 0)
        print_item(out, "  left out",
                   "%s sample%s of each epoch, %s each time "
                   "(data.drop_last, data.drop_last_batch)",
                   PS_COUNTED(left), check_data_plural(left),
                   o->sampler->shuffle ? "others" : "the same");
    print_item(out, "the job", "%s step%s", PS_COUNTED(o->total_steps),
               check_data_plural((int64_t)o->total_steps));
}

ps_err ps_check_data(const ps_check_data_options *o, FILE *out)
{
    const ps_config_data *data = &o->config->data;
    print_item(out, "data", "%s, in %s", ps_word_name(ps_data_words, (int)data->kind),
               data->path[0] ? data->path : ".");
    const part parts[] = {{&o->data->train, "data.train"}, {&o->data->test, "data.test"}};
    for (int i = 0; i < 2; i++) {
        const ps_err err = check_data_part(o, &parts[i], out);
        if (err != PS_OK) return report_faulty(o, parts, err, out);
    }
    const ps_dataset *first = check_data_first(o);
    if (first->table) PS_TRY(print_columns(o, out));
    if (first->labels)
        PS_TRY(print_labels(o, out));
    else if (first->targets)
        print_numbers(o, out);
    if (o->total_steps > 0) print_steps(o, out);
    return PS_OK;
}
