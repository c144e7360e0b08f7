/* libpstrain's copies between a GPU's arenas and the host's, with a stand-in for the
 * driver (stand_in_cuda.h) that makes them in 1,000 random orders. Gradients and rates
 * are small binary fractions, so that the weights are closed forms. Kernels of the
 * program look at all of them when they run: what is stale or torn is found. */
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "pstrain_rig.h"
#include "stand_in_cuda.h"

enum { N_PARAMS = 6, KERNELS = 8 };
static const int64_t shapes[N_PARAMS] = {700, 9000, 1, 64, 4096, 33};
static const char *const names[N_PARAMS] = {"a", "b", "c", "d", "e", "f"};
static const char *driver = PS_STAND_IN_CUDA;

/* Half of the parameters travel in 16 bits, or none. */
typedef struct device_case {
    int steps;
    const int *dtypes;
    const char *setting;
    int lacks; // nobody has a gradient for this parameter in odd steps; -1: all have
    int broken, from; // how the stand-in is broken, and from which step on
} device_case;

typedef struct program {
    rig_worker *w;
    const device_case *which;
    void *streams[2];
    char *params, *grads; // "on the GPU"
    struct look *looks;
} program;

/* A kernel: it reads or writes one parameter. */
typedef struct look {
    const program *p;
    int t, step;
} look;

static atomic_int n_wrong;

static int dtype_of(const program *p, int t)
{
    return p->which->dtypes ? p->which->dtypes[t] : PSTRAIN_FLOAT32;
}

static bool lacks(const program *p, int t, int step)
{
    return t == p->which->lacks && step % 2 == 1;
}

