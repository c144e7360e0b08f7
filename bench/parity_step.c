/* ps-parity-step: one rank of the teacher-forced comparison with PyTorch DDP.
 *
 *   ps-parity-step --config FILE [--set key=value ...] --out DIR STATES TEACHER_LR
 *
 * Every step starts from DDP's weights (STATES, written by ddp_job.py). It runs our
 * forward and backward pass over the same batch, sends the gradients through the
 * configured exchange, and compares the sum with DDP's. Rank 0 writes DIR/steps.jsonl:
 *
 *   {"step", "loss", "loss_ref", "grad_err", "grad_max", "weight_err"}
 *
 * grad_err: the largest difference between an element of the summed gradient and DDP's;
 * grad_max: the largest element of DDP's gradient; weight_err: the largest difference
 * between the weights after an SGD step at TEACHER_LR and DDP's next weights.
 *
 * An exchange returns weights, not sums. So the job's optimizer has to be SGD with lr 1
 * and weight decay 1: its new weights are p - (g + p), which is -g up to rounding,
 * whatever p is. The passes read the teacher's weights from another arena. */
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli.h"
#include "device.h"
#include "loader.h"
#include "loss_terms.h"
#include "model_spec.h"
#include "session.h"

enum { WAIT_MS = 60000 };

/* STATES, mapped: steps x (f64 loss | n f32 weights | n f32 gradient), n f32 weights. */
typedef struct states {
    const char *bytes;
    size_t size;
    uint64_t n_params;
    uint64_t n_steps;
} states;

typedef struct rank_state {
    ps_config cfg;
    ps_model_spec spec;
    ps_session *session;
    ps_optimizer teacher_optimizer;
    float *teacher; // the weights that the passes read
    float *next;    // weights after DDP's step, computed by our optimizer
    int64_t batch[PS_MAX_RANKS];
    ps_sampler_options sampler;
    ps_preprocessing *state; // of tables
    ps_dataset dataset;
    ps_loader *loader;
    ps_device *device;
    ps_program *program;
    states states;
    double teacher_lr;
    FILE *out;
    int rank, world;
} rank_state;

static ps_err states_open(states *s, const char *path, uint64_t n_params)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return ps_err_errno(PS_ERR_IO, "%s", path);
    void *at = MAP_FAILED;
    if (fstat(fd, &st) == 0 && st.st_size > 0)
        at = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (at == MAP_FAILED) return ps_err_errno(PS_ERR_IO, "%s", path);
    uint64_t weights = n_params * sizeof(float), step = sizeof(double) + 2 * weights;
    *s = (states){.bytes = at, .size = (size_t)st.st_size, .n_params = n_params};
    s->n_steps = (s->size - weights) / step;
    if (s->size < weights || s->size != s->n_steps * step + weights)
        return ps_err_set(PS_ERR_FORMAT, "%s: %zu bytes are no states of this model",
                          path, s->size);
    return PS_OK;
}

/* The address of a step's loss, weights and gradient. Step n_steps has only the final
 * weights. */
static const char *state_at(const states *s, uint64_t step)
{
    uint64_t weights = s->n_params * sizeof(float);
    return s->bytes + step * (sizeof(double) + 2 * weights);
}

static double loss_at(const states *s, uint64_t step)
{
    double loss;
    memcpy(&loss, state_at(s, step), sizeof loss);
    return loss;
}

static const float *weights_at(const states *s, uint64_t step)
{
    size_t skip = step < s->n_steps ? sizeof(double) : 0;
    return (const float *)(const void *)(state_at(s, step) + skip);
}

static const float *gradient_at(const states *s, uint64_t step)
{
    return weights_at(s, step) + s->n_params;
}

/* Copies from the dense order of the file to the arena. */
static void spread(const ps_model_spec *spec, const float *from, float *arena)
{
    for (int i = 0; i < spec->table.n_tensors; i++) {
        const ps_tensor *t = &spec->table.tensors[i];
        memcpy(arena + t->offset, from, t->count * sizeof(float));
        from += t->count;
    }
}

typedef struct difference {
    double error, largest; // the largest difference, and the reference's largest element
} difference;

static difference compare(const ps_model_spec *spec, const float *arena, float sign,
                          const float *reference)
{
    difference d = {0};
    for (int i = 0; i < spec->table.n_tensors; i++) {
        const ps_tensor *t = &spec->table.tensors[i];
        for (uint64_t k = 0; k < t->count; k++) {
            double want = reference[k];
            d.error = fmax(d.error, fabs(sign * arena[t->offset + k] - want));
            d.largest = fmax(d.largest, fabs(want));
        }
        reference += t->count;
    }
    return d;
}

