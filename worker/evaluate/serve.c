#include "serve.h"

#include <float.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "criteo.h"
#include "first_names.h"
#include "interrupt.h"
#include "log.h"
#include "new_samples.h"
#include "predictions.h"
#include "printable.h"
#include "value_json.h"

enum { WAIT_MS = 500, MOST_ZEROS = 64, SHORT_DIGITS = 4, GIVES_BYTES = 420 };

static const char PATH[] = "/predict",
                  PATHS[] = "there is /predict for POST, and / says how to ask\n";

typedef struct answer {
    const ps_loaded_model *model;
    const ps_new_samples *samples;
    json_t *list;
} answer;

/* Output i of a row. */
static json_t *output_json(const answer *a, const float *row, int64_t i)
{
    return ps_number_json(ps_prediction_value(&a->model->spec, &a->samples->set, row, i));
}

static json_t *outputs_json(const answer *a, const float *row, int64_t n)
{
    json_t *out = json_array();
    for (int64_t i = 0; i < n; i++)
        json_array_append_new(out, output_json(a, row, i));
    return out;
}

/* By the names of a table's targets, where it has some. */
static json_t *served_numbers_json(const answer *a, const float *row, int64_t n)
{
    const ps_model_spec *spec = &a->model->spec;
    const bool part = ps_prediction_is_probability(spec);
    json_t *out = json_object();
    for (int64_t i = 0; i < n; i++) {
        const char *name = ps_prediction_number_name(spec, &a->samples->set, i);
        if (!name && part && n == 1) {
            json_object_set_new(out, "probability_1", output_json(a, row, i));
            return out;
        }
        if (!name) {
            json_object_set_new(out, part ? "probabilities" : "outputs",
                                outputs_json(a, row, n));
            return out;
        }
        json_object_set_new(out, name, output_json(a, row, i));
    }
    return out;
}

/* Names of folders may be any bytes. */
static json_t *served_name_json(const char *name)
{
    char text[GIVES_BYTES];
    if (ps_utf8_is_valid(name)) return json_string(name);
    ps_printable(name, text, sizeof text);
    return json_string(text);
}

static json_t *class_json(const answer *a, const float *row, int64_t n)
{
    const bool part = ps_prediction_is_probability(&a->model->spec);
    const int64_t class = ps_prediction_class(row, n);
    const char *name = ps_class_name(&a->samples->set.names, class);
    json_t *out = json_object();
    json_object_set_new(out, "class", json_integer((json_int_t) class));
    if (name) json_object_set_new(out, "class_name", served_name_json(name));
    json_object_set_new(out, part ? "probability" : "output", ps_number_json(row[class]));
    json_object_set_new(out, part ? "probabilities" : "outputs", outputs_json(a, row, n));
    return out;
}

static ps_err serve_take(void *ctx, float *rows, int64_t n)
{
    answer *a = ctx;
    const ps_model_spec *spec = &a->model->spec;
    const int64_t columns = spec->n_outputs;
    const bool class = ps_prediction_is_class(spec, &a->samples->set, false);
    ps_prediction_finish(spec, rows, n);
    for (int64_t i = 0; i < n; i++) {
        const float *row = rows + i * columns;
        json_t *one =
            class ? class_json(a, row, columns) : served_numbers_json(a, row, columns);
        json_array_append_new(a->list, one);
    }
    return PS_OK;
}

