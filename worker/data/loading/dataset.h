/* Loads datasets by name: chooses the reader, the files and the part of them. */
#ifndef PS_DATASET_H
#define PS_DATASET_H

#include "config.h"
#include "preprocessing.h"
#include "samples.h"

typedef enum ps_split {
    PS_SPLIT_TRAIN,
    PS_SPLIT_TEST,
    PS_SPLIT_PREDICTED // the test samples, with their keys (ps_dataset_of_table)
} ps_split;

/* Reads a split as data.* of the configuration says: data.kind names the reader;
 * data.path, data.train and data.test name the files (grammar: data_files.h). Sizes in
 * headers are checked against the files before anything is allocated. want: the model's
 * input, which synthetic data and pictures take as their shape (others ignore it);
 * n_classes: the model's classes, which bound the labels (0: unknown). Of pictures only
 * the files are listed. *state (state NULL: the kind has no tables): of tables, the
 * preprocessing that out then borrows; where it is NULL, it is fitted to the training
 * part and owned by the caller, even after a failure. IO, FORMAT, NUMERIC or CONFIG on
 * failure, naming file and field; out is then zeroed. */
ps_err ps_dataset_load(const ps_config *cfg, ps_split split, const ps_dims *want,
                       int64_t n_classes, ps_preprocessing **state, ps_dataset *out);

/* Adds a doubt to the test samples where they are training samples, too, as far as their
 * files and ranges say. IO, CONFIG, NOMEM. */
ps_err ps_dataset_doubt_shared(const ps_config *cfg, ps_dataset *test);

/* The type in which samples are stored. uint8 is multiplied by data.scale, so a model
 * that was trained on the one takes the other for something else. */
typedef enum ps_sample_type {
    PS_SAMPLES_UNKNOWN, // or of a table, or clicks
    PS_SAMPLES_UINT8,
    PS_SAMPLES_FLOAT32,
} ps_sample_type;

ps_sample_type ps_dataset_type(const ps_dataset *set);
const char *ps_sample_type_name(ps_sample_type type); // NULL: not known
/* That of the samples on which these weights were trained. IO, FORMAT. */
ps_err ps_dataset_trained_type(const ps_config *cfg, const char *weights,
                               ps_sample_type *out);
/* Adds a doubt to samples of another type than the model was trained on, unless they are
 * within what data.scale makes of uint8. NOMEM. */
ps_err ps_dataset_doubt_type(const ps_config *cfg, ps_sample_type trained,
                             ps_dataset *set);

/* One sample's shape, as the training samples have it: for a job without model.input; and
 * its model.categories.
 * n_classes: as above.
 * Tables are read, and fitted unless train.init has their state. CONFIG where the data do
 * not say; errors as above. */
ps_err ps_dataset_find_input(const ps_config *cfg, int64_t n_classes, ps_int_list *input,
                             ps_int_list *categories);

/* CONFIG where the table's embedded columns are not what model.categories says. */
ps_err ps_dataset_check_categories(const ps_config *cfg, const ps_preprocessing *p);

/* The preprocessing of train.init, where its weights are taken as they are; *out NULL:
 * there is none, or the file is not on this host. FORMAT, IO, NOMEM. */
ps_err ps_dataset_known_state(const ps_config *cfg, ps_preprocessing **out);

/* The pictures of a folder and of folders within it, in the order of image_folder.h, each
 * with the label 0. They become samples as those of data.kind image_folder do in an
 * evaluation. Errors as above. */
ps_err ps_dataset_of_folder(const ps_config *cfg, const char *folder, const ps_dims *want,
                            ps_dataset *out);

/* A table to predict, as *state says, which out borrows: a file, or a text in memory,
 * which is changed and has room for one more byte (name: for messages; objects: as in
 * csv.h). Columns are found
 * by their names; others are left out. Where it has the targets, out->answered, and
 * labels or targets (scaled) are there; else every label is 0. out->keys, of
 * out->key_names: for each sample the texts of the columns that data.drop names, in this
 * order. *state NULL: the weights have none, so all columns are inputs, taken as they
 * are; then it is set, and owned by the caller. Errors as above. */
ps_err ps_dataset_of_table(const ps_config *cfg, ps_preprocessing **state,
                           const char *path, ps_dataset *out);
ps_err ps_dataset_of_table_text(const ps_config *cfg, ps_preprocessing **state,
                                const char *name, char *text, uint64_t bytes,
                                bool objects, ps_dataset *out);

/* One picture, with the label 0. Errors as above. */
ps_err ps_dataset_of_picture(const ps_config *cfg, const char *path, const ps_dims *want,
                             ps_dataset *out);

/* Names the classes of samples that are not the configuration's: as its own data do, when
 * they are there. IO, NOMEM, FORMAT (class_names.h). */
ps_err ps_dataset_name_classes(const ps_config *cfg, ps_dataset *set);

#endif
