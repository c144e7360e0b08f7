#include "confusion_picture.h"

#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

#include "printable.h"

enum { MAX_WITH_TEXT = 20, MARGIN = 56, WHOLE = 560, LEAST_CELL = 3 };
enum { AXIS_COLUMNS = 20, TITLE_COLUMNS = 40, COLUMN = 8 }; // of names; COLUMN: pixels
enum { TEXT_BYTES = 512 };

typedef struct picture {
    const ps_confusion *c;
    double size;   // of a cell
    double margin; // above and at the left, for the classes
    bool upright;  // the names of the columns do not fit beside each other
    FILE *out;
} picture;

/* --- names ------------------------------------------------------------------------- */

static int confusion_picture_bytes_of(const char *character) // of UTF-8
{
    const unsigned char first = (unsigned char)*character;
    return first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
}

/* Characters of three bytes and more are mostly twice as wide. */
static int confusion_picture_columns_of(const char *text)
{
    int columns = 0;
    for (; *text; text += confusion_picture_bytes_of(text))
        columns += confusion_picture_bytes_of(text) > 2 ? 2 : 1;
    return columns;
}

/* Cuts the text, and ends it with an ellipsis, if it is wider than that. */
static void confusion_picture_shorten(char text[TEXT_BYTES], int columns)
{
    char *at = text;
    int used = 1; // the ellipsis
    if (confusion_picture_columns_of(text) <= columns) return;
    for (; (used += confusion_picture_bytes_of(at) > 2 ? 2 : 1) <= columns;
         at += confusion_picture_bytes_of(at))
        continue;
    memcpy(at, "…", sizeof "…");
}

/* A class as it is shown: its name, or else its number. */
static void confusion_picture_show(const ps_confusion *c, int64_t class, int columns,
                                   char text[TEXT_BYTES])
{
    const char *name = ps_class_name(c->names, class);
    if (!name) {
        snprintf(text, TEXT_BYTES, "%" PRId64, class);
        return;
    }
    ps_printable(name, text, TEXT_BYTES - sizeof "…");
    confusion_picture_shorten(text, columns);
}

static void write_xml(const char *text, FILE *out)
{
    for (; *text; text++) {
        const char *entity = *text == '&'   ? "&amp;"
                             : *text == '<' ? "&lt;"
                             : *text == '>' ? "&gt;"
                                            : NULL;
        if (entity)
            fputs(entity, out);
        else
            fputc(*text, out);
    }
}

/* A class in a title: its number, and its name if it has one. */
static void write_class(const picture *p, const char *before, int64_t class)
{
    char text[TEXT_BYTES];
    fprintf(p->out, "%s%" PRId64, before, class);
    if (!ps_class_name(p->c->names, class)) return;
    confusion_picture_show(p->c, class, TITLE_COLUMNS, text);
    fputs(" (", p->out);
    write_xml(text, p->out);
    fputc(')', p->out);
}

/* --- the picture ------------------------------------------------------------------- */

/* One cell, and with few classes its count. */
static void write_cell(const picture *p, int64_t label, int64_t class)
{
    const ps_confusion *c = p->c;
    const int64_t count = c->counts[label * c->n + class],
                  all = ps_confusion_labelled(c, label);
    const double part = all ? (double)count / (double)all : 0, size = p->size;
    const double x = p->margin + (double)class * size;
    const double y = p->margin + (double)label * size;
    if (count == 0) return;
    fprintf(p->out,
            "<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" "
            "fill-opacity=\"%.3f\">",
            label == class ? "right" : "wrong", x, y, size, size, 0.12 + 0.88 * part);
    write_class(p, "<title>label ", label);
    write_class(p, ", taken for ", class);
    fprintf(p->out, ": %" PRId64 "</title></rect>\n", count);
    if (c->n <= MAX_WITH_TEXT)
        fprintf(p->out, "<text class=\"%s\" x=\"%.1f\" y=\"%.1f\">%" PRId64 "</text>\n",
                part > 0.5 ? "on" : "off", x + size / 2, y + size / 2, count);
}

