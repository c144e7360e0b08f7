/* ps-init-weights OUT CONFIG [key=value ...]: writes the job's first weights (of
 * train.init, else of train.seed) as safetensors. Every side of a comparison loads them.
 */
#include <stdio.h>
#include <stdlib.h>

#include "config.h"
#include "init_weights.h"
#include "mem.h"
#include "model_file.h"
#include "model_spec.h"

static ps_err init_write_weights(const ps_config *cfg, const ps_model_spec *spec,
                                 const char *path)
{
    float *params = NULL;
    void *buffers = NULL;
    ps_err err = ps_mem_zalloc_aligned(&params, spec->table.arena_count * sizeof(float),
                                       "parameters");
    if (err == PS_OK)
        err = ps_mem_zalloc_aligned(&buffers, spec->table.buffer_bytes + 64, "buffers");
    if (err == PS_OK && cfg->train.init[0])
        err = ps_model_file_load(cfg->train.init, &spec->table, true, params, buffers);
    else if (err == PS_OK)
        ps_init_weights(spec, cfg->train.seed, 1, params, buffers);
    if (err == PS_OK)
        err = ps_model_file_save(path, &spec->table, params, buffers, NULL, 0);
    free(params);
    free(buffers);
    return err;
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: ps-init-weights OUT CONFIG [key=value ...]\n");
        return 2;
    }
    ps_config cfg;
    ps_model_spec spec = {0};
    const char *const *overrides = (const char *const *)argv + 3;
    ps_err err = ps_config_load(&cfg, argv[2], overrides, argc - 3);
    if (err == PS_OK) err = ps_model_spec_init(&spec, &cfg);
    if (err == PS_OK) err = init_write_weights(&cfg, &spec, argv[1]);
    if (err != PS_OK) fprintf(stderr, "ps-init-weights: %s\n", ps_err_message());
    ps_model_spec_fini(&spec);
    ps_config_fini(&cfg);
    return err == PS_OK ? 0 : 1;
}
