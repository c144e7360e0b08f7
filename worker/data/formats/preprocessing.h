/* What a table's cells go through before the model gets them, and the model's outputs
 * before people do. It is fitted once, from the training part alone, alike on all ranks,
 * and stored as JSON in the metadata of every file of weights (model.safetensors, best
 * and other checkpoints): such a file is all that an evaluation or a prediction needs.
 *
 * A column of numbers is one input, (value - mean) / std in double, then float32; std is
 * the population's, as StandardScaler's, and 1 where all are alike.
 *
 * A column of texts has one input for each text of the training part, 1 or 0 (one-hot); a
 * text that the training part does not have is 0 everywhere. Or, embedded
 * (data.encoding), it has one input: the number of the text.
 *
 * A missing cell is, by data.missing, an error; or mean, the training part's mean of each
 * of the column's inputs; or own, where the training part has such cells: one more input,
 * which is 1 for them and 0 for the others.
 *
 * Targets that are numbers are scaled as inputs are, unless the loss takes 0 to 1; texts
 * are classes, in the order of the texts.
 *
 * Inputs stand in the order of the columns, embedded ones last: of these the number after
 * all texts is that of missing cells, where the training part has some, and the next is
 * that of what it does not have. Columns are found by their names; a table
 * without names has "1", "2", ... */
#ifndef PS_PREPROCESSING_H
#define PS_PREPROCESSING_H

#include <stdbool.h>

#include "cell.h"
#include "class_names.h"
#include "err.h"

typedef struct ps_column {
    char *name;
    double mean, std;          // of numbers; 0 and 1: they are taken as they are
    double fill;               // of numbers: the training part's mean, for a missing cell
    ps_class_names categories; // of texts, sorted; n 0: numbers
    double *shares; // (categories.n) of the training part's cells that are there
    bool own;       // a missing cell has an input, or a row, of its own: the last one
    bool embedded;  // its one input is the text's number
} ps_column;

typedef struct ps_preprocessing {
    bool named;   // data.target names the answers; else the last column is the answer
    bool classes; // the answer is a class, not numbers
    int64_t n_columns, n_targets, n_inputs;
    ps_column *columns; // (n_columns) inputs
    ps_column *targets; // (n_targets); categories: of one, the names of the classes
} ps_preprocessing;

void ps_preprocessing_destroy(ps_preprocessing **p); // clears the caller's pointer

/* Sets n_inputs from the columns. */
void ps_preprocessing_count(ps_preprocessing *p);

/* As JSON, the same for the same state; owned by the caller. NOMEM. */
ps_err ps_preprocessing_text(const ps_preprocessing *p, char **out);
/* Back. where: for messages. FORMAT, NOMEM; *out is owned by the caller. */
ps_err ps_preprocessing_parse(const char *where, const char *text,
                              ps_preprocessing **out);
/* Of a file of weights; *out NULL: it has none. IO, FORMAT, NOMEM. */
ps_err ps_preprocessing_load(const char *weights, ps_preprocessing **out);

/* The rows of the embeddings, in the order of their inputs. rows: NULL, or as many as
 * there are, which is the answer. */
int ps_preprocessing_embedded(const ps_preprocessing *p, int64_t *rows);

/* The order of categories, as strcmp: numbers by their values, before texts. */
int ps_category_order(const char *a, const char *b);
/* The place of a text among sorted categories; c->categories.n: it is none of them. A
 * category that is a number is written as ps_cell_number_text writes it. */
int64_t ps_column_find(const ps_column *c, const char *text);
enum { PS_CELL_TEXT = 32 };
const char *ps_cell_number_text(double number, char out[PS_CELL_TEXT]); // returns out

/* The inputs of a line. cells: (n_columns), whose texts are places among the categories;
 * out: (n_inputs). */
void ps_preprocessing_row(const ps_preprocessing *p, const ps_cell *cells, float *out);

/* Whether a model's outputs are targets that were scaled. p may be NULL. */
bool ps_preprocessing_scales(const ps_preprocessing *p, int64_t outputs);
/* Then output i's value in the user's units: value * std + mean. A float would not do: it
 * has steps of 128 where the targets are seconds since 1970. */
double ps_preprocessing_number(const ps_preprocessing *p, int64_t i, float value);
/* The digits that such a number needs to say as much as the float does; 9 to 17. */
int ps_preprocessing_digits(const ps_preprocessing *p, int64_t i);
/* The factor from an error of output i to the user's units; 1 where nothing is scaled. */
double ps_preprocessing_unit(const ps_preprocessing *p, int64_t output);

#endif
