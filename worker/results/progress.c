#include "progress.h"

#include <jansson.h>
#include <stdarg.h>
#include <string.h>

#include "clock.h"
#include "readable.h"
#include "tell.h"
#include "wrapped.h"

enum { BAR_EVERY_MS = 100, LINE_EVERY_MS = 2000, BAR_CELLS = 24, FEWEST_CELLS = 8 };
enum { FRAME_CELLS = 3 }; // the bar's two ends; the last column stays free

void ps_progress_init(ps_progress *progress, FILE *out, int bar_columns)
{
    *progress = (ps_progress){.out = out, .columns = bar_columns};
    if (!out) return;
    const int columns = ps_terminal_columns(out);
    progress->own_tty = columns > 0;
    progress->bar = progress->own_tty || bar_columns > 0;
    if (progress->own_tty) progress->columns = columns;
}

/* "1:02:03" or "2:03". */
static void format_left(double seconds, char *out, size_t bytes)
{
    if (!(seconds < 360000)) { // also NaN
        snprintf(out, bytes, "-:--");
        return;
    }
    long s = (long)(seconds + 0.5);
    if (s >= 3600)
        snprintf(out, bytes, "%ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(out, bytes, "%ld:%02ld", s / 60, s % 60);
}

/* "  waits for worker 1: slow compute", or "". */
static const char *format_wait(const ps_progress_state *s, char *out, size_t bytes)
{
    out[0] = '\0';
    if (s->waits_for && s->waits_for[0])
        snprintf(out, bytes, "  waits for %s", s->waits_for);
    return out;
}

/* A filled cell counts 8 eighths: U+2588, and U+258F .. U+2589 for the last one's part.
 */
static void format_bar(double share, int cells, char *out)
{
    static const char *const part[] = {" ", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
    int eighths = (int)(share * cells * 8);
    if (eighths > cells * 8) eighths = cells * 8;
    out[0] = '\0';
    for (int cell = 0; cell < cells; cell++) {
        int left = eighths - cell * 8;
        strcat(out, left >= 8 ? "█" : part[left > 0 ? left : 0]);
    }
}

/* How many words the figures beside the bar have; in the shorter forms, what tells most
 * comes first. */
typedef enum words { FULL, BRIEF, SHORT, FORMS } words;

/* Returns the columns that the figures take. */
static int format_figures(const ps_progress_state *s, double share, words form, char *out,
                          size_t bytes)
{
    char left[32], steps[64] = "", wait[96], loss[PS_READABLE_BYTES],
                   rate[PS_READABLE_BYTES];
    const bool full = form == FULL;
    format_left(s->seconds_left, left, sizeof left);
    format_wait(s, wait, sizeof wait);
    if (form != SHORT)
        snprintf(steps, sizeof steps, "  step %s/%s", PS_COUNTED(s->step),
                 PS_COUNTED(s->steps));
    return snprintf(out, bytes, " %3.0f%%  epoch %s/%s%s  loss %s%s  %s%s  %s%s%s",
                    share * 100, PS_COUNTED(s->epoch), PS_COUNTED(s->epochs), steps,
                    ps_readable_figure(s->loss, loss), full ? "" : wait,
                    ps_readable_count(s->samples_per_second, rate),
                    full ? " samples/s" : "/s", left, full ? " left" : "",
                    full ? wait : "");
}

static void draw_bar(const ps_progress *p, const ps_progress_state *s)
{
    static const int fewest_cells[FORMS] = {BAR_CELLS, FEWEST_CELLS, 0};
    char bar[BAR_CELLS * 4 + 1], text[512];
    const double share = s->steps ? (double)s->step / (double)s->steps : 1;
    int cells = 0;
    for (words f = FULL; f < FORMS; f++) {
        cells = p->columns - format_figures(s, share, f, text, sizeof text) - FRAME_CELLS;
        if (cells >= fewest_cells[f]) break;
    }
    if (cells > BAR_CELLS) cells = BAR_CELLS;
    const char *clear = p->own_tty ? "\r\x1b[K" : "";
    // A narrow terminal gets the figures without the bar: a line that wraps cannot be
    // drawn over.
    if (cells < FEWEST_CELLS) {
        fprintf(p->out, "%s%.*s\r", clear, p->columns > 1 ? p->columns - 1 : 1, text + 1);
    } else {
        format_bar(share, cells, bar);
        fprintf(p->out, "%s|%s|%s\r", clear, bar, text);
    }
    fflush(p->out);
}

static void progress_write_line(const ps_progress *p, const ps_progress_state *s)
{
    char left[32], wait[96], loss[PS_READABLE_BYTES], rate[PS_READABLE_BYTES];
    format_left(s->seconds_left, left, sizeof left);
    fprintf(p->out, "epoch %s/%s  step %s/%s  loss %s  %s samples/s  %s left%s\n",
            PS_COUNTED(s->epoch), PS_COUNTED(s->epochs), PS_COUNTED(s->step),
            PS_COUNTED(s->steps), ps_readable_figure(s->loss, loss),
            ps_readable_count(s->samples_per_second, rate), left,
            format_wait(s, wait, sizeof wait));
    fflush(p->out);
}

void ps_progress_show(ps_progress *progress, const ps_progress_state *state, bool now)
{
    if (!progress->out) return;
    uint64_t t = ps_clock_ns();
    // A log of lines is read later: there, no state is urgent.
    if (t < progress->next_ns && !(now && progress->bar)) return;
    progress->next_ns =
        t + (progress->bar ? BAR_EVERY_MS : LINE_EVERY_MS) * UINT64_C(1000000);
    ps_tell("step", "{s:I}", "step", (json_int_t)state->step);
    if (progress->bar)
        draw_bar(progress, state);
    else
        progress_write_line(progress, state);
}

void ps_progress_line(ps_progress *progress, const char *fmt, ...)
{
    if (!progress->out) return;
    if (progress->own_tty) fprintf(progress->out, "\r\x1b[K");
    va_list args;
    va_start(args, fmt);
    vfprintf(progress->out, fmt, args);
    va_end(args);
    fputc('\n', progress->out);
    fflush(progress->out);
    if (progress->bar) progress->next_ns = 0;
}

void ps_progress_end(ps_progress *progress)
{
    if (!progress->out || !progress->own_tty) return;
    fputc('\n', progress->out);
    fflush(progress->out);
}
