/* trace.json: what the step loop's thread did when, as Chrome trace events. Opens in
 * Perfetto (ui.perfetto.dev) and chrome://tracing.
 *
 * The JSON array format, one complete event ("ph": "X") a line, times in microseconds;
 * the format lets the closing bracket be absent, so that a killed run's trace still
 * opens.
 */
#ifndef PS_TRACE_H
#define PS_TRACE_H

#include <stdint.h>
#include <stdio.h>

#include "err.h"

typedef struct ps_trace {
    FILE *file; // NULL: nothing is recorded
    int rank;
    uint64_t start_ns;
} ps_trace;

ps_err ps_trace_open(ps_trace *trace, const char *path, int rank);
/* The event from begin_ns (ps_clock_ns) to now; nothing when the trace is not open. */
void ps_trace_add(ps_trace *trace, const char *name, uint64_t begin_ns, uint64_t step);
/* IO when anything could not be written. Safe on one that is not open. */
ps_err ps_trace_close(ps_trace *trace);

#endif
