/* Which classes a model takes for which: counts of (label, predicted class). */
#ifndef PS_CONFUSION_H
#define PS_CONFUSION_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "class_names.h"
#include "err.h"

typedef struct ps_confusion {
    int64_t n;                   // classes
    const ps_class_names *names; // borrowed; it may have fewer than n, or none
    bool has_matrix;
    /* Owned. (n, n): label, predicted class; without the matrix (3, n): of each class the
     * samples with its label, those taken for it, and those that are both. */
    int64_t *counts;
    int64_t samples, top1, top5;
} ps_confusion;

ps_err ps_confusion_init(ps_confusion *c, int64_t n_classes, const ps_class_names *names,
                         bool matrix);
int64_t ps_confusion_size(const ps_confusion *c);                    // numbers in counts
int64_t ps_confusion_labelled(const ps_confusion *c, int64_t label); // its samples
void ps_confusion_clear(ps_confusion *c);
void ps_confusion_fini(ps_confusion *c); // safe on a zeroed one

/* One sample: its label, and the model's n outputs. Its class is the largest output, the
 * first among equals. top5: fewer than five outputs are larger than the label's. */
void ps_confusion_add(ps_confusion *c, int32_t label, const float *outputs);
/* Whether top5 says anything: of five or fewer classes it is all samples. */
bool ps_confusion_has_top5(const ps_confusion *c);

/* recall: the part of its samples that was found; precision: the part of the samples
 * taken for it that are of it; f1: their harmonic mean. NAN where there are none. */
typedef struct ps_class_rates {
    double precision, recall, f1;
} ps_class_rates;

ps_class_rates ps_confusion_rates(const ps_confusion *c, int64_t class);

/* JSON: samples, loss, accuracy, top5_accuracy, the means over the classes, auc,
 * matrix[label][class] if there is one, and per class its number, its name if it has one
 * (in which bytes that are not UTF-8 are \xNN), samples and rates. */
void ps_confusion_write_json(const ps_confusion *c, const ps_class_rates *mean,
                             double auc, double loss, FILE *out);

/* , "name": "Rome", in ASCII alone. */
void ps_confusion_write_name(FILE *out, const char *name);
/* before, then "name": value; null for NAN. */
void ps_confusion_write_number(FILE *out, const char *before, const char *name,
                               double value);

#endif