static ps_err predict_body(ps_loaded_model *m, ps_new_samples *s,
                           const ps_http_body *body, json_t *list)
{
    answer a = {.model = m, .samples = s, .list = list};
    const int64_t most = PS_SERVE_OUTPUTS_MAX / m->spec.n_outputs;
    PS_TRY(ps_new_samples_of_body(s, m, body->bytes, body->n,
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

/* Of a body that cannot be read: what curl has made of the user's file, perhaps. */
static ps_err serve_hint(const ps_http_body *body, ps_err err)
{
    const char first = body->bytes[strspn(body->bytes, " \t\r\n")];
    if (err != PS_ERR_FORMAT && err != PS_ERR_SHAPE) return err;
    if (strncasecmp(body->type, "multipart/", 10) == 0)
        return ps_err_set(err, "the body is a form (curl -F): send the file itself, curl "
                               "--data-binary @FILE");
    if (first == '{' || first == '[' || body->n == 0 ||
        memchr(body->bytes, '\n', body->n))
        return err;
    const ps_err_saved said = ps_err_save(err);
    return ps_err_set(err,
                      "%s; it is one line: curl -d joins a file's lines, and without @ "
                      "sends its name: curl --data-binary @FILE; for values: curl -d "
                      "'{\"samples\": [...]}'",
                      said.message);
}

ps_err ps_serve_answer(void *ctx, const ps_http_body *body, ps_http_answer *out)
{
    ps_loaded_model *m = ((ps_serving *)ctx)->model;
    ps_new_samples samples = {.state = m->state};
    if (strcmp(body->path, PATH) != 0) return PS_OK;
    json_t *list = json_array();
    const ps_err err = serve_hint(body, predict_body(m, &samples, body, list));
    int digits = FLT_DECIMAL_DIG;
    for (int64_t i = 0; i < m->spec.n_outputs; i++) {
        const int own = ps_prediction_digits(&m->spec, &samples.set, i);
        if (own > digits) digits = own;
    }
    const ps_err_saved end = ps_err_save(err);
    json_t *all = json_pack("{s:o}", "predictions", list);
    if (samples.set.doubts)
        json_object_set_new(all, "warnings", json_pack("[s]", samples.set.doubts));
    ps_new_samples_fini(&samples, m);
    if (err == PS_OK)
        out->body = json_dumps(all, JSON_COMPACT | JSON_REAL_PRECISION(digits));
    json_decref(all);
    if (err != PS_OK) return ps_err_restore(&end);
    out->type = "application/json";
    return out->body ? PS_OK : ps_err_set(PS_ERR_NOMEM, "no memory for an answer");
}

/* --- how to ask ----------------------------------------------------------------------
 */

/* Of the axes from that one on. */
static json_t *example_zeros(const ps_dims *dims, int axis)
{
    if (axis >= dims->n || axis >= PS_MAX_DIMS) return json_integer(0);
    json_t *out = json_array();
    for (int64_t i = 0; i < dims->d[axis]; i++)
        json_array_append_new(out, example_zeros(dims, axis + 1));
    return out;
}

static json_t *example_click(void)
{
    json_t *out = json_array();
    for (int i = 0; i < PS_CRITEO_COUNTS; i++)
        json_array_append_new(out, json_integer(i));
    for (int i = 0; i < PS_CRITEO_IDS; i++)
        json_array_append_new(out, i == 0 ? json_string("68fd1e64") : json_null());
    return out;
}

static json_t *example_row(const ps_preprocessing *p)
{
    json_t *out = json_object();
    for (int64_t i = 0; i < p->n_columns; i++) {
        const ps_column *c = &p->columns[i];
        json_object_set_new(out, c->name,
                            c->categories.n > 0 ? json_string(c->categories.names[0])
                                                : json_real(c->fill));
    }
    return out;
}

/* "2 probabilities: cheap, dear", or "1 output: price". Returns out. */
static const char *serve_gives(const ps_loaded_model *m, char out[GIVES_BYTES])
{
    const ps_preprocessing *state = m->state;
    const ps_model_spec *spec = &m->spec;
    const ps_class_names *classes =
        state && state->classes ? &state->targets[0].categories : &m->names;
    const ps_dataset set = {.preprocessing = state};
    ps_first_names names = {0};
    const bool class = ps_prediction_is_class(spec, &set, false);
    for (int64_t i = 0; i < spec->n_outputs; i++) {
        const char *name =
            class ? ps_class_name(classes, i) : ps_prediction_number_name(spec, &set, i);
        if (name) ps_first_names_add(&names, "%s", name);
    }
    if (ps_prediction_number(spec, 0) == 1 && names.n == 0) {
        snprintf(out, GIVES_BYTES, "the probability of the label 1");
        return out;
    }
    snprintf(out, GIVES_BYTES, "%" PRId64 " %s%s%s%s", spec->n_outputs,
             ps_prediction_is_probability(spec) ? "probabilit" : "output",
             ps_prediction_is_probability(spec) ? (spec->n_outputs == 1 ? "y" : "ies")
             : spec->n_outputs == 1             ? ""
                                                : "s",
             names.n > 0 ? ": " : "", ps_first_names_text(&names));
    return out;
}

/* A request that the model understands, owned by the caller; NULL: too large to be read,
 * or no memory. */
static char *serve_example(const ps_loaded_model *m)
{
    const bool named = m->state && m->state->named;
    const ps_dims shape = ps_loaded_model_shape(m);
    if (!named && ps_dims_count(&shape) > MOST_ZEROS) return NULL;
    json_t *one = m->spec.n_columns > 0 ? example_click()
                  : named               ? example_row(m->state)
                                        : example_zeros(&shape, 0);
    json_t *all = json_pack("{s:[o]}", "samples", one);
    char *text = json_dumps(all, JSON_REAL_PRECISION(SHORT_DIGITS));
    json_decref(all);
    return text;
}

/* GET of a path; ctx: a ps_serving. */
static ps_err serve_say(void *ctx, const char *path, ps_http_answer *out)
{
    const ps_serving *s = ctx;
    const ps_loaded_model *m = s->model;
    char takes[PS_TAKES_TEXT], gives[GIVES_BYTES];
    if (strcmp(path, "/") != 0 && strcmp(path, PATH) != 0) return PS_OK;
    char *example = serve_example(m);
    const int n = asprintf(
        &out->body,
        "%s takes %s, and gives %s.\n"
        "curl -d '%s' localhost:%d%s\n"
        "curl --data-binary @FILE localhost:%d%s   (%s)\n",
        m->config->job.name, ps_loaded_model_takes(m, takes), serve_gives(m, gives),
        example ? example : "{\"samples\": [[...]]}", s->port, PATH, s->port, PATH,
        m->spec.n_columns > 0                          ? "lines as Criteo's"
        : m->state                                     ? "CSV"
        : m->config->data.kind == PS_DATA_IMAGE_FOLDER ? "a picture, or npy"
                                                       : "npy");
    free(example);
    if (n < 0) return ps_err_set(PS_ERR_NOMEM, "no memory");
    out->type = "text/plain; charset=utf-8";
    return PS_OK;
}

static ps_err serve_requests(ps_loaded_model *m, const ps_cli *cli)
{
    ps_serving serving = {.model = m, .port = cli->serve};
    const ps_http_options options = {.address = "127.0.0.1",
                                     .port = cli->serve,
                                     .get = serve_say,
                                     .post = ps_serve_answer,
                                     .body_max = PS_SERVE_BODY_MAX,
                                     .bind_key = "--serve",
                                     .paths = PATHS,
                                     .ctx = &serving};
    ps_http_server *server;
    const ps_err err = ps_http_server_start(&options, &server);
    if (err != PS_OK) return ps_err_prefix(err, "--serve");
    const int port = ps_http_server_port(server);
    PS_INFO("serving", "at http://127.0.0.1:%d%s; http://127.0.0.1:%d/ says how to ask",
            port, PATH, port);
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
