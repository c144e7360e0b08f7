/* A linear layer in blocks of rows: the ranges that its hooks get, and the bits. */
#include "check.h"
#include "cpu_linear_rows.h"
#include "mem.h"

typedef struct layer {
    ps_cpu_linear linear;
    ps_cpu_linear_range place;
    float *x, *dy, *weight, *bias; // (n, in), (n, out), (out, in), (out)
    float *y[2], *dweight[2], *dbias[2];
} layer;

static float *array(int64_t count, unsigned seed)
{
    float *a;
    assert_ok(ps_mem_zalloc_aligned(&a, (size_t)count * sizeof *a, "a"));
    for (int64_t i = 0; i < count; i++)
        a[i] = (float)rand_r(&seed) / (float)RAND_MAX - 0.5f;
    return a;
}

static void layer_init(layer *l, int64_t n, int64_t in, int64_t out)
{
    *l = (layer){.linear = {.name = "l", .n = n, .in = in, .out = out}};
    const size_t turned = ps_cpu_linear_turned_bytes(&l->linear);
    if (turned) l->linear.turned = array((int64_t)(turned / sizeof(float)), 9);
    l->place.weight = 1000;
    l->place.end = 1000 + (uint64_t)(out * in + out);
    l->x = array(n * in, 1);
    l->dy = array(n * out, 2);
    l->weight = array(out * in, 3);
    l->bias = array(out, 4);
    for (int i = 0; i < 2; i++) {
        l->y[i] = array(n * out, 5);
        l->dweight[i] = array(out * in, 6);
        l->dbias[i] = array(out, 7);
    }
}

static void layer_fini(layer *l)
{
    float *const all[] = {l->x,    l->dy,         l->weight,   l->bias,
                          l->y[0], l->dweight[0], l->dbias[0], l->linear.turned,
                          l->y[1], l->dweight[1], l->dbias[1]};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

/* The ranges follow each other. */
typedef struct ranges {
    uint64_t next; // the end of the last one
    int n;
} ranges;

static ps_err note(void *ctx, uint64_t begin, uint64_t end)
{
    ranges *r = ctx;
    assert_true(begin < end);
    assert_int_equal(begin, r->next);
    r->next = end;
    r->n++;
    return PS_OK;
}

static void assert_same(const float *a, const float *b, int64_t count)
{
    assert_memory_equal(a, b, (size_t)count * sizeof *a);
}

static void forward_twice(layer *l)
{
    ps_cpu_linear *n = &l->linear;
    ranges r = {.next = l->place.weight};
    const ps_pass_hooks hooks = {.ctx = &r, .params_needed = note};
    assert_ok(ps_cpu_linear_forward(n, l->x, l->weight, l->bias, l->y[0], true));
    assert_ok(ps_cpu_linear_rows_forward(n, &hooks, &l->place, l->x, l->weight, l->bias,
                                         l->y[1], true));
    assert_same(l->y[0], l->y[1], n->n * n->out);
    assert_int_equal(r.next, l->place.end);
    assert_int_equal(r.n, (n->out + n->forward_rows - 1) / n->forward_rows);
}

static void backward_twice(layer *l, bool accumulate)
{
    ps_cpu_linear *n = &l->linear;
    ranges r = {.next = l->place.weight};
    const ps_pass_hooks hooks = {.ctx = &r, .grads_ready = note};
    assert_ok(ps_cpu_linear_backward_weights(n, l->x, l->dy, l->dweight[0], l->dbias[0],
                                             accumulate));
    assert_ok(ps_cpu_linear_rows_backward(n, &hooks, &l->place, l->x, l->dy,
                                          l->dweight[1], l->dbias[1], accumulate));
    assert_same(l->dweight[0], l->dweight[1], n->in * n->out);
    assert_same(l->dbias[0], l->dbias[1], n->out);
    assert_int_equal(r.next, l->place.end);
    assert_int_equal(r.n, (n->out + n->backward_rows - 1) / n->backward_rows);
}

TEST(blocks_have_the_bits_of_the_layer)
{
    static const int64_t shapes[][3] = {{64, 576, 128}, {64, 9216, 128}, {7, 300, 65},
                                        {1, 400, 120},  {16, 25, 640},   {32, 100, 90}};
    int forward = 0, backward = 0;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        layer l;
        layer_init(&l, shapes[i][0], shapes[i][1], shapes[i][2]);
        ps_cpu_linear *n = &l.linear;
        const size_t bytes = (size_t)(n->in * 20) * sizeof(float);
        assert_ok(ps_cpu_linear_rows_choose(n, bytes));
        // blocks are whole units with the bytes of 20 rows or more; 0: bits would change
        assert_true(n->forward_rows % 16 == 0 && n->forward_rows != 16);
        assert_true(n->backward_rows % 16 == 0 && n->backward_rows != 16);
        if (n->forward_rows) forward_twice(&l);
        if (n->backward_rows) backward_twice(&l, false);
        if (n->backward_rows) backward_twice(&l, true);
        print_message("%d x %d x %d: %d %d\n", (int)n->n, (int)n->in, (int)n->out,
                      (int)n->forward_rows, (int)n->backward_rows);
        forward += n->forward_rows > 0;
        backward += n->backward_rows > 0;
        layer_fini(&l);
    }
#ifdef __x86_64__ // one of these is cut with AVX2, and each with AVX-512
    assert_true(forward > 0 && backward > 0);
#endif
}

TEST(small_layers_stay_whole)
{
    static const size_t bytes[] = {0, 10 * 64 * sizeof(float), SIZE_MAX, SIZE_MAX / 2};
    for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++) {
        ps_cpu_linear l = {.name = "l", .n = 8, .in = 64, .out = 10};
        assert_ok(ps_cpu_linear_rows_choose(&l, bytes[i]));
        assert_int_equal(l.forward_rows, 0);
        assert_int_equal(l.backward_rows, 0);
    }
}

static ps_err count_down(void *ctx, uint64_t begin, uint64_t end)
{
    return --*(int *)ctx ? PS_OK : ps_err_set(PS_ERR_TIMEOUT, "told to fail");
}

TEST(a_hook_that_fails_ends_the_pass)
{
    int calls = 2;
    layer l;
    layer_init(&l, 4, 16, 64);
    l.linear.forward_rows = l.linear.backward_rows = 16;
    const ps_pass_hooks hooks = {
        .ctx = &calls, .params_needed = count_down, .grads_ready = count_down};
    assert_int_equal(ps_cpu_linear_rows_forward(&l.linear, &hooks, &l.place, l.x,
                                                l.weight, NULL, l.y[0], false),
                     PS_ERR_TIMEOUT);
    calls = 3;
    assert_int_equal(ps_cpu_linear_rows_backward(&l.linear, &hooks, &l.place, l.x, l.dy,
                                                 l.dweight[0], NULL, false),
                     PS_ERR_TIMEOUT);
    assert_int_equal(calls, 0);
    layer_fini(&l);
}