static ps_err give_grads(void *ctx, uint64_t begin, uint64_t end)
{
    return ps_session_push_range(ctx, begin, end);
}

/* Computes DDP's weights after the step from its weights before and our summed gradient,
 * and compares. */
static difference sgd_step(rank_state *r, uint64_t step)
{
    const ps_model_spec *spec = &r->spec;
    memcpy(r->next, r->teacher, spec->table.arena_count * sizeof(float));
    float *sum = ps_session_params(r->session);
    for (uint64_t i = 0; i < spec->table.arena_count; i++)
        sum[i] = -sum[i];
    ps_optimizer_step s = {.lr = r->teacher_lr, .t = step + 1, .grad_scale = 1};
    ps_optimizer_apply(&r->teacher_optimizer, &s, 0, spec->table.arena_count, r->next,
                       sum, NULL);
    for (uint64_t i = 0; i < spec->table.arena_count; i++)
        sum[i] = -sum[i];
    return compare(spec, r->next, 1, weights_at(&r->states, step + 1));
}

static ps_err report(rank_state *r, uint64_t step, double loss)
{
    difference g = compare(&r->spec, ps_session_params(r->session), -1,
                           gradient_at(&r->states, step));
    difference w = sgd_step(r, step);
    int rc =
        fprintf(r->out,
                "{\"step\": %llu, \"loss\": %.17g, \"loss_ref\": %.17g, \"grad_err\": "
                "%.9g, \"grad_max\": %.9g, \"weight_err\": %.9g}\n",
                (unsigned long long)step, loss, loss_at(&r->states, step), g.error,
                g.largest, w.error);
    return rc > 0 ? PS_OK : ps_err_errno(PS_ERR_IO, "steps.jsonl");
}

static ps_err parity_one_step(rank_state *r, uint64_t step, const ps_loaded *batch)
{
    spread(&r->spec, weights_at(&r->states, step), r->teacher);
    PS_TRY(ps_session_begin(r->session, step));
    PS_TRY(ps_session_wait(r->session, 0, r->spec.table.n_tensors));
    ps_batch b = {.n = (int)batch->n,
                  .x = batch->x,
                  .labels = batch->labels,
                  .positions = batch->positions};
    ps_pass_hooks hooks = {.ctx = r->session, .grads_ready = give_grads};
    ps_pass pass = {.training = true,
                    .grad_scale = (float)((double)batch->n / (double)batch->global_n),
                    .hooks = &hooks};
    ps_pass_result result;
    PS_TRY(ps_program_forward(r->program, &b, &pass, &result));
    PS_TRY(ps_program_backward(r->program, &b, &pass));
    PS_TRY(ps_session_finish(r->session));
    PS_TRY(ps_session_drain(r->session));
    // DDP's: each rank's mean counts by its samples
    double loss =
        result.loss_sum / ps_batch_weigh(&r->spec, &b).weight * (double)batch->n;
    char name[32];
    snprintf(name, sizeof name, "loss/%llu", (unsigned long long)step);
    PS_TRY(ps_member_reduce(ps_session_member(r->session), name, &loss, 1,
                            ps_deadline_in_ms(WAIT_MS)));
    return r->out ? report(r, step, loss / (double)batch->global_n) : PS_OK;
}

static ps_err all_steps(rank_state *r)
{
    uint64_t step = 0;
    for (uint64_t epoch = 0; step < r->states.n_steps; epoch++) {
        PS_TRY(ps_loader_epoch(r->loader, epoch, 0));
        while (step < r->states.n_steps) {
            ps_loaded *batch;
            PS_TRY(ps_loader_next(r->loader, ps_deadline_in_ms(WAIT_MS), &batch));
            if (!batch) break;
            ps_err err = parity_one_step(r, step++, batch);
            ps_loader_release(r->loader, batch);
            PS_TRY(err);
        }
    }
    return PS_OK;
}

static ps_err set_up_session(rank_state *r, const ps_cli *cli, const char *states_path)
{
    const ps_config *cfg = &r->cfg;
    PS_TRY(ps_model_spec_init(&r->spec, cfg));
    if (r->spec.table.n_buffers)
        return ps_err_set(PS_ERR_UNSUPPORTED,
                          "teacher-forced parity needs a model without buffers");
    r->teacher_optimizer = (ps_optimizer){.kind = PS_OPTIMIZER_SGD, .lr = r->teacher_lr};
    size_t bytes = r->spec.table.arena_count * sizeof(float);
    PS_TRY(ps_mem_zalloc_aligned(&r->teacher, bytes, "DDP's parameters"));
    PS_TRY(ps_mem_zalloc_aligned(&r->next, bytes, "DDP's next parameters"));
    PS_TRY(states_open(&r->states, states_path, r->spec.table.n_params));
    const ps_session_options session = {.config = cfg,
                                        .table = &r->spec.table,
                                        .init_method = cli->init_method,
                                        .rank = r->rank,
                                        .local_rank = r->rank};
    PS_TRY(ps_session_create(&session, &r->session));
    return ps_session_join(r->session, r->states.n_steps);
}

