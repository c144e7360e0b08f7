/* Which members the job has waited for, as worker 0 is told (straggler.h): for the
 * progress line and the summary. */
#ifndef PS_STRAGGLER_LOG_H
#define PS_STRAGGLER_LOG_H

#include "member.h"

enum { PS_STRAGGLER_LOG_MAX = 64 };

typedef struct ps_straggler_entry {
    ps_straggler who;
    uint64_t first_step, last_step; // between which it was named
} ps_straggler_entry;

typedef struct ps_straggler_log {
    ps_straggler now;
    int n; // entries; later ones are not kept
    ps_straggler_entry entries[PS_STRAGGLER_LOG_MAX];
} ps_straggler_log;

/* After each step. Returns whether another one, or nobody, is named now. */
bool ps_straggler_log_step(ps_straggler_log *log, ps_member *member, uint64_t step);
/* "worker 1: slow compute", or "" for nobody; returns text. */
const char *ps_straggler_text(const ps_straggler *s, char *text, size_t cap);

#endif
