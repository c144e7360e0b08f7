/* ps-config-json CONFIG [key=value ...]: prints the configuration as the workers read it,
 * with defaults and overrides, as JSON on standard output. psrun and the programs of
 * bench/ use it, so that only one program reads configurations.
 *
 *   {"file": "...", "keys": {"optimizer.lr": 0.001, ...}, "layers": [the YAML's tree],
 *    "n_params": n, "tensors": [{"name": "conv1.weight", "shape": [..], "role": r}, ...],
 *    "buffers": [...]}
 *
 * Scalars in layers are strings. role: weight, bias, norm; buffers: buffer, counter.
 * CONFIG "" is a job without a file and without a model: it has only the keys. So has one
 * without model.input, which its data say.
 *
 * ps-config-json --job CONFIG [key=value ...]: the same of a job that begins: what would
 * end its processes as they start is an error, so that it is found before there are any.
 * "gpu_shards": what server.shards is to be where all of the job is on this machine, with
 * its workers on GPUs; 0: the servers choose.
 *
 * ps-config-json --program [key=value ...]: of a job whose workers are a program, the
 * settings that it is given, and those that the servers are. One that nobody takes is an
 * error.
 *
 *   {"program": ["optimizer.lr=0.1", ...], "servers": ["metrics.port=9100", ...]}
 */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "chunk_codec.h"
#include "model_spec.h"
#include "printable.h"
#include "procstat.h"
#include "program_settings.h"
#include "value_json.h"

static json_t *tensors_json(const ps_tensor *tensors, int n)
{
    static const char *const roles[] = {"weight", "bias", "norm", "buffer", "counter"};
    json_t *out = json_array();
    for (int i = 0; i < n; i++) {
        json_t *shape = json_array();
        for (int d = 0; d < tensors[i].dims.n; d++)
            json_array_append_new(shape, json_integer(tensors[i].dims.d[d]));
        json_array_append_new(out,
                              json_pack("{s:s, s:o, s:s}", "name", tensors[i].name,
                                        "shape", shape, "role", roles[tensors[i].role]));
    }
    return out;
}

/* Takes the object. */
static ps_err print_json(json_t *job)
{
    const int failed =
        !job || json_dumpf(job, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(17));
    json_decref(job);
    putchar('\n');
    return failed ? ps_err_set(PS_ERR_IO, "the configuration cannot be written as JSON")
                  : PS_OK;
}

static ps_err print_takers(char *const *settings, int n)
{
    json_t *program = json_array(), *servers = json_array();
    ps_err err = PS_OK;
    for (int i = 0; i < n && err == PS_OK; i++) {
        const ps_setting_takers to = ps_program_setting_takers(settings[i]);
        if (!to.program && !to.servers) err = ps_program_setting_refuse(settings[i]);
        if (to.program) json_array_append_new(program, json_string(settings[i]));
        if (to.servers) json_array_append_new(servers, json_string(settings[i]));
    }
    json_t *both = json_pack("{s:o, s:o}", "program", program, "servers", servers);
    if (err == PS_OK) return print_json(both);
    json_decref(both);
    return err;
}

/* Puts the place of a key before the last error. */
static ps_err job_error(const ps_config *cfg, const char *key, ps_err err)
{
    const ps_yaml *at = ps_yaml_path(cfg->tree, key);
    if (err == PS_OK || !at) return err;
    if (strncmp(ps_err_message(), key, strlen(key)) != 0) ps_err_prefix(err, "%s", key);
    return at->line > 0 ? ps_err_prefix(err, "%s:%d", at->file, at->line)
                        : ps_err_prefix(err, "%s", at->file);
}

/* Whether the servers can have parts of the model. The workers' and servers' hosts, which
 * nobody knows yet, may allow for more shards, but not for fewer. */