static ps_err set_up_data(rank_state *r)
{
    const ps_config *cfg = &r->cfg;
    PS_TRY(ps_dataset_load(cfg, PS_SPLIT_TRAIN, &r->spec.input, r->spec.n_outputs,
                           &r->state, &r->dataset));
    for (int i = 0; i < r->world; i++)
        r->batch[i] = ps_config_batch(cfg, i);
    r->sampler = (ps_sampler_options){
        .n_samples = r->dataset.n,
        .world_size = r->world,
        .rank = r->rank,
        .shuffle = cfg->data.shuffle,
        .drop_last = cfg->data.drop_last,
        .drop_last_batch = cfg->data.drop_last_batch,
        .seed = cfg->data.seed,
        .batch = r->batch,
    };
    ps_loader_options loader = {
        .config = cfg,
        .dataset = &r->dataset,
        .input = &r->spec.input,
        .sampler = &r->sampler,
        .max_batch = r->batch[r->rank],
        .classes = r->spec.n_outputs,
    };
    PS_TRY(ps_loader_create(&loader, &r->loader));
    const ps_device_options device =
        ps_device_options_of(&cfg->train, -1, (int)cfg->train.threads);
    PS_TRY(ps_device_open(PS_DEVICE_CPU, &device, &r->device));
    ps_program_options program = {
        .spec = &r->spec,
        .max_batch = (int)r->batch[r->rank],
        .training = true,
        .soft_targets = cfg->data.mixup > 0,
        .params = r->teacher,
        .grads = ps_session_grads(r->session),
        .buffers = ps_session_buffers(r->session),
    };
    return ps_program_create(r->device, &program, &r->program);
}

static ps_err parity_run(rank_state *r, const ps_cli *cli, const char *states_path)
{
    r->rank = cli->rank;
    r->world = (int)r->cfg.job.workers;
    if (r->rank < 0 || !cli->out)
        return ps_err_set(PS_ERR_ARG, "RANK and --out have to be given");
    PS_TRY(set_up_session(r, cli, states_path));
    PS_TRY(set_up_data(r));
    PS_TRY(ps_session_start(r->session, NULL, NULL));
    if (r->rank == 0) {
        char path[4096];
        snprintf(path, sizeof path, "%s/steps.jsonl", cli->out);
        r->out = fopen(path, "we");
        if (!r->out) return ps_err_errno(PS_ERR_IO, "%s", path);
    }
    PS_TRY(all_steps(r));
    PS_TRY(ps_session_close(r->session));
    FILE *out = r->out;
    r->out = NULL;
    if (out && fclose(out) != 0) return ps_err_errno(PS_ERR_IO, "steps.jsonl");
    return PS_OK;
}

static void tear_down(rank_state *r)
{
    ps_program_destroy(&r->program);
    ps_session_destroy(&r->session);
    ps_device_close(&r->device);
    ps_loader_destroy(&r->loader);
    ps_dataset_fini(&r->dataset);
    ps_preprocessing_destroy(&r->state);
    if (r->out) fclose(r->out);
    if (r->states.bytes) munmap((void *)(uintptr_t)r->states.bytes, r->states.size);
    free(r->teacher);
    free(r->next);
    ps_model_spec_fini(&r->spec);
    ps_config_fini(&r->cfg);
}

int main(int argc, char **argv)
{
    static const ps_cli_program program = {
        .name = "ps-parity-step",
        .about =
            "One rank of the teacher-forced comparison with PyTorch (bench/parity).\n",
        .examples = "",
    };
    if (argc < 4) {
        fprintf(stderr, "ps-parity-step: bench/parity calls it\n");
        return 2;
    }
    ps_cli cli = {0};
    static rank_state r; // static, as it is large: a batch size for every possible rank
    r.teacher_lr = atof(argv[argc - 1]);
    const char *states_path = argv[argc - 2];
    ps_err err = ps_cli_parse(&cli, &program, argc - 2, argv, stdout);
    if (err == PS_OK && !cli.done) {
        ps_mem_keep_freed();
        ps_log_init("parity", cli.log_level);
        err = ps_cli_load_config(&cli, &program, &r.cfg);
        if (err == PS_OK) err = parity_run(&r, &cli, states_path);
        if (err != PS_OK) fprintf(stderr, "ps-parity-step: %s\n", ps_err_message());
        tear_down(&r);
    }
    ps_cli_fini(&cli);
    return err == PS_OK ? 0 : 1;
}
