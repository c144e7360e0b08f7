#include "clock_sync.h"

void ps_clock_sync_begin(ps_clock_sync *s, uint64_t now_ns)
{
    s->left = PS_CLOCK_BURST;
    s->best_ns = UINT64_MAX;
    s->asked_ns = now_ns;
}

/* Keeps the estimate that is wrong by the least now. */
static void take_burst(ps_clock_sync *s, uint64_t now_ns)
{
    const uint64_t error_ns = s->best_ns / 2;
    const double age_ns = (double)(now_ns - s->known_at_ns);
    if (s->known && (double)error_ns > (double)s->error_ns + PS_CLOCK_DRIFT * age_ns)
        return;
    s->known = true;
    s->known_at_ns = s->at_ns;
    s->known_ahead_ns = s->ahead_ns;
    s->error_ns = error_ns;
}

bool ps_clock_sync_answer(ps_clock_sync *s, uint64_t asked_ns, uint64_t theirs_ns,
                          uint64_t now_ns, bool *ended)
{
    *ended = false;
    if (s->asked_ns == 0 || asked_ns != s->asked_ns || now_ns < asked_ns) return false;
    const uint64_t round_ns = now_ns - asked_ns;
    if (round_ns < s->best_ns) {
        s->best_ns = round_ns;
        s->at_ns = asked_ns + round_ns / 2;
        s->ahead_ns = (int64_t)(theirs_ns - s->at_ns);
    }
    s->asked_ns = --s->left > 0 ? now_ns : 0;
    *ended = s->left == 0;
    if (*ended) take_burst(s, now_ns);
    return s->left > 0;
}