/* A column's text, which may stand upright, and a row's, which ends at the matrix. */
static void write_mark(const picture *p, int64_t class)
{
    const double at = p->margin + ((double)class + 0.5) * p->size;
    const bool named = p->c->names->n > 0;
    char text[TEXT_BYTES];
    confusion_picture_show(p->c, class, AXIS_COLUMNS, text);
    fprintf(p->out, "<text x=\"%.1f\" y=\"%.0f\"", at, p->margin - 12);
    if (p->upright)
        fprintf(p->out, " class=\"start\" transform=\"rotate(-90 %.1f %.0f)\"", at,
                p->margin - 12);
    fputc('>', p->out);
    write_xml(text, p->out);
    fprintf(p->out, "</text><text x=\"%.0f\" y=\"%.1f\"%s>",
            p->margin - (named ? 12 : 16), at, named ? " class=\"end\"" : "");
    write_xml(text, p->out);
    fputs("</text>\n", p->out);
}

/* Room for the names on the axes. */
static void confusion_picture_measure(picture *p)
{
    int widest = 0;
    char text[TEXT_BYTES];
    const double size = (double)WHOLE / (double)p->c->n;
    p->size = size < LEAST_CELL ? LEAST_CELL : size;
    p->margin = MARGIN;
    if (p->c->names->n == 0) return;
    for (int64_t i = 0; i < p->c->n; i++) {
        confusion_picture_show(p->c, i, AXIS_COLUMNS, text);
        const int columns = confusion_picture_columns_of(text);
        if (columns > widest) widest = columns;
    }
    p->margin += (widest - 2) * COLUMN;
    p->upright = widest * COLUMN > p->size;
}

static void confusion_picture_write_matrix(const picture *p)
{
    const int64_t n = p->c->n, each = n <= MAX_WITH_TEXT ? 1 : (n + 9) / 10;
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = 0; k < n; k++)
            write_cell(p, i, k);
    for (int64_t i = 0; i < n; i += each)
        write_mark(p, i);
}

void ps_confusion_write_svg(const ps_confusion *c, FILE *out)
{
    static const char style[] =
        "<style>text{font:13px sans-serif;text-anchor:middle;dominant-baseline:central;"
        "fill:#222}.right{fill:#1a6fb5}.wrong{fill:#b5381a}.on{fill:#fff}"
        ".start{text-anchor:start}.end{text-anchor:end}"
        ".frame{fill:none;stroke:#888}.back{fill:#fff}"
        "@media(prefers-color-scheme:dark){text{fill:#ddd}.back{fill:#181818}"
        ".right{fill:#4aa3e8}.wrong{fill:#f0795c}.on{fill:#000}}</style>\n";
    picture p = {.c = c, .out = out};
    confusion_picture_measure(&p);
    const double side = p.size * (double)c->n, all = side + p.margin + MARGIN;
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" "
            "role=\"img\" aria-label=\"Confusion matrix\">\n%s"
            "<rect class=\"back\" width=\"100%%\" height=\"100%%\"/>\n",
            all, all, style);
    confusion_picture_write_matrix(&p);
    fprintf(
        out,
        "<rect class=\"frame\" x=\"%.0f\" y=\"%.0f\" width=\"%.1f\" height=\"%.1f\"/>\n"
        "<text x=\"%.1f\" y=\"16\">predicted class</text>\n"
        "<text x=\"14\" y=\"%.1f\" transform=\"rotate(-90 14 %.1f)\">label</text>\n",
        p.margin, p.margin, side, side, all / 2, all / 2, all / 2);
    fprintf(out,
            "<text x=\"%.1f\" y=\"%.1f\">%" PRId64 " samples, accuracy %.4f</text>\n"
            "</svg>\n",
            all / 2, all - MARGIN / 2, c->samples,
            c->samples ? (double)c->top1 / (double)c->samples : 0);
}
