#include "lamb.h"

#include "absent.h"
#include "gradnorm.h"
#include "optimizer_loops.h"

/* The part of one tensor. */
typedef struct piece {
    int tensor;
    uint64_t at, count; // from the part's start
    float *states[PS_OPTIMIZER_MAX_STATES];
    ps_optimizer_scalars scalars;
} piece;

uint64_t ps_lamb_sums(const ps_tensor_table *table)
{
    return 2 * ps_gradnorm_blocks(table);
}

static piece lamb_piece_of(const ps_lamb_part *part, const ps_optimizer_step *step, int i)
{
    const ps_tensor *t = &part->table->tensors[i];
    const ps_optimizer *opt = part->optimizer;
    uint64_t begin, end;
    ps_chunk_overlap(part->chunk, t, &begin, &end);
    piece p = {.tensor = i,
               .at = t->offset + begin - part->chunk->offset,
               .count = end - begin,
               .scalars = ps_optimizer_scalars_in(opt, step, t->group,
                                                  ps_optimizer_decay(opt, t->role))};
    for (int k = 0; k < opt->n_states; k++)
        p.states[k] = part->states[k] + p.at;
    return p;
}

void ps_lamb_update(const ps_lamb_part *part, const ps_optimizer_step *step,
                    double *weight_sums, double *update_sums)
{
    ps_gradnorm_chunk(part->table, part->chunk, part->weights, weight_sums);
    for (int i = part->chunk->first_tensor; i <= part->chunk->last_tensor; i++) {
        const piece p = lamb_piece_of(part, step, i);
        if (part->table->optional && ps_absent_at(part->grads + p.at)) continue;
        ps_lamb_loop_update(&p.scalars, p.count, part->weights + p.at, part->grads + p.at,
                            p.states[0], p.states[1]);
    }
    ps_gradnorm_chunk(part->table, part->chunk, part->grads, update_sums);
}

static float ratio_of(const ps_lamb_part *part, const piece *p, const double *sums)
{
    const uint64_t first = ps_gradnorm_tensor_block(part->table, p->tensor);
    const uint64_t n = ps_gradnorm_tensor_block(part->table, p->tensor + 1) - first;
    if (p->scalars.decay == 0) return 1;
    sums += first;
    const double weights = ps_gradnorm_total(sums, n);
    const double updates = ps_gradnorm_total(sums + ps_gradnorm_blocks(part->table), n);
    return weights > 0 && updates > 0 ? (float)(weights / updates) : 1;
}

void ps_lamb_apply(const ps_lamb_part *part, const ps_optimizer_step *step,
                   const double *sums)
{
    const ps_optimizer *opt = part->optimizer;
    for (int i = part->chunk->first_tensor; i <= part->chunk->last_tensor; i++) {
        const piece p = lamb_piece_of(part, step, i);
        ps_lamb_loop_apply(&p.scalars, ratio_of(part, &p, sums), p.count,
                           part->weights + p.at, part->grads + p.at,
                           opt->ema > 0 ? p.states[opt->n_states - 1] : NULL);
    }
}
