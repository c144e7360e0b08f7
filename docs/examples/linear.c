/* Trains y = w x + b by libpstrain. Each worker has data of its own; the servers make the
 * optimizer's steps.
 *
 *   cc linear.c $(pkg-config --cflags --libs pstrain) -o linear
 *   export MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 WORLD_SIZE=2 PS_SERVERS=1
 *   ps-server & RANK=0 ./linear & RANK=1 ./linear; wait
 */
#include <stdio.h>
#include <stdlib.h>

#include <pstrain.h>

enum { STEPS = 200, BATCH = 32, FEATURES = 3 };

static const float true_w[FEATURES] = {2, -1, 0.5f}, true_b = 3;

static void check(pstrain_session *s, int status)
{
    if (status == PSTRAIN_OK) return;
    fprintf(stderr, "linear: %s: %s\n", pstrain_status_name(status), pstrain_error());
    pstrain_abort(s, pstrain_error()); // the other workers need not wait
    pstrain_destroy(&s);
    exit(1);
}

static uint32_t seed; // rand() is libzmq's, too: it draws when a connection is lost

static float draw(void) // between -1 and 1
{
    seed = seed * 1664525 + 1013904223;
    return (float)(seed >> 8) / (1 << 23) - 1;
}

/* Adds the gradients of the mean squared error over a batch; returns the error. */
static float backward(const float *w, float b, float *grad_w, float *grad_b)
{
    float loss = 0;
    for (int i = 0; i < FEATURES; i++)
        grad_w[i] = 0;
    *grad_b = 0;
    for (int n = 0; n < BATCH; n++) {
        float x[FEATURES], off = b - true_b;
        for (int i = 0; i < FEATURES; i++) {
            x[i] = draw();
            off += (w[i] - true_w[i]) * x[i];
        }
        for (int i = 0; i < FEATURES; i++)
            grad_w[i] += 2 * off * x[i] / BATCH;
        *grad_b += 2 * off / BATCH;
        loss += off * off / BATCH;
    }
    return loss;
}

int main(void)
{
    const int64_t w_shape[] = {FEATURES};
    const pstrain_tensor tensors[] = {{.name = "w", .shape = w_shape, .n_dims = 1},
                                      {.name = "b"}};
    const char *const settings[] = {"optimizer.name=adamw", "optimizer.lr=0.05"};
    const pstrain_table table = {.struct_size = sizeof table,
                                 .tensors = tensors,
                                 .n_tensors = 2,
                                 .tensor_size = sizeof tensors[0],
                                 .settings = settings,
                                 .n_settings = 2,
                                 .total_steps = STEPS};
    const pstrain_options options = {.struct_size = sizeof options}; // the environment's
    pstrain_session *s = NULL;
    check(s, pstrain_create(&options, &s));
    check(s, pstrain_join(s));
    check(s, pstrain_open(s, &table));
    const uint64_t at_w = pstrain_tensor_offset(s, 0), at_b = pstrain_tensor_offset(s, 1);
    float *params = pstrain_params(s), *grads = pstrain_grads(s), loss = 0;
    const float share = 1.0f / (float)pstrain_world_size(s);
    seed = (uint32_t)pstrain_rank(s) + 1;
    check(s, pstrain_start(s)); // from zeros
    for (int step = 0; step < STEPS; step++) {
        check(s, pstrain_begin(s, NULL));
        check(s, pstrain_wait(s, 0, 2));
        loss = backward(params + at_w, params[at_b], grads + at_w, grads + at_b) * share;
        for (int i = 0; i < FEATURES; i++)
            grads[at_w + i] *= share;
        grads[at_b] *= share;
        check(s, pstrain_push(s, 0, 2));
        check(s, pstrain_finish(s));
    }
    check(s, pstrain_drain(s));
    check(s, pstrain_all_reduce(s, &loss, 1, PSTRAIN_FLOAT32, PSTRAIN_SUM));
    if (pstrain_rank(s) == 0)
        printf("w = %.3f %.3f %.3f  b = %.3f  loss = %.2g\n", params[at_w],
               params[at_w + 1], params[at_w + 2], params[at_b], loss);
    check(s, pstrain_close(s));
    pstrain_destroy(&s);
    return 0;
}