static float element(const program *p, const char *arena, int t, int64_t i)
{
    const char *at = arena + pstrain_device_offset(p->w->s, t);
    if (dtype_of(p, t) == PSTRAIN_FLOAT32) return ((const float *)(const void *)at)[i];
    const uint32_t bits = (uint32_t)((const uint16_t *)(const void *)at)[i] << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static void set_element(const program *p, char *arena, int t, int64_t i, float x)
{
    char *at = arena + pstrain_device_offset(p->w->s, t);
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (dtype_of(p, t) == PSTRAIN_FLOAT32)
        ((float *)(void *)at)[i] = x;
    else
        ((uint16_t *)(void *)at)[i] = (uint16_t)(bits >> 16);
}

/* The mean of both ranks' is -1/64 or -2/64: the rate is 1, so the weights grow by it. */
static float gradient_of(int rank, int step, int64_t i)
{
    return -(float)((step + i) % 2 + 1 + (rank ? 1 : -1)) / 64;
}

/* After `step` steps; both kinds of steps add 3/64 to each element. */
static float weight_of(const program *p, int t, int step, int64_t i)
{
    int sum = 0;
    for (int k = 0; k < 2; k++) {
        const int times = (step + 1 - k) / 2; // steps k, k + 2, ...
        if (!lacks(p, t, k)) sum += times * (int)((k + i) % 2 + 1);
    }
    return (float)(sum % 128) / 64; // half a cycle is taken back: below
}

/* Weights stay below 2, where bfloat16 has all sixty-fourths, because a step that would
 * reach it takes all of it back. */
static float gradient_at(const program *p, int t, int step, int64_t i)
{
    const float before = weight_of(p, t, step, i), after = weight_of(p, t, step + 1, i);
    const float plain = gradient_of(p->w->rank, step, i);
    return after >= before ? plain : plain + 2;
}

static void forward(void *arg)
{
    const look *l = arg;
    for (int64_t i = 0; i < shapes[l->t]; i++) {
        const float x = element(l->p, l->p->params, l->t, i);
        if (x == weight_of(l->p, l->t, l->step, i)) continue;
        if (atomic_fetch_add(&n_wrong, 1) < 10)
            fprintf(stderr, "step %d: %s[%d] is %g, not %g\n", l->step, names[l->t],
                    (int)i, (double)x, (double)weight_of(l->p, l->t, l->step, i));
        return;
    }
}

static void backward(void *arg)
{
    const look *l = arg;
    forward(arg); // it reads the weights again
    for (int64_t i = 0; i < shapes[l->t]; i++)
        set_element(l->p, l->p->grads, l->t, i, gradient_at(l->p, l->t, l->step, i));
}

static void launch(program *p, void *stream, void (*kernel)(void *), int t, int step)
{
    look *l =
        &p->looks[(step % KERNELS) * 2 * N_PARAMS + (kernel == forward) * N_PARAMS + t];
    *l = (look){.p = p, .t = t, .step = step};
    stand_in_cuda_kernel(stream, kernel, l);
}

static int program_step(program *p, int step)
{
    pstrain_session *s = p->w->s;
    void *stream = p->streams[step / 3 % 2];
    if (p->w->rank == 0) stand_in_cuda_seed((uint64_t)step + 1);
    if (p->w->rank == 0 && step == p->which->from) stand_in_cuda_break(p->which->broken);
    if (step % 3 == 0) RIG_TRY(pstrain_device_wait(s, 0, N_PARAMS, stream));
    for (int t = 0; t < N_PARAMS; t++) {
        if (step % 3) RIG_TRY(pstrain_device_wait(s, t, 1, stream));
        launch(p, stream, forward, t, step);
    }
    RIG_TRY(pstrain_begin(s, NULL));
    for (int t = N_PARAMS - 1; t >= 0; t--) {
        if (lacks(p, t, step)) {
            RIG_TRY(pstrain_device_push_none(s, t, 1, stream));
            continue;
        }
        launch(p, stream, backward, t, step);
        RIG_TRY(pstrain_device_push(s, t, stream, 1));
    }
    RIG_TRY(pstrain_finish(s));
    return step % 50 ? PSTRAIN_OK : pstrain_sync(s);
}

static int program_open(program *p)
{
    const char *settings[] = {"optimizer.name=sgd", "optimizer.lr=1", p->which->setting};
    pstrain_tensor tensors[N_PARAMS];
    for (int t = 0; t < N_PARAMS; t++)
        tensors[t] = (pstrain_tensor){.name = names[t], .shape = &shapes[t], .n_dims = 1};
    const pstrain_table table =
        RIG_TABLE(tensors, N_PARAMS, .settings = settings, .n_settings = 3, .mean = 1);
    const pstrain_device_options device = {.struct_size = sizeof device,
                                           .ordinal = p->w->rank,
                                           .dtypes = p->which->dtypes,
                                           .driver = driver};
    RIG_TRY(pstrain_open(p->w->s, &table));
    RIG_TRY(pstrain_device_open(p->w->s, &device));
    const uint64_t bytes = pstrain_device_bytes(p->w->s);
    p->params = aligned_alloc(64, bytes);
    p->grads = aligned_alloc(64, bytes);
    memset(p->params, 0xff, bytes);
    memset(p->grads, 0, bytes);
    p->looks = calloc((size_t)KERNELS * 2 * N_PARAMS, sizeof *p->looks);
    p->streams[1] = stand_in_cuda_stream();
    RIG_TRY(pstrain_device_arenas(p->w->s, (uint64_t)(uintptr_t)p->params,
                                  (uint64_t)(uintptr_t)p->grads));
    return pstrain_start(p->w->s);
}

static void program_free(program *p)
{
    free(p->params);
    free(p->grads);
    free(p->looks);
}

static int run_program(rig_worker *w)
{
    program p = {.w = w, .which = w->rig->ctx};
    int status = program_open(&p);
    for (int step = 0; step < p.which->steps && status == 0; step++)
        status = program_step(&p, step);
    if (status == 0) status = pstrain_device_wait(w->s, 0, N_PARAMS, NULL);
    if (status == 0) {
        for (int t = 0; t < N_PARAMS; t++)
            launch(&p, NULL, forward, t, p.which->steps);
        stand_in_cuda_synchronize();
        status = pstrain_device_close(w->s);
    }
    if (status == 0) status = pstrain_close(w->s);
    if (status) {
        snprintf(w->text, sizeof w->text, "%s", pstrain_error());
        pstrain_abort(w->s, w->text);
        stand_in_cuda_break(STAND_IN_WELL);
        stand_in_cuda_synchronize(); // kernels that look at the session
        pstrain_destroy(&w->s);      // before its memory goes
    }
    program_free(&p);
    return status;
}

/* text: of the first worker that fails; NULL: none does. */
static void run_case(device_case which, const char *text)
{
    static const char *const soon[] = {"net.step_timeout_ms=1000"};
    rig r = {.servers = 1,
             .workers = 2,
             .settings = soon,
             .n_settings = text != NULL,
             .run = run_program,
             .ctx = &which,
             .fails = text != NULL};
    atomic_store(&n_wrong, 0);
    if (which.from < 0) stand_in_cuda_break(which.broken);
    rig_run(&r);
    stand_in_cuda_break(STAND_IN_WELL);
    assert_int_equal(n_wrong, 0);
    assert_int_equal(stand_in_cuda_open(), 0);
    if (text && !strstr(r.worker[0].text, text) && !strstr(r.worker[1].text, text))
        fail_msg("'%s' and '%s' lack '%s'", r.worker[0].text, r.worker[1].text, text);
}

static const int half[N_PARAMS] = {PSTRAIN_BFLOAT16, PSTRAIN_BFLOAT16, PSTRAIN_FLOAT32,
                                   PSTRAIN_BFLOAT16, PSTRAIN_FLOAT32,  PSTRAIN_BFLOAT16};

static const char *const chunks = "exchange.chunk=16384";

TEST(test_weights_are_never_stale)
{
    run_case((device_case){.steps = 700, .setting = chunks, .lacks = -1}, NULL);
}

TEST(test_half_of_them_in_16_bits)
{
    run_case((device_case){.steps = 300, .setting = chunks, .dtypes = half, .lacks = 1},
             NULL);
}

TEST(test_memory_that_is_not_pinned)
{
    run_case((device_case){.steps = 6,
                           .setting = chunks,
                           .lacks = 3,
                           .broken = STAND_IN_NO_PIN,
                           .from = -1},
             NULL);
}

TEST(test_a_kernel_that_fails)
{
    run_case((device_case){.steps = 9,
                           .setting = chunks,
                           .lacks = -1,
                           .broken = STAND_IN_FAILS,
                           .from = 4},
             "CUDA_ERROR_OF_THE_STAND_IN (700), a kernel failed");
}

TEST(test_a_gpu_that_hangs)
{
    run_case((device_case){.steps = 9,
                           .setting = chunks,
                           .lacks = -1,
                           .broken = STAND_IN_HANGS,
                           .from = 4},
             "net.step_timeout_ms");
}

TEST(test_a_graph_that_is_captured)
{
    run_case((device_case){.steps = 9,
                           .setting = chunks,
                           .lacks = -1,
                           .broken = STAND_IN_CAPTURES,
                           .from = 4},
             "is being captured in a CUDA graph");
}

/* --- memory ------------------------------------------------------------------------ */

/* A table of two parameters. */
static int open_two(pstrain_session *s)
{
    const pstrain_tensor tensors[] = {{.name = "a", .shape = shapes, .n_dims = 1},
                                      {.name = "b", .shape = shapes, .n_dims = 1}};
    const pstrain_table table = RIG_TABLE(tensors, 2);
    return pstrain_open(s, &table);
}

/* Ends the program, in a worker's thread, unless a child has the arenas, or has not. */
static void look_in_child(const pstrain_session *s, bool wanted)
{
    unsigned char there;
    for (int i = 0; i < 2; i++) {
        void *memory = i == 0 ? pstrain_params(s) : pstrain_grads(s);
        int status = 0;
        const pid_t child = fork();
        if (child == 0) _exit(mincore(memory, 1, &there) == 0);
        if (child > 0 && waitpid(child, &status, 0) == child &&
            (WEXITSTATUS(status) == 1) == wanted)
            continue;
        fprintf(stderr, "arena %d: a child %s it\n", i, wanted ? "lacks" : "has");
        exit(1);
    }
}

static int fork_beside(rig_worker *w)
{
    const pstrain_device_options o = {.struct_size = sizeof o, .driver = driver};
    RIG_TRY(open_two(w->s));
    RIG_TRY(pstrain_device_open(w->s, &o));
    look_in_child(w->s, false);
    RIG_TRY(pstrain_device_close(w->s));
    look_in_child(w->s, true);
    return pstrain_close(w->s);
}

TEST(test_children_get_no_pinned_memory)
{
    rig_job(1, 1, fork_beside);
    assert_int_equal(stand_in_cuda_open(), 0);
}

/* Weights are on their way to arenas that have to stay. */
static int close_too_early(rig_worker *w)
{
    program p = {.w = w, .which = w->rig->ctx};
    RIG_TRY(program_open(&p));
    stand_in_cuda_break(STAND_IN_HANGS);
    RIG_TRY(pstrain_device_wait(w->s, 0, N_PARAMS, NULL));
    rig_refused(pstrain_device_close(w->s), PSTRAIN_ERR_TIMEOUT,
                "copies of weights are not done after 1000 ms");
    stand_in_cuda_break(STAND_IN_WELL);
    stand_in_cuda_synchronize();
    pstrain_abort(w->s, "the end of the test");
    pstrain_destroy(&w->s);
    program_free(&p);
    return PSTRAIN_OK;
}

TEST(test_copies_that_are_not_made_keep_their_arenas)
{
    static const char *const soon[] = {"net.step_timeout_ms=1000"};
    device_case which = {.setting = chunks, .lacks = -1};
    rig_job(1, 1, close_too_early, .settings = soon, .n_settings = 1, .ctx = &which,
            .fails = true);
    assert_int_equal(stand_in_cuda_open(), 0);
}

/* --- calls that are refused -------------------------------------------------------- */

static int open_wrongly(rig_worker *w)
{
    const int bad[] = {PSTRAIN_FLOAT32, PSTRAIN_INT64};
    pstrain_device_options o = {.struct_size = sizeof o, .driver = driver};
    pstrain_session *s = w->s;
    rig_refused(pstrain_device_open(s, &o), PSTRAIN_ERR_ARG, "pstrain_open");
    RIG_TRY(open_two(s));
    o.dtypes = bad;
    rig_refused(pstrain_device_open(s, &o), PSTRAIN_ERR_ARG, "b is of dtype 6");
    o = (pstrain_device_options){.struct_size = sizeof o, .driver = driver};
    RIG_TRY(pstrain_device_open(s, &o));
    rig_refused(pstrain_device_open(s, &o), PSTRAIN_ERR_ARG, "has a device");
    rig_refused(pstrain_device_arenas(s, 64, 65), PSTRAIN_ERR_ARG, "no multiple of 64");
    return PSTRAIN_OK;
}

static int refuse(rig_worker *w)
{
    RIG_TRY(open_wrongly(w));
    const uint64_t bytes = pstrain_device_bytes(w->s);
    char *arenas = aligned_alloc(64, 2 * bytes);
    if (!arenas) return PSTRAIN_ERR_NOMEM;
    memset(arenas, 0, 2 * bytes);
    const uint64_t at = (uint64_t)(uintptr_t)arenas;
    pstrain_session *s = w->s;
    rig_refused(pstrain_device_wait(s, 0, 2, NULL), PSTRAIN_ERR_ARG, "pstrain_start");
    RIG_TRY(pstrain_device_arenas(s, at, at + bytes));
    RIG_TRY(pstrain_start(s));
    rig_refused(pstrain_begin(s, NULL), PSTRAIN_ERR_ARG, "lacks the weights of");
    RIG_TRY(pstrain_device_wait(s, 0, 2, NULL));
    rig_refused(pstrain_device_push(s, 0, NULL, 1), PSTRAIN_ERR_ARG, "no step has begun");
    RIG_TRY(pstrain_begin(s, NULL));
    rig_refused(pstrain_push(s, 0, 1), PSTRAIN_ERR_ARG, "on a GPU");
    rig_refused(pstrain_drain(s), PSTRAIN_ERR_ARG, "is not finished yet");
    rig_refused(pstrain_device_push(s, 2, NULL, 1), PSTRAIN_ERR_ARG, "there are 2");
    RIG_TRY(pstrain_device_push(s, 0, NULL, 2));
    rig_refused(pstrain_device_push(s, 0, NULL, 1), PSTRAIN_ERR_ARG,
                "a was pushed before");
    rig_refused(pstrain_device_wait(s, 0, 1, NULL), PSTRAIN_ERR_ARG,
                "a was pushed in step 0");
    rig_refused(pstrain_finish(s), PSTRAIN_ERR_ARG, "b was not pushed");
    RIG_TRY(pstrain_device_push_none(s, 1, 1, NULL));
    RIG_TRY(pstrain_finish(s));
    RIG_TRY(pstrain_drain(s));
    RIG_TRY(pstrain_device_close(s));
    rig_refused(pstrain_device_wait(s, 0, 1, NULL), PSTRAIN_ERR_ARG, "no device");
    free(arenas);
    return pstrain_close(s);
}

TEST(test_calls_at_the_wrong_time)
{
    rig_job(1, 1, refuse);
    assert_int_equal(stand_in_cuda_open(), 0);
}

static int find_no_gpu(rig_worker *w)
{
    const pstrain_device_options o = {
        .struct_size = sizeof o, .driver = w->rig->ctx, .ordinal = 7};
    RIG_TRY(open_two(w->s));
    return pstrain_device_open(w->s, &o);
}

TEST(test_no_gpu)
{
    static const char *const files[] = {"libnone.so.1", PS_STAND_IN_CUDA};
    static const char *const texts[] = {"libnone.so.1 cannot be loaded", "device_get"};
    for (int i = 0; i < 2; i++) {
        rig r = {
            .workers = 1, .run = find_no_gpu, .ctx = (void *)files[i], .fails = true};
        rig_run(&r);
        assert_non_null(strstr(r.worker[0].text, texts[i]));
    }
    assert_int_equal(stand_in_cuda_open(), 0);
}
