/* /status.json: the view as the page and `psrun --top` read it. Keys may be added; those
 * that are there keep their meaning.
 *
 *   {"job": {"name", "version", "state", "reason", "seconds", "step", "steps", "epoch",
 *            "epochs", "loss", "samples_per_second", "seconds_left", "restarts",
 *            "quality": {"name": "accuracy" | "AUC" | "R2", "key": of curve, "value"}},
 *    "waits_for": {"who": "nobody" | "worker" | "exchange" | "silent" | "unknown",
 *                  "rank", "text"},
 *    "curve": {"seconds": [...], "step": [...], "loss": [...],
 *              "samples_per_second": [...], "train_accuracy": [...], "test_loss": [...],
 *              "test_accuracy": [...], "test_auc": [...], "test_r2": [...]},
 *    "members": [{"role", "rank", "host", "address", "away", "silent_seconds",
 *                 "step_ms": {"compute", "load", "wait", "encode", "send", "sum",
 *                             "apply"},
 *                 "sent_per_second", "received_per_second", "cpu", "values": {...}}],
 *    "metrics": [{"name", "export", "unit", "help"}, ...]}
 *
 * What is not known is null. values: by the names of the table of metrics. quality: the
 * figure of the last evaluation by which to judge the model. step_ms: means over the last
 * few seconds; encode, send, sum and apply are made beside the others. cpu: processors in
 * use.
 */
#ifndef PS_JOB_VIEW_JSON_H
#define PS_JOB_VIEW_JSON_H

#include "job_view.h"

/* *out is owned by the caller (free()). NOMEM. */
ps_err ps_job_picture_json(const ps_job_picture *picture, char **out);

#endif