static ps_err job_check_plan(const ps_config *cfg, const ps_model_spec *spec)
{
    ps_fragments fragments;
    ps_plan plan = {0};
    const ps_tensor_table *table = &spec->table;
    const char *key = cfg->server.share.n > 0 && cfg->server.share.n != cfg->job.servers
                          ? "server.share"
                      : cfg->server.shards > 1 ? "server.shards"
                                               : "job.servers";
    if (cfg->exchange.name != PS_EXCHANGE_PS) return PS_OK;
    PS_TRY(
        job_error(cfg, "sync.fragments",
                  ps_fragments_init(&fragments, table, (uint32_t)cfg->sync.fragments)));
    ps_err err = ps_plan_init_servers(&plan, table, ps_chunk_size_wanted(cfg, false),
                                      (uint32_t)cfg->job.servers, &cfg->server);
    ps_plan_fini(&plan);
    return job_error(cfg, key, err);
}

static ps_err job_check(const ps_config *cfg, const ps_model_spec *spec)
{
    static const char EXCHANGE[] = "exchange.name";
    if (cfg->exchange.name == PS_EXCHANGE_NCCL && cfg->train.device.kind == PS_DEVICE_CPU)
        return job_error(cfg, EXCHANGE,
                         ps_err_set(PS_ERR_CONFIG,
                                    "%s: nccl sums in the memory of GPUs: it needs "
                                    "train.device cuda (on the cpu take gloo)",
                                    EXCHANGE));
    PS_TRY(ps_model_spec_check_rows(spec, cfg));
    return job_check_plan(cfg, spec);
}

/* Of train.device auto nobody knows before the workers do. */
static uint32_t job_gpu_shards(const ps_config *cfg, const ps_tensor_table *table)
{
    if (cfg->exchange.name != PS_EXCHANGE_PS || cfg->server.shards > 0 ||
        cfg->train.device.kind != PS_DEVICE_CUDA || cfg->job.servers < 1)
        return 0;
    return ps_plan_shards_beside_gpus(table, (uint32_t)cfg->job.servers,
                                      (uint32_t)cfg->job.most_workers,
                                      ps_process_cores());
}

/* begins: the job does. */
static ps_err print_job(const ps_config *cfg, bool begins)
{
    ps_model_spec spec = {0};
    const bool sized = cfg->file[0] && cfg->model.input.n > 0;
    ps_err err = sized ? ps_model_spec_init(&spec, cfg) : PS_OK;
    if (err == PS_OK && sized && begins) err = job_check(cfg, &spec);
    if (err != PS_OK) {
        ps_model_spec_fini(&spec);
        return err;
    }
    json_t *keys = json_object();
    for (int i = 0; i < ps_config_n_keys; i++)
        json_object_set_new(keys, ps_config_keys[i].path,
                            ps_config_value_json(cfg, &ps_config_keys[i]));
    json_t *job =
        json_pack("{s:s, s:o, s:o, s:I, s:o, s:o}", "file", cfg->file, "keys", keys,
                  "layers", ps_yaml_json(ps_yaml_path(cfg->tree, "model.layers")),
                  "n_params", (json_int_t)spec.table.n_params, "tensors",
                  tensors_json(spec.table.tensors, spec.table.n_tensors), "buffers",
                  tensors_json(spec.table.buffers, spec.table.n_buffers));
    if (job && begins)
        json_object_set_new(job, "gpu_shards",
                            json_integer(sized ? job_gpu_shards(cfg, &spec.table) : 0));
    err = !job && !ps_utf8_is_valid(cfg->file)
              ? ps_err_set(PS_ERR_CONFIG,
                           "the path of the configuration is not UTF-8: rename its "
                           "folders, or make a link to it")
              : print_json(job);
    ps_model_spec_fini(&spec);
    return err;
}

static ps_err config_json_print(int argc, char **argv)
{
    ps_config cfg;
    if (strcmp(argv[1], "--program") == 0) return print_takers(argv + 2, argc - 2);
    const bool begins = argc > 2 && strcmp(argv[1], "--job") == 0;
    char **config = argv + 1 + begins;
    PS_TRY(ps_config_load(&cfg, config[0], (const char *const *)config + 1,
                          (int)(argv + argc - config) - 1));
    const ps_err err = print_job(&cfg, begins);
    ps_config_fini(&cfg);
    return err;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: ps-config-json [--job] CONFIG [key=value ...]\n"
                        "       ps-config-json --program [key=value ...]\n");
        return 2;
    }
    if (config_json_print(argc, argv) == PS_OK) return 0;
    fprintf(stderr, "ps-config-json: %s\n", ps_err_message());
    return 1;
}
