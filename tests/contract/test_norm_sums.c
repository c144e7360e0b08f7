/* The CUDA device's batch norm that adds the other branch of a residual in the same
 * kernel, the host in the GPU's place, against the same model with a max pool of one
 * position behind the norm, which changes no value but keeps the two apart. Every bit of
 * outputs, gradients and statistics is the same. */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "device_rig.h"
#include "host_gpu.h"

enum { BATCH = 6, SHORT = 5 };

static const ps_pass training = {.training = true, .grad_scale = 1.0f};

/* Two models; | in the layers: the pool, or nothing. */
typedef struct pair {
    rig sides[2];
    ps_program *forward[2]; // without training, where values share more memory
    long launches[2];       // of the first pass
} pair;

typedef struct sum_case {
    const char *what, *loss, *layers;
    bool whole; // the kernel adds; else the two are no neighbours
} sum_case;

#define TAIL                                                                             \
    "{conv2d: {name: z, out: 3, kernel: 3}}, flatten, {linear: {name: fc, out: 4}}"
#define CONV(name)                                                                       \
    "{conv2d: {name: " name ", out: 5, kernel: 3, padding: 1, bias: false}}"
#define NORM(name) "{batch_norm2d: {name: " name "}}"

static const sum_case cases[] = {
    {"relu", "cross_entropy",
     CONV("a") ", {residual: {name: r, body: [" CONV("b") ", " NORM(
         "n") " | ]}}, relu, "
              "{residual: {name: s, body: [" CONV("c") ", " NORM(
                  "m") " | ]}}, relu, " TAIL,
     true},
    {"no relu", "cross_entropy",
     CONV("a") ", {residual: {name: r, body: [" CONV("b") ", " NORM("n") " | ]}}, " TAIL,
     true},
    {"a norm in each branch", "cross_entropy",
     CONV("a") ", relu, {residual: {name: r, body: [" CONV("b") ", " NORM(
         "n") "], shortcut: [" CONV("c") ", " NORM("m") " | ]}}, relu, " TAIL,
     true},
    {"the other branch is the norm's input", "cross_entropy",
     CONV("a") ", {residual: {name: r, body: [" NORM("n") " | ]}}, relu, " TAIL, true},
    {"the other branch is the model's input", "cross_entropy",
     "{residual: {name: r, body: [" CONV("b") ", " NORM("n") " | ]}}, relu, " TAIL, true},
    {"three readers", "cross_entropy",
     CONV("a") ", {residual: {name: r, body: [" CONV(
         "b") ", relu, {residual: {name: s, "
              "body: [" CONV("c") ", " NORM(
                  "n") " | ]}}]}}, relu, {max_pool2d: 2}, " TAIL,
     true},
    {"frozen", "cross_entropy train.freeze=[a.*,r.b.*,r.n.*]",
     CONV("a") ", {residual: {name: r, body: [" CONV("b") ", " NORM(
         "n") " | ]}}, relu, " TAIL,
     true},
    {"frozen shortcut", "cross_entropy train.freeze=[a.*]",
     CONV("a") ", {residual: {name: r, body: [" CONV("b") ", " NORM(
         "n") " | ]}}, relu, " TAIL,
     true},
    {"a relu between", "cross_entropy",
     CONV("a") ", {residual: {name: r, body: [" CONV("b") ", " NORM(
         "n") ", relu | ]}}, " TAIL,
     false},
};

static void write_layers(const char *layers, bool apart, char *out)
{
    const char *at = strchr(layers, '|');
    for (; at; layers = at + 1, at = strchr(layers, '|')) {
        out = mempcpy(out, layers, (size_t)(at - layers));
        if (apart) out = stpcpy(out, ", {max_pool2d: 1}");
    }
    strcpy(out, layers);
}

