/* ps-worker --serve: a trained model that answers over HTTP, to try it. One thread; a
 * request after the other.
 *
 *   POST /predict  samples: JSON (new_samples.h), or the bytes of a table, an npy file or
 *                  a picture. The answer:
 *                  {"predictions": [{"class": 3, "class_name": "cat", "probability": 0.9,
 *                                    "probabilities": [...]}, ...]}
 *                  or, of a model of numbers, [{"price": 29.5, "rent": 1.2}, ...] by the
 *                  names of a table's targets, else [{"outputs": [...]}, ...]; beside it
 *                  {"warnings": ["..."]} where something may not be as it was meant
 *   GET /          what the model takes and gives, and how to ask it; /predict: the same
 * What curl does to a body is guessed, and said in errors. */
#ifndef PS_SERVE_H
#define PS_SERVE_H

#include "http_server.h"
#include "loaded_model.h"

enum {
    PS_SERVE_BODY_MAX = 16 << 20,   // bytes
    PS_SERVE_SAMPLES_MAX = 1024,    // of a request
    PS_SERVE_OUTPUTS_MAX = 1 << 20, // numbers of an answer
};

/* Until a signal comes, which is no error. NET, UNSUPPORTED; else as
 * ps_loaded_model_open. */
ps_err ps_serve(const ps_cli *cli, const ps_config *config, int threads);

typedef struct ps_serving {
    ps_loaded_model *model;
    int port;
} ps_serving;

/* POST /predict; ctx: a ps_serving. */
ps_err ps_serve_answer(void *ctx, const ps_http_body *body, ps_http_answer *out);

#endif
