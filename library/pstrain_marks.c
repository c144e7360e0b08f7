#include <string.h>

#include "pstrain_state.h"

/* Every factor is odd, so a change of one element always changes the sum. */
static uint32_t mark_of(const float *weights, uint64_t n)
{
    uint32_t sum = 0;
#pragma omp simd reduction(+ : sum)
    for (uint64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, weights + i, sizeof bits);
        sum += bits * (2 * (uint32_t)i + 1);
    }
    return sum;
}

static uint32_t mark_of_parameter(const pstrain_session *s, int i)
{
    const ps_tensor *t = &s->own.table.tensors[i];
    return mark_of(ps_session_params(s->session) + t->offset, t->count);
}

static ps_err marks_mark(pstrain_session *s, int first, int n)
{
    PS_TRY(pstrain_check_range(s, first, n, "pstrain_mark"));
    for (int i = first; i < first + n; i++)
        s->marks[i] = mark_of_parameter(s, i);
    return PS_OK;
}

int pstrain_mark(pstrain_session *s, int first, int n)
{
    const ps_err err = pstrain_enter_steps(s, "pstrain_mark");
    return err == PS_OK ? pstrain_leave(s, PSTRAIN_LANE_MAIN, marks_mark(s, first, n))
                        : (int)err;
}

static ps_err marks_changed(pstrain_session *s, int first, int n, int *index)
{
    PS_TRY(pstrain_check_range(s, first, n, "pstrain_changed"));
    *index = -1;
    for (int i = first; i < first + n && *index < 0; i++)
        if (mark_of_parameter(s, i) != s->marks[i]) *index = i;
    return PS_OK;
}

int pstrain_changed(pstrain_session *s, int first, int n, int *index)
{
    const ps_err err = pstrain_enter_steps(s, "pstrain_changed");
    return err == PS_OK
               ? pstrain_leave(s, PSTRAIN_LANE_MAIN, marks_changed(s, first, n, index))
               : (int)err;
}
