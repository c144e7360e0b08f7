/* Finds out what users think of items: the product of a user's row and an item's row of
 * two embedding tables, which live on the servers and begin empty.
 *
 *   cc rows.c $(pkg-config --cflags --libs pstrain) -o rows
 *   export MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 WORLD_SIZE=2 PS_SERVERS=1
 *   ps-server & RANK=0 ./rows & RANK=1 ./rows; wait
 */
#include <stdio.h>
#include <stdlib.h>

#include <pstrain.h>

enum { STEPS = 300, BATCH = 64, DIM = 4, USERS = 50, ITEMS = 40 };

static void check(pstrain_session *s, int status)
{
    if (status == PSTRAIN_OK) return;
    fprintf(stderr, "rows: %s: %s\n", pstrain_status_name(status), pstrain_error());
    pstrain_abort(s, pstrain_error()); // the other workers need not wait
    pstrain_destroy(&s);
    exit(1);
}

static uint32_t seed;

static uint32_t draw(uint32_t below)
{
    seed = seed * 1664525 + 1013904223;
    return (seed >> 8) % below;
}

/* Ids may be any numbers from 0 to 2^63 - 1. */
static int64_t id_of(uint32_t number)
{
    return (int64_t)number * 0x123456789abcd;
}

static float opinion(uint32_t user, uint32_t item)
{
    return (float)(user % 5) * (float)(item % 3) / 4 - 1;
}

/* Gradients of the mean squared error over a batch; returns the error. */
static float backward(const float (*users)[DIM], const float (*items)[DIM],
                      const float *wanted, float (*grad_users)[DIM],
                      float (*grad_items)[DIM])
{
    float loss = 0;
    for (int n = 0; n < BATCH; n++) {
        float off = -wanted[n];
        for (int i = 0; i < DIM; i++)
            off += users[n][i] * items[n][i];
        for (int i = 0; i < DIM; i++) {
            grad_users[n][i] = 2 * off * items[n][i] / BATCH;
            grad_items[n][i] = 2 * off * users[n][i] / BATCH;
        }
        loss += off * off / BATCH;
    }
    return loss;
}

static uint64_t count(pstrain_session *s, int table)
{
    pstrain_rows_page page = {.struct_size = sizeof page};
    uint64_t n = 0;
    do {
        check(s, pstrain_rows_save(s, table, &page));
        n += page.n;
    } while (page.next);
    return n;
}

int main(void)
{
    const pstrain_rows_table adagrad = {.name = "user",
                                        .dim = DIM,
                                        .optimizer = "adagrad",
                                        .eps = 1e-10,
                                        .init = "uniform",
                                        .scale = 0.5};
    pstrain_rows_table tables[] = {adagrad, adagrad};
    tables[1].name = "item";
    const double rates[] = {0.2, 0.2};
    const char *const settings[] = {"optimizer.name=sgd"}; // of tensors: there are none
    const pstrain_table table = {.struct_size = sizeof table,
                                 .settings = settings,
                                 .n_settings = 1,
                                 .rows = tables,
                                 .n_rows = 2,
                                 .rows_size = sizeof tables[0]};
    const pstrain_options options = {.struct_size = sizeof options}; // the environment's
    pstrain_session *s = NULL;
    check(s, pstrain_create(&options, &s));
    check(s, pstrain_join(s));
    check(s, pstrain_open(s, &table));
    check(s, pstrain_start(s));
    const float share = 1.0f / (float)pstrain_world_size(s);
    float rows[2][BATCH][DIM], grads[2][BATCH][DIM], wanted[BATCH], loss = 0;
    int64_t ids[2][BATCH];
    seed = (uint32_t)pstrain_rank(s) + 1;
    for (int step = 0; step < STEPS; step++) {
        for (int n = 0; n < BATCH; n++) {
            const uint32_t user = draw(USERS), item = draw(ITEMS);
            ids[0][n] = id_of(user);
            ids[1][n] = id_of(item);
            wanted[n] = opinion(user, item);
        }
        pstrain_rows_lookup lookups[2];
        for (int i = 0; i < 2; i++)
            lookups[i] = (pstrain_rows_lookup){.struct_size = sizeof lookups[i],
                                               .table = i,
                                               .mode = PSTRAIN_ROWS_EACH,
                                               .ids = ids[i],
                                               .n_ids = BATCH,
                                               .out = rows[i][0]};
        uint64_t ticket;
        check(s, pstrain_rows_pull(s, lookups, 2, 1, &ticket));
        loss = backward(rows[0], rows[1], wanted, grads[0], grads[1]) * share;
        for (int i = 0; i < 2; i++)
            check(s, pstrain_rows_gradient(s, ticket, i, grads[i][0], NULL));
        check(s, pstrain_rows_push(s, share, rates));
    }
    check(s, pstrain_all_reduce(s, &loss, 1, PSTRAIN_FLOAT32, PSTRAIN_SUM));
    if (pstrain_rank(s) == 0)
        printf("%d users, %d items, loss = %.2g\n", (int)count(s, 0), (int)count(s, 1),
               loss);
    check(s, pstrain_close(s));
    pstrain_destroy(&s);
    return 0;
}
