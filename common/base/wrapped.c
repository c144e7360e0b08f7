#include "wrapped.h"

#include <stdbool.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

int ps_terminal_columns(FILE *stream)
{
    struct winsize size;
    if (!isatty(fileno(stream))) return 0;
    const bool known = ioctl(fileno(stream), TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
    return known ? size.ws_col : 80;
}

/* Columns of a word of UTF-8, each character counted as one. */
static int word_columns(const char *word, size_t bytes)
{
    int n = 0;
    for (size_t i = 0; i < bytes; i++)
        n += (word[i] & 0xc0) != 0x80;
    return n;
}

int ps_text_columns(const char *text)
{
    return word_columns(text, strlen(text));
}

void ps_print_wrapped(FILE *out, int columns, int at, int indent, const char *text)
{
    const char *between = "";
    for (const char *word = text; *word;) {
        const size_t bytes = strcspn(word, " ");
        const int n = word_columns(word, bytes), blank = (int)strlen(between);
        if (columns > 0 && at + blank + n > columns && at > indent) {
            fprintf(out, "\n%*s", indent, "");
            at = indent;
        } else {
            at += fprintf(out, "%s", between);
        }
        fwrite(word, 1, bytes, out);
        at += n;
        word += bytes;
        between = *word == ' ' ? " " : "";
        word += *word == ' ';
    }
    fputc('\n', out);
}
