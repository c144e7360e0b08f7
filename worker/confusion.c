#include "confusion.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "mem.h"

enum { TOP = 5, MAX_WITH_TEXT = 20, MARGIN = 56, WHOLE = 560, LEAST_CELL = 3 };

enum { LABELLED, TAKEN, FOUND, PARTS }; // rows of counts without the matrix

ps_err ps_confusion_init(ps_confusion *c, int64_t n_classes, bool matrix)
{
    *c = (ps_confusion){.n = n_classes, .has_matrix = matrix};
    return ps_mem_zalloc(&c->counts, (size_t)ps_confusion_size(c), sizeof *c->counts,
                         "the confusion matrix");
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

static void count(ps_confusion *c, int32_t label, int64_t class)
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
    int64_t best = 0, larger = 0;
    for (int64_t i = 0; i < c->n; i++) {
        if (outputs[i] > outputs[best]) best = i;
        larger += outputs[i] > outputs[label];
    }
    count(c, label, best);
    c->samples++;
    c->top1 += best == label;
    c->top5 += larger < TOP;
}

static int64_t with_label(const ps_confusion *c, int64_t label)
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

static int64_t found(const ps_confusion *c, int64_t class)
{
    return c->counts[(c->has_matrix ? class : FOUND) * c->n + class];
}

static void write_part(FILE *out, const char *name, int64_t part, int64_t all)
{
    if (all > 0)
        fprintf(out, "\"%s\": %.6g", name, (double)part / (double)all);
    else
        fprintf(out, "\"%s\": null", name);
}

static void write_matrix(const ps_confusion *c, FILE *out)
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

void ps_confusion_write_json(const ps_confusion *c, FILE *out)
{
    fprintf(out, "{\"samples\": %" PRId64 ", ", c->samples);
    write_part(out, "accuracy", c->top1, c->samples);
    fputs(", ", out);
    write_part(out, "top5_accuracy", c->top5, c->samples);
    fputs(",\n\"classes\": [", out);
    for (int64_t i = 0; i < c->n; i++) {
        const int64_t samples = with_label(c, i);
        fprintf(out, "%s\n  {\"class\": %" PRId64 ", \"samples\": %" PRId64 ", ",
                i ? "," : "", i, samples);
        write_part(out, "recall", found(c, i), samples);
        fputs(", ", out);
        write_part(out, "precision", found(c, i), taken_for(c, i));
        fputc('}', out);
    }
    fputs("]", out);
    if (c->has_matrix) write_matrix(c, out);
    fputs("}\n", out);
}
/* One cell, and with few classes its count. */
static void write_cell(const ps_confusion *c, int64_t label, int64_t class, double size,
                       FILE *out)
{
    const int64_t count = c->counts[label * c->n + class], all = with_label(c, label);
    const double part = all ? (double)count / (double)all : 0;
    const double x = MARGIN + (double)class * size, y = MARGIN + (double)label * size;
    if (count == 0) return;
    fprintf(out,
            "<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" "
            "fill-opacity=\"%.3f\"><title>label %" PRId64 ", taken for %" PRId64
            ": %" PRId64 "</title></rect>\n",
            label == class ? "right" : "wrong", x, y, size, size, 0.12 + 0.88 * part,
            label, class, count);
    if (c->n <= MAX_WITH_TEXT)
        fprintf(out, "<text class=\"%s\" x=\"%.1f\" y=\"%.1f\">%" PRId64 "</text>\n",
                part > 0.5 ? "on" : "off", x + size / 2, y + size / 2, count);
}

static void write_axis(const ps_confusion *c, double size, FILE *out)
{
    const int64_t each = c->n <= MAX_WITH_TEXT ? 1 : (c->n + 9) / 10;
    for (int64_t i = 0; i < c->n; i += each) {
        const double at = MARGIN + ((double)i + 0.5) * size;
        fprintf(out,
                "<text x=\"%.1f\" y=\"%d\">%" PRId64 "</text>"
                "<text x=\"%d\" y=\"%.1f\">%" PRId64 "</text>\n",
                at, MARGIN - 12, i, MARGIN - 16, at, i);
    }
}

void ps_confusion_write_svg(const ps_confusion *c, FILE *out)
{
    static const char style[] =
        "<style>text{font:13px sans-serif;text-anchor:middle;dominant-baseline:central;"
        "fill:#222}.right{fill:#1a6fb5}.wrong{fill:#b5381a}.on{fill:#fff}"
        ".frame{fill:none;stroke:#888}.back{fill:#fff}"
        "@media(prefers-color-scheme:dark){text{fill:#ddd}.back{fill:#181818}"
        ".right{fill:#4aa3e8}.wrong{fill:#f0795c}.on{fill:#000}}</style>\n";
    const double wanted = (double)WHOLE / (double)c->n;
    const double size = wanted < LEAST_CELL ? LEAST_CELL : wanted;
    const double side = size * (double)c->n, all = side + 2 * MARGIN;
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" "
            "role=\"img\" aria-label=\"Confusion matrix\">\n%s"
            "<rect class=\"back\" width=\"100%%\" height=\"100%%\"/>\n",
            all, all, style);
    for (int64_t i = 0; i < c->n; i++)
        for (int64_t k = 0; k < c->n; k++)
            write_cell(c, i, k, size, out);
    write_axis(c, size, out);
    fprintf(out,
            "<rect class=\"frame\" x=\"%d\" y=\"%d\" width=\"%.1f\" height=\"%.1f\"/>\n"
            "<text x=\"%.1f\" y=\"16\">predicted class</text>\n"
            "<text x=\"14\" y=\"%.1f\" transform=\"rotate(-90 14 %.1f)\">label</text>\n",
            MARGIN, MARGIN, side, side, all / 2, all / 2, all / 2);
    fprintf(out,
            "<text x=\"%.1f\" y=\"%.1f\">%" PRId64 " samples, accuracy %.4f</text>\n"
            "</svg>\n",
            all / 2, all - MARGIN / 2, c->samples,
            c->samples ? (double)c->top1 / (double)c->samples : 0);
}
