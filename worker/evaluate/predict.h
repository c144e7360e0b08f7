/* ps-worker --predict: what a trained model says of samples, labelled or not. */
#ifndef PS_PREDICT_H
#define PS_PREDICT_H

#include "cli.h"

/* Runs the model of config, with the weights of train.init, on what cli->predict names
 * (new_samples.h). Writes predictions.h's files into the folder --out, or those of a
 * share (--share); predictions of another run are kept without --overwrite: IO. Nothing
 * is left of predictions that fail or are interrupted. */
ps_err ps_predict(const ps_cli *cli, const ps_config *config, int threads);

/* --join-shares: puts the shares in the folder --out together. Errors as
 * ps_predictions_join. */
ps_err ps_predict_join(const ps_cli *cli, const ps_config *config);

#endif
