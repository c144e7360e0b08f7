#include "pace.h"

#include <stdlib.h>
#include <string.h>

enum { NS_PER_MS = 1000000, MOST_STRIDE = 1 << 20, STALL_MS = 150, MOST_NOTES = 64 };

/* The least power of two of steps that take long enough. */
static uint64_t stride_of(double step_ns, double slow_ms)
{
    uint64_t stride = 1;
    if (step_ns >= slow_ms * 1e6) return 1;
    while (stride < MOST_STRIDE && step_ns * (double)stride < PS_PACE_FAST_MS * 1e6)
        stride *= 2;
    return stride;
}

bool ps_pace_step(ps_pace *p, uint64_t step, uint64_t now_ns)
{
    if (p->last_ns > 0 && step > p->last_step) {
        const double ns = (double)(now_ns - p->last_ns) / (double)(step - p->last_step);
        p->step_ns += (p->step_ns > 0 ? 0.1 : 1.0) * (ns - p->step_ns);
    }
    p->last_step = step;
    p->last_ns = now_ns;
    const double slow_ms = p->one_host ? PS_PACE_ONE_HOST_MS : PS_PACE_MS;
    return p->step_ns > 0 && step % stride_of(p->step_ns, slow_ms) == 0;
}

ps_pace_note *ps_pace_note_create(uint64_t step, unsigned part, const double *values,
                                  size_t n)
{
    ps_pace_note *note = malloc(sizeof *note + n * sizeof *values);
    if (!note) return NULL;
    *note = (ps_pace_note){.step = step, .part = part, .n = n};
    memcpy(note->values, values, n * sizeof *values);
    return note;
}

bool ps_pace_queue_add(ps_pace_queue *q, ps_pace_note *note)
{
    if (q->n == MOST_NOTES) return false;
    if (q->last)
        q->last->next = note;
    else
        q->first = note;
    q->last = note;
    q->n++;
    return true;
}

ps_pace_note *ps_pace_queue_take(ps_pace_queue *q)
{
    ps_pace_note *first = q->first;
    *q = (ps_pace_queue){0};
    return first;
}

int ps_stall_awake(ps_stall *s, uint64_t now_ns)
{
    const uint64_t every_ns = PS_PACE_MS * UINT64_C(1000000), grace_ns = NS_PER_MS;
    if (s->due_ns == 0) s->since_ns = now_ns;
    if (s->due_ns > 0 && now_ns > s->due_ns + grace_ns) s->late_ns += now_ns - s->due_ns;
    if (now_ns >= s->due_ns) s->due_ns = now_ns + every_ns;
    return (int)((s->due_ns - now_ns) / NS_PER_MS) + 1;
}

uint64_t ps_stall_share(ps_stall *s, uint64_t now_ns)
{
    const uint64_t span_ns = now_ns - s->since_ns;
    const uint64_t late_ns = s->late_ns < span_ns ? s->late_ns : span_ns;
    const uint64_t share =
        span_ns > 0 ? (uint64_t)(1e6 * (double)late_ns / (double)span_ns) : 0;
    if (span_ns > STALL_MS * UINT64_C(1000000)) { // old times count half
        s->late_ns = late_ns / 2;
        s->since_ns = now_ns - span_ns / 2;
    }
    return share;
}