static void pair_init(pair *p, const sum_case *c, const rig_rounding *rounding,
                      ps_switch channels_last)
{
    *p = (pair){0};
    for (int s = 0; s < 2; s++) {
        rig *r = &p->sides[s];
        const rig_device on = {
            .kind = PS_DEVICE_CUDA, .channels_last = channels_last, .rounding = rounding};
        char layers[1000];
        write_layers(c->layers, s == 1, layers);
        rig_init(r, &on, "[5, 6, 7]", c->loss, layers, BATCH);
        const ps_program_options forward = {.spec = &r->spec,
                                            .max_batch = BATCH,
                                            .params = r->params,
                                            .buffers = r->buffers};
        assert_ok(ps_program_create(r->device, &forward, &p->forward[s]));
    }
}

static void pair_fini(pair *p)
{
    for (int s = 0; s < 2; s++) {
        ps_program_destroy(&p->forward[s]);
        rig_fini(&p->sides[s]);
    }
}

static void check_outputs(const pair *p, ps_program *const *programs, int n)
{
    float out[2][BATCH * 4];
    for (int s = 0; s < 2; s++)
        assert_ok(ps_program_outputs(programs[s], out[s], (size_t)n * 4));
    assert_memory_equal(out[0], out[1], sizeof(float) * (size_t)n * 4);
}

static void pair_train(pair *p, int n, bool accumulate)
{
    ps_program *const programs[] = {p->sides[0].program, p->sides[1].program};
    ps_pass pass = training;
    pass.accumulate = accumulate;
    for (int s = 0; s < 2; s++) {
        const ps_batch batch = rig_batch(&p->sides[s], n);
        const long before = host_gpu_counted.launches;
        assert_ok(ps_program_forward(programs[s], &batch, &pass, NULL));
        assert_ok(ps_program_backward(programs[s], &batch, &pass));
        if (!p->launches[s]) p->launches[s] = host_gpu_counted.launches - before;
        assert_ok(ps_program_fetch_buffers(programs[s]));
    }
    check_outputs(p, programs, n);
    const ps_tensor_table *table = &p->sides[0].spec.table;
    assert_memory_equal(p->sides[0].grads, p->sides[1].grads,
                        sizeof(float) * table->arena_count);
    assert_memory_equal(p->sides[0].buffers, p->sides[1].buffers, table->buffer_bytes);
}

static void pair_evaluate(pair *p, ps_program *const *programs)
{
    const ps_pass evaluation = {.training = false};
    for (int s = 0; s < 2; s++) {
        const ps_batch batch = rig_batch(&p->sides[s], BATCH);
        ps_pass_result result;
        assert_ok(ps_program_forward(programs[s], &batch, &evaluation, &result));
    }
    check_outputs(p, programs, BATCH);
}

static void check_case(const sum_case *c, const rig_rounding *rounding,
                       ps_switch channels_last)
{
    pair p;
    print_message("%s\n", c->what);
    pair_init(&p, c, rounding, channels_last);
    for (int pass = 0; pass < 3; pass++) // the second is captured, the third replayed
        pair_train(&p, BATCH, false);
    pair_train(&p, SHORT, true);
    ps_program *const programs[] = {p.sides[0].program, p.sides[1].program};
    pair_evaluate(&p, programs);
    pair_evaluate(&p, p.forward);
    // a pool forward and one backward for each |, and the sum
    const char *at = c->layers;
    for (long marks = 0; (at = strchr(at, '|')); at++)
        if (++marks && !strchr(at + 1, '|') && strstr(c->loss, "freeze") == NULL)
            assert_int_equal(p.launches[1] - p.launches[0],
                             c->whole ? 3 * marks : 2 * marks);
    pair_fini(&p);
}

TEST(test_float32)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_case(&cases[i], &rig_float32, PS_SWITCH_OFF);
}

TEST(test_sixteen_bits)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int precision = 0; precision < 2; precision++)
            for (int last = 0; last < 2; last++)
                check_case(&cases[i], &rig_sixteen_bits[precision],
                           last ? PS_SWITCH_ON : PS_SWITCH_OFF);
}
