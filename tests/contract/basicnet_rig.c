#include "basicnet_rig.h"

#include <sys/wait.h>

#include "check.h"
#include "mem.h"

enum { NO_PYTORCH = 77, NO_PYTHON = 127 }; // exit codes

static void *zeroed(size_t bytes)
{
    void *memory = NULL;
    assert_ok(ps_mem_zalloc_aligned(&memory, bytes, "rig"));
    return memory;
}

float *basicnet_arena(const basicnet_rig *r)
{
    return zeroed(sizeof(float) * r->spec.table.arena_count);
}

void basicnet_init(basicnet_rig *r, ps_device_kind kind, const ps_device_options *device,
                   int batch)
{
    const char *const overrides[] = {"model.dropout=false"};
    *r = (basicnet_rig){.batch = batch};
    assert_true(batch <= RIG_MOST_BATCH);
    if (ps_config_load(&r->cfg, "configs/mnist-basicnet.yaml", overrides, 1) != PS_OK ||
        ps_model_spec_init(&r->spec, &r->cfg) != PS_OK)
        fail_msg("%s", ps_err_message());
    r->params = basicnet_arena(r);
    r->grads = basicnet_arena(r);
    r->buffers = zeroed(r->spec.table.buffer_bytes + 64); // the model has none
    r->x = zeroed(sizeof(float) * RIG_PIXELS * (size_t)batch);
    const ps_program_options program = {.spec = &r->spec,
                                        .max_batch = batch,
                                        .training = true,
                                        .params = r->params,
                                        .grads = r->grads,
                                        .buffers = r->buffers};
    if (ps_device_open(kind, device, &r->device) != PS_OK ||
        ps_program_create(r->device, &program, &r->program) != PS_OK)
        fail_msg("%s", ps_err_message());
}

void basicnet_fini(basicnet_rig *r)
{
    ps_program_destroy(&r->program);
    ps_device_close(&r->device);
    ps_model_spec_fini(&r->spec);
    ps_config_fini(&r->cfg);
    free(r->params);
    free(r->grads);
    free(r->buffers);
    free(r->x);
}

double basicnet_step(basicnet_rig *r)
{
    const uint32_t positions[RIG_MOST_BATCH] = {0};
    const ps_batch batch = {
        .n = r->batch, .x = r->x, .labels = r->labels, .positions = positions};
    const ps_pass pass = {.training = true, .grad_scale = 1.0f};
    ps_pass_result result;
    assert_ok(ps_program_forward(r->program, &batch, &pass, &result));
    assert_ok(ps_program_backward(r->program, &batch, &pass));
    return result.loss_sum / r->batch;
}

FILE *teacher_start(const char *python, const char *script, int steps)
{
    char command[1024];
    // PyTorch must not load the libraries that were preloaded into this program
    snprintf(command, sizeof command,
             "env -u LD_PRELOAD -u LD_LIBRARY_PATH %s tests/contract/%s %d", python,
             script, steps);
    FILE *teacher = popen(command, "r");
    assert_non_null(teacher);
    return teacher;
}

void teacher_end(FILE *teacher)
{
    const int status = pclose(teacher);
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    if (code == NO_PYTORCH || code == NO_PYTHON) {
        print_message("skipped: there is no PyTorch for it (python3-torch, "
                      "PS_TORCH_PYTHON)\n");
        skip();
    }
    assert_int_equal(status, 0);
}

bool teacher_read(FILE *teacher, void *out, size_t bytes)
{
    return fread(out, 1, bytes, teacher) == bytes;
}

bool teacher_read_arena(FILE *teacher, const ps_tensor_table *table, float *arena)
{
    for (int t = 0; t < table->n_tensors; t++) {
        const ps_tensor *tensor = &table->tensors[t];
        if (!teacher_read(teacher, arena + tensor->offset, sizeof(float) * tensor->count))
            return false;
    }
    return true;
}

bool teacher_read_batch(FILE *teacher, basicnet_rig *r)
{
    const size_t n = (size_t)r->batch;
    return teacher_read_arena(teacher, &r->spec.table, r->params) &&
           teacher_read(teacher, r->x, sizeof *r->x * RIG_PIXELS * n) &&
           teacher_read(teacher, r->labels, sizeof *r->labels * n);
}
