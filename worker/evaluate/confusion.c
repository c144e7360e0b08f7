#include "confusion.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "mem.h"
#include "printable.h"

enum { TOP = 5, NAME_BYTES = 2048 };

enum { LABELLED, TAKEN, FOUND, PARTS }; // rows of counts without the matrix

ps_err ps_confusion_init(ps_confusion *c, int64_t n_classes, const ps_class_names *names,
                         bool matrix)
{
    *c = (ps_confusion){.n = n_classes, .names = names, .has_matrix = matrix};
    return PS_NEW(&c->counts, (size_t)ps_confusion_size(c), "the confusion matrix");
}

int64_t ps_confusion_size(const ps_confusion *c)
{
    return c->n * (c->has_matrix ? c->n : PARTS);
}

void ps_confusion_clear(ps_confusion *c)
{
    memset(c->counts, 0, (size_t)ps_confusion_size(c) * sizeof *c->counts);
    c->samples = c->top1 = c->top5 = 0;
}

void ps_confusion_fini(ps_confusion *c)
{
    free(c->counts);
    *c = (ps_confusion){0};
}

static void confusion_count(ps_confusion *c, int32_t label, int64_t class)
{
    if (c->has_matrix) {
        c->counts[label * c->n + class]++;
        return;
    }
    c->counts[LABELLED * c->n + label]++;
    c->counts[TAKEN * c->n + class]++;
    if (label == class) c->counts[FOUND * c->n + label]++;
}

void ps_confusion_add(ps_confusion *c, int32_t label, const float *outputs)
{
    int64_t best = 0, larger = 0; // of equal outputs, and of NaN, the first counts first
    for (int64_t i = 0; i < c->n; i++) {
        if (outputs[i] > outputs[best]) best = i;
        larger +=
            outputs[i] > outputs[label] || (i < label && !(outputs[i] < outputs[label]));
    }
    confusion_count(c, label, best);
    c->samples++;
    c->top1 += best == label;
    c->top5 += larger < TOP;
}

bool ps_confusion_has_top5(const ps_confusion *c)
{
    return c->n > TOP;
}

int64_t ps_confusion_labelled(const ps_confusion *c, int64_t label)
{
    int64_t sum = 0;
    if (!c->has_matrix) return c->counts[LABELLED * c->n + label];
    for (int64_t i = 0; i < c->n; i++)
        sum += c->counts[label * c->n + i];
    return sum;
}

static int64_t taken_for(const ps_confusion *c, int64_t class)
{
    int64_t sum = 0;
    if (!c->has_matrix) return c->counts[TAKEN * c->n + class];
    for (int64_t i = 0; i < c->n; i++)
        sum += c->counts[i * c->n + class];
    return sum;
}

static int64_t confusion_found(const ps_confusion *c, int64_t class)
{
    return c->counts[(c->has_matrix ? class : FOUND) * c->n + class];
}

static double part_of(int64_t part, int64_t all)
{
    return all > 0 ? (double)part / (double)all : NAN;
}

ps_class_rates ps_confusion_rates(const ps_confusion *c, int64_t class)
{
    const int64_t found = confusion_found(c, class), taken = taken_for(c, class),
                  samples = ps_confusion_labelled(c, class);
    return (ps_class_rates){.precision = part_of(found, taken),
                            .recall = part_of(found, samples),
                            .f1 = part_of(2 * found, taken + samples)};
}

void ps_confusion_write_number(FILE *out, const char *before, const char *name,
                               double value)
{
    if (isfinite(value))
        fprintf(out, "%s\"%s\": %.9g", before, name, value);
    else
        fprintf(out, "%s\"%s\": null", before, name);
}

static void confusion_write_matrix(const ps_confusion *c, FILE *out)
{
    fputs(",\n\"matrix\": [", out);
    for (int64_t i = 0; i < c->n; i++) {
        fputs(i ? ",\n  [" : "\n  [", out);
        for (int64_t k = 0; k < c->n; k++)
            fprintf(out, "%s%" PRId64, k ? ", " : "", c->counts[i * c->n + k]);
        fputc(']', out);
    }
    fputs("]", out);
}

void ps_confusion_write_name(FILE *out, const char *name)
{
    char text[NAME_BYTES];
    json_t *string = json_string(name);
    if (!string) {
        ps_printable(name, text, sizeof text);
        string = json_string(text);
    }
    fputs(", \"name\": ", out);
    if (json_dumpf(string, out, JSON_ENCODE_ANY | JSON_ENSURE_ASCII) != 0)
        fputs("null", out); // no memory
    json_decref(string);
}

static void confusion_write_rates(FILE *out, const char *before, const ps_class_rates *r)
{
    ps_confusion_write_number(out, before, "recall", r->recall);
    ps_confusion_write_number(out, ", ", "precision", r->precision);
    ps_confusion_write_number(out, ", ", "f1", r->f1);
}

void ps_confusion_write_json(const ps_confusion *c, const ps_class_rates *mean,
                             double auc, double loss, FILE *out)
{
    fprintf(out, "{\"samples\": %" PRId64, c->samples);
    ps_confusion_write_number(out, ", ", "loss", loss);
    ps_confusion_write_number(out, ", ", "accuracy", part_of(c->top1, c->samples));
    ps_confusion_write_number(out, ", ", "top5_accuracy",
                              ps_confusion_has_top5(c) ? part_of(c->top5, c->samples)
                                                       : NAN);
    confusion_write_rates(out, ",\n", mean);
    ps_confusion_write_number(out, ", ", "auc", auc);
    fputs(",\n\"classes\": [", out);
    for (int64_t i = 0; i < c->n; i++) {
        const ps_class_rates rates = ps_confusion_rates(c, i);
        const char *name = ps_class_name(c->names, i);
        fprintf(out, "%s\n  {\"class\": %" PRId64, i ? "," : "", i);
        if (name) ps_confusion_write_name(out, name);
        fprintf(out, ", \"samples\": %" PRId64, ps_confusion_labelled(c, i));
        confusion_write_rates(out, ", ", &rates);
        fputc('}', out);
    }
    fputs("]", out);
    if (c->has_matrix) confusion_write_matrix(c, out);
    fputs("}\n", out);
}
