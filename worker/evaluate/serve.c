#include "serve.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "interrupt.h"
#include "log.h"
#include "new_samples.h"
#include "predictions.h"

enum { WAIT_MS = 500, DIGITS = 9 }; // digits: those of float32

static const char PATH[] = "/predict", PATHS[] = "there are / and, for POST, /predict\n";

typedef struct answer {
    const ps_loaded_model *model;
    const ps_new_samples *samples;
    json_t *list;
} answer;

static json_t *outputs_json(const float *row, int64_t n)
{
    json_t *out = json_array();
    for (int64_t i = 0; i < n; i++)
        json_array_append_new(out, isfinite(row[i]) ? json_real(row[i]) : json_null());
    return out;
}

static json_t *class_json(const answer *a, const float *row, int64_t n)
{
    const bool part = ps_prediction_is_probability(&a->model->spec);
    const int64_t class = ps_prediction_class(row, n);
    const char *name = ps_class_name(&a->samples->set.names, class);
    json_t *out = json_object();
    json_object_set_new(out, "class", json_integer((json_int_t) class));
    if (name) json_object_set_new(out, "class_name", json_string(name));
    json_object_set_new(out, part ? "probability" : "output",
                        isfinite(row[class]) ? json_real(row[class]) : json_null());
    json_object_set_new(out, part ? "probabilities" : "outputs", outputs_json(row, n));
    return out;
}

static ps_err serve_take(void *ctx, float *rows, int64_t n)
{
    answer *a = ctx;
    const ps_model_spec *spec = &a->model->spec;
    const int64_t columns = spec->n_outputs;
    const bool class = ps_prediction_is_class(spec, &a->samples->set, false);
    ps_prediction_finish(spec, &a->samples->set, rows, n);
    for (int64_t i = 0; i < n; i++) {
        const float *row = rows + i * columns;
        json_t *one = class ? class_json(a, row, columns)
                            : json_pack("{s:o}", "outputs", outputs_json(row, columns));
        json_array_append_new(a->list, one);
    }
    return PS_OK;
}

static ps_err predict_body(ps_loaded_model *m, ps_new_samples *s,
                           const ps_http_body *body, json_t *list)
{
    answer a = {.model = m, .samples = s, .list = list};
    const bool json = strncasecmp(body->type, "application/json", 16) == 0;
    const int64_t most = PS_SERVE_OUTPUTS_MAX / m->spec.n_outputs;
    PS_TRY(ps_new_samples_of_body(s, m, body->bytes, body->n, json,
                                  most < 1                      ? 1
                                  : most < PS_SERVE_SAMPLES_MAX ? most
                                                                : PS_SERVE_SAMPLES_MAX));
    ps_predicting p = {.set = &s->set,
                       .n = s->set.n,
                       .what = s->what,
                       .mend = s->mend,
                       .take = serve_take,
                       .ctx = &a};
    return ps_new_samples_name(s, ps_loaded_model_predict(m, &p));
}

ps_err ps_serve_answer(void *ctx, const ps_http_body *body, ps_http_answer *out)
{
    const ps_loaded_model *m = ctx;
    ps_new_samples samples = {.state = m->state};
    if (strcmp(body->path, PATH) != 0) return PS_OK;
    json_t *list = json_array();
    const ps_err err = predict_body(ctx, &samples, body, list);
    const ps_err_saved end = ps_err_save(err);
    ps_new_samples_fini(&samples, ctx);
    json_t *all = json_pack("{s:o}", "predictions", list);
    if (err == PS_OK)
        out->body = json_dumps(all, JSON_COMPACT | JSON_REAL_PRECISION(DIGITS));
    json_decref(all);
    if (err != PS_OK) return ps_err_restore(&end);
    out->type = "application/json";
    return out->body ? PS_OK : ps_err_set(PS_ERR_NOMEM, "no memory for an answer");
}

static ps_err serve_say(void *ctx, const char *path, ps_http_answer *out)
{
    const ps_loaded_model *m = ctx;
    char shape[PS_DIMS_TEXT];
    if (strcmp(path, "/") != 0) return PS_OK;
    if (asprintf(&out->body,
                 "%s: a sample has the shape %s, an answer %" PRId64 " outputs.\n"
                 "curl -H 'Content-Type: application/json' -d '{\"samples\": [[...]]}' "
                 "http://HOST:PORT%s\n"
                 "curl --data-binary @FILE http://HOST:PORT%s   (a table, npy, a "
                 "picture)\n",
                 m->config->job.name, ps_dims_text(&m->spec.input, shape),
                 m->spec.n_outputs, PATH, PATH) < 0)
        return ps_err_set(PS_ERR_NOMEM, "no memory");
    out->type = "text/plain; charset=utf-8";
    return PS_OK;
}

static ps_err serve_requests(ps_loaded_model *m, const ps_cli *cli)
{
    const ps_http_options options = {.address = "127.0.0.1",
                                     .port = cli->serve,
                                     .get = serve_say,
                                     .post = ps_serve_answer,
                                     .body_max = PS_SERVE_BODY_MAX,
                                     .bind_key = "--serve",
                                     .paths = PATHS,
                                     .ctx = m};
    ps_http_server *server;
    const ps_err err = ps_http_server_start(&options, &server);
    if (err != PS_OK) return ps_err_prefix(err, "--serve");
    PS_INFO("serving", "at=http://127.0.0.1:%d%s", ps_http_server_port(server), PATH);
    ps_err run = PS_OK;
    while (run == PS_OK && !ps_interrupted())
        run = ps_http_server_run(server, WAIT_MS);
    const ps_err_saved end = ps_err_save(run);
    ps_http_server_stop(&server);
    return ps_err_restore(&end);
}

ps_err ps_serve(const ps_cli *cli, const ps_config *config, int threads)
{
    ps_loaded_model m;
    ps_err err = ps_loaded_model_open(&m, cli, config, threads);
    if (err == PS_OK) err = serve_requests(&m, cli);
    const ps_err_saved end = ps_err_save(err);
    ps_loaded_model_fini(&m);
    return ps_err_restore(&end);
}
