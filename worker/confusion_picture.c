#include "confusion_picture.h"

#include <inttypes.h>

enum { MAX_WITH_TEXT = 20, MARGIN = 56, WHOLE = 560, LEAST_CELL = 3 };

/* One cell, and with few classes its count. */
static void write_cell(const ps_confusion *c, int64_t label, int64_t class, double size,
                       FILE *out)
{
    const int64_t count = c->counts[label * c->n + class],
                  all = ps_confusion_labelled(c, label);
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
