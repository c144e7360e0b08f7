#include "survivors.h"

#include <stdlib.h>

#include "mem.h"

enum { GENERATIONS_BITS = 20 }; // of one start of worker 0

int ps_survivors_holder(const ps_roster *roster)
{
    for (int r = 1; r < roster->n_workers; r++)
        if (!ps_roster_same_host(&roster->workers[0], &roster->workers[r])) return r;
    return roster->n_workers > 1 ? 1 : 0;
}

ps_survivors_choice ps_survivors_choose(const ps_survivor *all, int n, int rank,
                                        bool trusted, uint64_t disk_step)
{
    ps_survivors_choice c = {.source = -1};
    for (int r = 0; r < n; r++)
        if (all[r].generation > c.generation) c.generation = all[r].generation;
    for (int r = 0; r < n && trusted; r++) {
        if (all[r].generation < c.generation) continue;
        if (all[r].made > c.made) c.made = all[r].made;
        if (all[r].step == 0) continue;
        if (all[r].step >= disk_step && all[r].step > c.of_source.step) {
            c.source = r;
            c.of_source = all[r];
        }
    }
    c.own_counts = trusted && all[rank].generation == c.generation;
    // A new beginning, from what is on the disk. Whoever was in the job before worker 0
    // was started again may come back, with snapshots of a lower generation.
    if (c.generation == 0) c.generation = all[0].starts << GENERATIONS_BITS;
    c.generation++;
    return c;
}

/* Numbers of each rank, and rank 0's beside. */
enum { STEP, N_RANKS, MADE, GENERATION, STARTS, N_EACH };
enum { TRUSTED, DISK_STEP, N_FIRST };

static void write_own(double *first, double *own, const ps_survivor *s, bool trusted,
                      uint64_t disk_step, int rank)
{
    own[STEP] = (double)s->step;
    own[N_RANKS] = s->n_ranks;
    own[MADE] = (double)s->made;
    own[GENERATION] = (double)s->generation;
    own[STARTS] = (double)s->starts;
    if (rank != 0) return;
    first[TRUSTED] = trusted;
    first[DISK_STEP] = (double)disk_step;
}

static ps_err survivors_choose(const double *values, int n, int rank,
                               ps_survivors_choice *out)
{
    ps_survivor *all;
    PS_TRY(PS_NEW(&all, (size_t)n, "the survivors"));
    for (int r = 0; r < n; r++) {
        const double *v = values + N_FIRST + r * N_EACH;
        all[r] = (ps_survivor){.step = (uint64_t)v[STEP],
                               .n_ranks = (int)v[N_RANKS],
                               .made = (uint64_t)v[MADE],
                               .generation = (uint64_t)v[GENERATION],
                               .starts = (uint64_t)v[STARTS]};
    }
    *out = ps_survivors_choose(all, n, rank, values[TRUSTED] > 0,
                               (uint64_t)values[DISK_STEP]);
    free(all);
    return PS_OK;
}

ps_err ps_survivors_meet(ps_member *member, const ps_survivor *own, bool trusted,
                         uint64_t disk_step, ps_deadline deadline,
                         ps_survivors_choice *out)
{
    const int n = ps_member_roster(member)->n_workers, rank = ps_member_rank(member);
    const size_t n_values = N_FIRST + (size_t)n * N_EACH;
    double *values;
    PS_TRY(PS_NEW(&values, n_values, "the survivors"));
    write_own(values, values + N_FIRST + rank * N_EACH, own, trusted, disk_step, rank);
    ps_err err = ps_member_reduce(member, "survivors", values, n_values, deadline);
    if (err == PS_OK) err = survivors_choose(values, n, rank, out);
    free(values);
    return err;
}
