/* Samples: images or feature vectors, in memory, in a file of theirs or as files of
 * pictures, each with a class or with numbers. */
#ifndef PS_SAMPLES_H
#define PS_SAMPLES_H

#include "class_names.h"
#include "err.h"
#include "sample_file.h"
#include "table.h"
#include "tensor.h"
#include "yaml_tree.h"

typedef struct ps_dataset {
    int64_t n;     // samples
    ps_dims dims;  // one sample's: (C, H, W), (H, W) or (F)
    bool is_float; // float32 values, else uint8 pixels
    void *values;  // (n, dims), row-major; owned; NULL: files, stream or table
    char **files;  // (n) pictures, read when they are needed (picture_reader.h); owned
    ps_sample_file *stream; // (n, dims), read when they are needed; owned
    ps_table *table; // (n) lines, of which samples are made when they are needed ...
    const ps_preprocessing *preprocessing; // ... by this; owned, and borrowed
    int64_t *ids; // (n, n_ids) that embedding tables are asked for; owned; NULL: none, or
                  // behind the values of stream
    int64_t n_ids;          // 0: none
    int32_t *labels;        // (n), 0 .. n_classes - 1, or ignored; owned; NULL: targets
    int64_t n_classes;      // 1 + the largest label
    ps_class_names names;   // of the classes, where the data have them
    ps_class_names columns; // names, too: of a table's, the answer's last; or none
    int64_t first, *rows;   // (n) places in the files; owned; NULL: first, first + 1, ...
    bool answered;          // labels or targets are the data's own, not made up
    ps_class_names key_names, keys; // of data.drop; (n * key_names.n) texts, or none
    float *targets;                 // (n, n_targets); owned; NULL: labels
    int64_t n_targets;
    char *notes;  // what a reader took as something else than a sample; owned; or NULL
    char *doubts; // what may not be as it was meant; owned; or NULL
} ps_dataset;

/* What the model's outputs are compared with. */
typedef struct ps_wanted {
    bool numbers;        // else classes
    int64_t n;           // classes, or numbers of a sample; 0: any
    bool may_be_ignored; // a label may be ignore_index, which need not be a class
    int32_t ignore_index;
    bool unit;           // numbers are 0 to 1
    bool nothing;        // the samples have no answers; every label is 0
    bool keys;           // the columns of data.drop, too
    const ps_yaml *last; // the linear layer whose outputs these are; NULL: not known
} ps_wanted;

enum { PS_OUTPUTS_TEXT = 256 };
/* How the model gets n outputs: "set out: 3 in linear \"classes\" (job.yaml:5)". Returns
 * out. */
const char *ps_wanted_outputs(const ps_wanted *wanted, int64_t n,
                              char out[PS_OUTPUTS_TEXT]);

/* Whether a table with that many answers in a line has numbers: as many as the model has
 * outputs. */
static inline bool ps_wanted_numbers(const ps_wanted *wanted, int64_t n_answers)
{
    return wanted->numbers && (n_answers > 1 || wanted->n == 1);
}

void ps_dataset_fini(ps_dataset *set); // safe on a zeroed set, or after a failure

/* Adds a text to a set's notes or doubts, unless they are long already. NOMEM. */
__attribute__((format(printf, 2, 3))) ps_err ps_dataset_note(char **notes,
                                                             const char *fmt, ...);

/* FORMAT, naming the first column that differs: two tables whose columns have other
 * names, or the same in another order, are of different data. Where one has no names,
 * PS_OK. where, known_where: what has them, for the message. */
ps_err ps_dataset_columns_check(const ps_class_names *columns, const char *where,
                                const ps_class_names *known, const char *known_where);

/* Logs both. key: what names the data. */
void ps_dataset_log(const ps_dataset *set, const char *key);

/* The bytes of n samples of dims. FORMAT when the number overflows or exceeds the address
 * space; the message begins with name. */
ps_err ps_dataset_bytes(const char *name, int64_t n, const ps_dims *dims, bool is_float,
                        uint64_t *bytes);

/* FORMAT when last is not below n, or before first. */
ps_err ps_dataset_check_range(int64_t n, int64_t first, int64_t last);
/* Keeps only the samples first .. last (inclusive). FORMAT when last does not exist. */
ps_err ps_dataset_slice(ps_dataset *set, int64_t first, int64_t last);

/* Keeps only those samples of a set that is no table; rows: (n) in rising order. NOMEM.
 */
ps_err ps_dataset_keep(ps_dataset *set, const int64_t *rows, int64_t n);

/* Which of the samples of its files, one after the other, sample i is, from 0: where a
 * range, a share or what can be read was taken. */
int64_t ps_dataset_place(const ps_dataset *set, int64_t i);

/* Sets n_classes from the labels. FORMAT when a label is not a class as wanted, naming
 * the sample by its place. NUMERIC when a float value in memory is not finite. Readers
 * check targets. */
ps_err ps_dataset_check(ps_dataset *set, const ps_wanted *wanted);

/* Tells sets apart by the number of their samples and by their answers, not by what they
 * are answers to. Below 2^53; 0: there are no samples. */
uint64_t ps_dataset_mark(const ps_dataset *set);

/* SHAPE when the samples have fewer columns of ids than a model reads. */
ps_err ps_dataset_check_ids(const ps_dataset *set, int64_t columns);

/* For a model with one output: each label becomes its sample's target. NOMEM. */
ps_err ps_dataset_labels_to_targets(ps_dataset *set);

/* FORMAT, NUMERIC when value is not finite, or not within wanted's range. */
ps_err ps_target_check(const char *path, int64_t sample, int64_t column, double value,
                       const ps_wanted *wanted);

#endif
