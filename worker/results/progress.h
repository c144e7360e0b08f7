/* What rank 0 shows while a job runs: a bar in place on a terminal, plain lines at most
 * every other second otherwise. */
#ifndef PS_PROGRESS_H
#define PS_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef struct ps_progress {
    FILE *out;    // borrowed; NULL: shows nothing
    bool bar;     // states of a bar, each ended by a carriage return
    bool own_tty; // out is the terminal itself: lines are cleared before they are drawn
    int columns;
    uint64_t next_ns; // nothing is shown before
} ps_progress;

typedef struct ps_progress_state {
    int64_t epoch, epochs; // counted from 1
    uint64_t step, steps;
    double loss;
    double samples_per_second;
    double seconds_left;
    const char *waits_for; // the member that all others wait for; "" or NULL: nobody
} ps_progress_state;

/* A bar when out is a terminal, or when bar_columns is not 0: the width of a terminal on
 * which a reader of out draws the bar's states, as psrun does. */
void ps_progress_init(ps_progress *progress, FILE *out, int bar_columns);

/* Shows the state if the last one has stood long enough, or at once when now is
 * set and there is a bar; and tells a launcher the step. */
void ps_progress_show(ps_progress *progress, const ps_progress_state *state, bool now);

/* A line of its own, above the bar. */
void ps_progress_line(ps_progress *progress, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* The bar's last state stays on the screen. */
void ps_progress_end(ps_progress *progress);

#endif
