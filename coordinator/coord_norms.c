#include "coord_norms.h"

#include <stdlib.h>
#include <string.h>

void ps_coord_answer_fail(ps_coord_answer answer, void *owner, const ps_control_id *to,
                          uint64_t request, ps_err code)
{
    ps_control c = {.kind = PS_CONTROL_FAIL, .request = request};
    c.code = (uint64_t)code;
    ps_control_set_text(&c, ps_err_message());
    answer(owner, to, &c);
}

void ps_coord_norms_fini(ps_coord_norms *n)
{
    for (int i = 0; i < PS_COORD_NORMS; i++) {
        ps_gradnorm_sum_fini(&n->sums[i]);
        free(n->askers[i]);
        free(n->wanted_sums[i]);
    }
}

/* Of a request and of its answer: a step may ask for its norm, then for all sums. */
static uint64_t norm_key(uint64_t step, uint64_t wants_sums)
{
    return 2 * step + (wants_sums != 0);
}

static void keep_answer(ps_coord_norms *n, int slot, ps_control *c, double *sums)
{
    free(n->wanted_sums[slot]);
    n->wanted_sums[slot] = sums;
    c->value = sums;
    if (sums) c->bytes = n->sums[slot].total_blocks * sizeof *sums;
    n->answers[slot] = *c;
}

static void answer_norm(ps_coord_norms *n, int slot)
{
    ps_gradnorm_sum *s = &n->sums[slot];
    const bool wants_sums = s->step % 2 != 0;
    double norm = 0, *sums = NULL;
    ps_err err = ps_gradnorm_sum_total(s, &norm, wants_sums ? &sums : NULL);
    ps_control c = {.kind = PS_CONTROL_NORM_SUM};
    c.norm_sum.step = s->step / 2;
    c.norm_sum.norm = norm;
    c.norm_sum.wants_sums = wants_sums;
    if (err == PS_OK) keep_answer(n, slot, &c, sums);
    for (uint32_t i = 0; i < s->n_parts; i++) {
        if (err == PS_OK)
            n->answer(n->owner, &n->askers[slot][i], &c);
        else
            ps_coord_answer_fail(n->answer, n->owner, &n->askers[slot][i], 0, err);
    }
    ps_gradnorm_sum_fini(s);
}

/* A number from the end of the id, which has the link. The rest is random, so this tells
 * senders apart. */
static uint64_t id_number(const ps_control_id *id)
{
    uint64_t number;
    memcpy(&number, id->bytes + sizeof id->bytes - sizeof number, sizeof number);
    return number;
}

ps_err ps_coord_norms_request(ps_coord_norms *n, const ps_control_id *from,
                              const ps_control *c)
{
    const uint64_t key = norm_key(c->norm.step, c->norm.wants_sums);
    int slot = (int)(key % PS_COORD_NORMS);
    ps_gradnorm_sum *s = &n->sums[slot];
    const ps_control *known = &n->answers[slot];
    if (known->kind == PS_CONTROL_NORM_SUM &&
        norm_key(known->norm_sum.step, known->norm_sum.wants_sums) == key) {
        n->answer(n->owner, from, known);
        return PS_OK;
    }
    if (s->n_parts > 0 && s->step > key)
        return ps_err_set(PS_ERR_PROTOCOL, "a gradient norm of a step that is long over");
    if (s->step != key) ps_gradnorm_sum_fini(s);
    s->step = key;
    uint32_t before = s->n_parts;
    ps_control_id *askers =
        realloc(n->askers[slot], (before + (size_t)1) * sizeof *askers);
    if (!askers) return ps_err_set(PS_ERR_NOMEM, "no memory for the gradient norm");
    n->askers[slot] = askers;
    PS_TRY(ps_gradnorm_sum_add(s, id_number(from), c->norm.shards, c->norm.blocks,
                               c->value, c->bytes));
    if (s->n_parts > before) askers[before] = *from;
    if (ps_gradnorm_sum_complete(s)) answer_norm(n, slot);
    return PS_OK;
}
