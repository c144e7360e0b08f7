#include "straggler_log.h"

#include <stdio.h>

static bool straggler_log_differs(const ps_straggler *a, const ps_straggler *b)
{
    return a->cause != b->cause || a->role != b->role || a->rank != b->rank;
}

bool ps_straggler_log_step(ps_straggler_log *log, ps_member *member, uint64_t step)
{
    const ps_straggler now = ps_member_straggler(member);
    const bool changed = straggler_log_differs(&now, &log->now);
    log->now = now;
    if (now.cause == PS_STRAGGLER_NONE) return changed;
    if (changed && log->n < PS_STRAGGLER_LOG_MAX)
        log->entries[log->n++] = (ps_straggler_entry){.who = now, .first_step = step};
    ps_straggler_entry *last = &log->entries[log->n - 1];
    if (!straggler_log_differs(&last->who, &now)) last->last_step = step;
    return changed;
}

const char *ps_straggler_text(const ps_straggler *s, char *text, size_t cap)
{
    text[0] = '\0';
    if (s->cause != PS_STRAGGLER_NONE)
        snprintf(text, cap, "%s %d: %s", ps_role_name(s->role), s->rank,
                 ps_straggler_cause_name(s->cause));
    return text;
}
