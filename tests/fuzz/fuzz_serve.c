/* A request to ps-worker --serve: the first byte says of which model, and whether it is
 * a form; the rest is the body. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model_file.h"
#include "serve.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { NUMBERS, PICTURES, TABLE, MODELS };

static const char *const configs[MODELS] = {
    [NUMBERS] = "model: {input: [2, 3], layers: [flatten, {linear: {name: a, out: 2}}], "
                "loss: mse}\n"
                "data: {kind: npy, eval_batch: 4}\n",
    [PICTURES] = "model: {input: [1, 4, 4], layers: [flatten, {linear: {name: a, out: "
                 "3}}], loss: cross_entropy}\n"
                 "data: {kind: image_folder, eval_batch: 2, resize: [4, 4]}\n",
    [TABLE] = "model: {input: [4], categories: [3], layers: [{linear: {name: a, out: "
              "2}}], loss: "
              "cross_entropy}\n"
              "data: {kind: csv, eval_batch: 4, target: y, missing: mean}\n"};

typedef struct model {
    ps_config config;
    ps_loaded_model loaded;
} model;

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    if (!file || fputs(text, file) == EOF || fclose(file) != 0) abort();
}

/* A column of numbers, two of two texts, one of them embedded, and classes that are
 * texts. */
static void describe_table(char **text)
{
    char *texts[] = {"cold", "warm"}, *classes[] = {"no", "yes"};
    double shares[] = {0.5, 0.5};
    ps_column columns[] = {
        {.name = "size", .mean = 3, .std = 2},
        {.name = "place", .std = 1, .categories = {2, texts}, .shares = shares},
        {.name = "town",
         .std = 1,
         .categories = {2, texts},
         .shares = shares,
         .own = true,
         .embedded = true}};
    ps_column target = {
        .name = "y", .std = 1, .categories = {2, classes}, .shares = shares};
    const ps_preprocessing state = {.named = true,
                                    .classes = true,
                                    .n_columns = 3,
                                    .n_targets = 1,
                                    .columns = columns,
                                    .targets = &target};
    if (ps_preprocessing_text(&state, text) != PS_OK) abort();
}

/* Weights of zeros. */
static void save_weights(const ps_config *config, const char *path)
{
    ps_model_spec spec;
    if (ps_model_spec_init(&spec, config) != PS_OK) abort();
    if (config->data.kind == PS_DATA_CSV) describe_table(&spec.table.preprocessing);
    float *params = calloc(spec.table.arena_count, sizeof *params);
    if (ps_model_file_save(path, &spec.table, params, NULL, NULL, 0) != PS_OK) abort();
    free(params);
    ps_model_spec_fini(&spec);
}

static model *models(void)
{
    static model all[MODELS];
    static bool made;
    char folder[] = "/tmp/pstrain-serve-XXXXXX", yaml[64], weights[64], init[96];
    const ps_cli cli = {.local_rank = -1};
    if (made) return all;
    if (!mkdtemp(folder)) abort();
    snprintf(yaml, sizeof yaml, "%s/job.yaml", folder);
    snprintf(weights, sizeof weights, "%s/w", folder);
    snprintf(init, sizeof init, "train.init=%s", weights);
    const char *const overrides[] = {"train.device=cpu", init};
    for (int i = 0; i < MODELS; i++) {
        write_file(yaml, configs[i]);
        if (ps_config_load(&all[i].config, yaml, overrides, 2) != PS_OK) abort();
        save_weights(&all[i].config, weights);
        if (ps_loaded_model_open(&all[i].loaded, &cli, &all[i].config, 1) != PS_OK)
            abort();
    }
    unlink(yaml);
    unlink(weights);
    rmdir(folder);
    made = true;
    return all;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ps_http_answer answer = {0};
    if (size == 0) return 0;
    char *bytes = malloc(size);
    if (!bytes) abort();
    memcpy(bytes, data + 1, size - 1);
    bytes[size - 1] = '\0';
    const ps_http_body body = {.path = "/predict",
                               .type = data[0] & 4 ? "multipart/form-data" : "",
                               .bytes = bytes,
                               .n = size - 1};
    ps_serving serving = {.model = &models()[(data[0] & 3) % MODELS].loaded};
    const ps_err err = ps_serve_answer(&serving, &body, &answer);
    if (err == PS_OK && (!answer.type || !answer.body)) abort();
    if (err != PS_OK && ps_err_message()[0] == '\0') abort();
    free(answer.body);
    free(bytes);
    return 0;
}
