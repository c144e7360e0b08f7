/* Which classes a model takes for which: counts of (label, predicted class). */
#ifndef PS_CONFUSION_H
#define PS_CONFUSION_H

#include <stdint.h>
#include <stdio.h>

#include "err.h"

typedef struct ps_confusion {
    int64_t n;       // classes
    int64_t *counts; // (n, n): label, predicted class; owned
    int64_t samples, top1, top5;
} ps_confusion;

ps_err ps_confusion_init(ps_confusion *c, int64_t n_classes);
void ps_confusion_fini(ps_confusion *c); // safe on a zeroed one

/* One sample: its label, and the model's n outputs. Its class is the largest output, the
 * first among equals. top5: fewer than five outputs are larger than the label's. */
void ps_confusion_add(ps_confusion *c, int32_t label, const float *outputs);

/* JSON: samples, accuracy, top5_accuracy, matrix[label][class], and per class samples,
 * recall (the part of its samples that was found) and precision (the part of the samples
 * taken for it that are of it); null where there are none. */
void ps_confusion_write_json(const ps_confusion *c, FILE *out);

/* A picture of the matrix, a row per label, each row as parts of its samples. It has its
 * own colours for light and for dark. */
void ps_confusion_write_svg(const ps_confusion *c, FILE *out);

#endif
